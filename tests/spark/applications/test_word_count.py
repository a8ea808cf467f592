"""The demo and the word count as a user runs them: separate processes, small real text, every fault on."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from acker_redis import Acker
from acker_redis.testing import wait_until
from tests.docs.test_readme import ROOT
from tests.support import servers
from tests.support.spark.warm import Warm

pytestmark = pytest.mark.spark

FAULTS = ("--fail-rate", "0.02")
PATIENT = ("--message-timeout-secs", "120")
"""Nothing times out on a machine that stalls: a rotator runs beside the demo."""

ALWAYS = ("--json", "--master", "local[2,4]")


def demo(*arguments: str, **environment: str) -> tuple[int, dict[str, Any], str]:
    env = {name: value for name, value in os.environ.items() if name != "ACKER_REDIS_URL"} | environment
    done = subprocess.run(
        [sys.executable, "-m", "spark.applications.demo", *ALWAYS, *arguments],
        capture_output=True, text=True, timeout=500, env=env, cwd=ROOT, check=False,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {}, done.stderr


def test_word_count_demo_accounts_for_every_line_without_errors() -> None:
    status, result, errors = demo("--kill-task", "--max-lines", "1000", *FAULTS, *PATIENT)
    assert (status, errors) == (0, "")
    assert result["workers_killed"] == 1
    assert_accounted_for(result)


def test_word_count_in_sql_accounts_for_every_line(url: str, warm: Warm) -> None:
    arguments = (*ALWAYS, "--max-lines", "1000", "--operators", "sql", *FAULTS)
    status, printed, errors = warm.run_module("spark.applications.word_count", *arguments, url=url)
    assert status == 0, errors  # which say that nobody rotates
    assert_accounted_for(json.loads(printed))


def assert_accounted_for(result: dict[str, Any]) -> None:
    assert result["lines"] == result["acked"] == 1000
    assert 0 < result["failed"] == result["replayed"]
    assert result["attempts"] == 1000 + result["replayed"]
    assert result["ledger_updates"] == 2 * result["attempts"]  # an init, and an ack or a fail; nothing per word
    assert [result[name] for name in ("pending", "dead_lettered", "timed_out", "lost")] == [0, 0, 0, 0]
    assert result["counts_match"]
    assert result["top_words"][0][0] == "the"


def test_word_count_losing_words_fails_and_acks_nothing(url: str, warm: Warm) -> None:
    arguments = (*ALWAYS, "--max-lines", "500", "--lose-rate", "0.02")
    status, _, errors = warm.run_module("spark.applications.word_count", *arguments, url=url)
    assert status == 3
    assert "reached 'save'" in errors and "Use tracker.filter for where" in errors
    assert "Traceback" not in errors
    with Acker.open_existing(url, "word-count") as acker:
        assert acker.stats().acked == 0


def test_failing_lines_become_dead_letters_on_a_given_server_without_java(tmp_path: Path, url: str) -> None:
    """No Java is on PATH, so that of the wheel runs."""
    text = tmp_path / "text.txt"
    text.write_text("a b\n\nb c\nno one is spared\n" * 50)
    status, result, errors = demo(
        "--input", str(text), "--fail-rate", "0.5", "--max-attempts", "1", *PATIENT,
        ACKER_REDIS_URL=url, PATH=str(programs_without_java(tmp_path)), JAVA_HOME="",
    )  # fmt: skip
    assert status == 0, errors
    assert result["lines"] == 150
    assert 0 < result["dead_lettered"] == result["failed"]
    assert result["acked"] == 150 - result["dead_lettered"]
    with Acker.open_existing(url, "word-count") as acker:
        letters = acker.dead_letters.read()
    assert len(letters) == result["dead_lettered"]
    assert {(letter.detail, letter.last_component) for letter in letters} == {("failed on purpose", "split")}
    assert all(json.loads(letter.payload or b"")["line"] == letter.message_id for letter in letters)


def programs_without_java(folder: Path) -> Path:
    """A folder with everything else that is on PATH."""
    programs = folder / "bin"
    programs.mkdir()
    for place in os.get_exec_path():
        for program in Path(place).glob("*"):
            link = programs / program.name
            if not program.name.startswith("java") and not link.exists() and os.access(program, os.X_OK):
                link.symlink_to(program)
    assert shutil.which("java", path=str(programs)) is None
    return programs


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--input", "no-such-file"), "no-such-file"),
        (("--fail-rate", "2"), "--fail-rate"),
        (("--kill-task", "--operators", "sql"), "--kill-task"),
    ],
)
def test_wrong_options_are_explained_without_a_traceback(
    url: str, warm: Warm, arguments: tuple[str, ...], text: str
) -> None:
    status, _, errors = warm.run_module("spark.applications.word_count", *ALWAYS, *arguments, url=url)
    assert status == 2
    assert text in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--server", "no-such-server"), "no-such-server"),
        (("--master", "locall"), "Could not parse Master URL: 'locall'"),
    ],
)
def test_missing_services_of_the_demo_are_explained_without_a_traceback(arguments: tuple[str, ...], text: str) -> None:
    status, _, errors = demo(*arguments)
    assert status in (2, 3)
    assert text in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("program", ["demo", "access_logs.demo", "order_stream.demo", "sentences.demo"])
def test_demo_refuses_an_unknown_option_before_it_starts_a_server(program: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"spark.applications.{program}", "--nonsense"],
        capture_output=True, text=True, timeout=60, cwd=ROOT, check=False,
        env={name: value for name, value in os.environ.items() if name != "ACKER_REDIS_URL"} | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, "No such option: --nonsense" in done.stderr, "server:" in done.stdout) == (2, True, False)


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("spark.applications.demo", ("--max-lines", "2000", "--server", "redis-server")),
        ("spark.applications.direct_acks.demo", ("--orders", "100000")),
    ],
)
def test_ctrl_c_stops_every_process_of_the_demo(module: str, arguments: tuple[str, ...]) -> None:
    """Once Spark runs with its Python workers. One of them starts a server program that is on PATH."""
    if "redis-server" in arguments:
        servers.REDIS7.program()
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    port = int(process.stdout.readline().rsplit(" ", 1)[1])
    wait_until(
        lambda: any(b"pyspark.daemon" in one for one in _session_of(process.pid)), "workers beside the demo", 120
    )
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=120) == 130
    process.stdout.close()
    wait_until(lambda: not _listening(port), "the server to be gone", 60)
    wait_until(lambda: not _session_of(process.pid), "every process of the session to be gone", 60)


def _session_of(leader: int) -> list[bytes]:
    """Command lines of its processes."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(stat.with_name("cmdline").read_bytes())
        except OSError:
            continue
    return found


def _listening(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
