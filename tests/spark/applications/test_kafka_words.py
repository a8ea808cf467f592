"""`make kafka`: lines in, words out, a driver is killed, and the account closes; and accounts that don't."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from acker_redis.testing import wait_until
from spark.applications.kafka_words.account import Account, Committed
from spark.applications.kafka_words.lines import demanded, is_poison, value_of
from spark.support import kafka
from tests.support import java
from tests.support.kafka import required

ROOT = Path(__file__).resolve().parents[3]


def start(*arguments: str) -> "subprocess.Popen[str]":
    required()
    env = {name: value for name, value in java.preloaded().items() if name != "ACKER_REDIS_URL"}
    command = [sys.executable, "-m", "spark.applications.kafka_words.demo", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=ROOT, env={**env, "PYTHONUNBUFFERED": "1"}, stdout=pipe, stderr=pipe, text=True, process_group=0
    )


def test_programs_that_need_the_jars_at_once_download_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, second_asks, downloads = tmp_path / "build" / "jars", threading.Event(), list[Path]()

    def flock(file: Any, kind: int) -> None:
        if downloads:
            second_asks.set()
        fcntl.flock(file, kind)

    def fetch(folder: Path) -> None:
        downloads.append(folder)
        programs[1].start()
        assert second_asks.wait(60)
        folder.mkdir()

    found: list[Path] = []
    programs = [threading.Thread(target=lambda: found.append(kafka.jars())) for _ in range(2)]
    monkeypatch.delenv("ACKER_JARS", raising=False)
    monkeypatch.setattr(kafka, "_fetched", lambda: there)
    monkeypatch.setattr(kafka, "fcntl", SimpleNamespace(flock=flock, LOCK_EX=fcntl.LOCK_EX))
    monkeypatch.setattr(kafka, "_fetch", fetch)
    programs[0].start()
    wait_until(lambda: len(found) == 2, "both have the jars")
    assert (downloads, found) == ([there], [there, there])


@pytest.mark.spark
def test_demo_accounts_for_every_line_though_a_driver_is_killed() -> None:
    program = start("--json", "--lines", "300", "--per-sec", "100")
    try:
        printed, errors = program.communicate(timeout=500)
    finally:
        program.kill()
    assert program.returncode == 0, printed + errors
    found = json.loads(printed)
    poison = sum(map(is_poison, range(300)))
    assert found["wrong"] == [] and found["killed"] == 1 and found["checks"] > 3
    assert (found["lines"], found["dead_letters"], found["written"], found["lag"]) == (300, poison, 300 - poison, 0)
    assert found["words"] == len(set().union(*map(demanded, range(300))))


@pytest.mark.spark
@pytest.mark.chaos
def test_ctrl_c_ends_the_demo_with_an_account() -> None:
    program = start("--lines", "5000", "--without-kill")
    assert program.stdout is not None
    try:
        shown = ""
        for line in program.stdout:
            shown += line
            if "second driver has joined" in line:
                break
        os.kill(program.pid, signal.SIGINT)
        rest, errors = program.communicate(timeout=120)
    finally:
        program.kill()
    assert program.returncode == 130, shown + rest + errors
    assert "Every line is accounted for." in rest and "unfinished" in rest
    assert "Traceback" not in errors


def read(numbers: Any) -> Account:
    """The account of a reader who finds the words of these lines, and the letters of poison ones."""
    account = Account()
    words = [word for number in numbers for word in demanded(number)]
    values = [dict(zip(("line", "position", "word"), word, strict=True)) for word in words]
    account.add_words([Record(value=json.dumps(value).encode()) for value in values])
    account.add_letters([Record(key=str(number).encode()) for number in numbers if is_poison(number)])
    return account


class Record:
    def __init__(self, *, key: bytes = b"", value: bytes = b"") -> None:
        self.key, self.value = lambda: key, lambda: value


def test_account_of_a_good_run_closes() -> None:
    account = read(range(120))
    account.finish(range(120))
    assert (account.wrong, account.repeats, len(account.letters)) == ([], 0, 2)


def test_account_finds_a_lost_line_and_an_early_commit() -> None:
    account = read([n for n in range(120) if n not in (5, 17)])
    places = {number: (number % 2, number // 2) for number in range(120)}
    account.check(Committed(60, 0, {0: [(0, 60)], 1: [(0, 2), (8, 9)]}), places)
    account.finish(range(120))
    assert account.wrong == ["committed before they were done: 17", "neither written nor a dead letter: 5, 17"]


def test_account_finds_strange_words_and_letters() -> None:
    account = read(range(20))
    account.add_words([Record(value=b'{"line": 3, "position": 0, "word": "cow"}')])
    account.add_letters([Record(key=b"4")])
    account.finish(range(19))
    assert account.wrong == [
        "word of no line: (3, 0, 'cow')",
        "dead letter of a good line: 4",
        "lines that nobody produced: 19",
        "written and a dead letter: 4",
    ]


def test_poison_lines_are_no_json_and_demand_nothing() -> None:
    for number in range(200):
        if is_poison(number):
            assert demanded(number) == set()
            with pytest.raises(json.JSONDecodeError):
                json.loads(value_of(number))
        else:
            assert json.loads(value_of(number))["line"] == number
