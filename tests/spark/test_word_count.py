"""The demo and the main job as a user runs them: separate processes, small real text, every fault on."""

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
from tests import servers

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ("--fail-rate", "0.02", "--forget-rate", "0.02", "--timeout-secs", "4")


def demo(*arguments: str, **environment: str) -> tuple[int, dict[str, Any], str]:
    env = {name: value for name, value in os.environ.items() if name != "ACKER_REDIS_URL"} | environment
    done = subprocess.run(
        [sys.executable, str(ROOT / "spark" / "demo.py"), "--json", "--master", "local[2,4]", *arguments],
        capture_output=True, text=True, timeout=240, env=env, cwd=ROOT.parent, check=False,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {}, done.stderr


@pytest.mark.parametrize("operators", ["python", "sql"])
def test_the_demo_accounts_for_every_line_with_a_worker_killed(operators: str) -> None:
    status, result, errors = demo("--kill-task", "--max-lines", "2500", "--operators", operators, *FAULTS)
    assert status == 0, errors
    assert result["workers_killed"] == 1
    assert result["lines"] == result["acked"] == 2500
    assert result["failed"] > 0
    assert result["timed_out"] > 0
    assert result["replayed"] == result["failed"] + result["timed_out"]
    assert result["attempts"] == 2500 + result["replayed"]
    assert (result["pending"], result["dead_lettered"], result["lost"]) == (0, 0, 0)
    assert result["counts_match"]
    assert result["top_words"][0][0] == "the"


def test_lines_that_never_succeed_end_as_dead_letters_on_a_server_of_ones_own(tmp_path: Path, url: str) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a b\n\nb c\nno one is spared\n" * 50)
    status, result, errors = demo(
        "--input", str(text), "--fail-rate", "0.5", "--forget-rate", "0", "--timeout-secs", "60", "--max-attempts", "1",
        ACKER_REDIS_URL=url,
    )  # fmt: skip
    assert status == 0, errors
    assert result["lines"] == 150
    assert 0 < result["dead_lettered"] == result["failed"]
    assert result["acked"] == 150 - result["dead_lettered"]
    with Acker.attach(url, "word-count") as acker:
        letters = acker.dead_letters.read()
    assert len(letters) == result["dead_lettered"]
    assert {(letter.detail, letter.last_stage) for letter in letters} == {("failed on purpose", "split")}
    assert all(json.loads(letter.payload or b"")["line"] == letter.message_id for letter in letters)


def test_without_java_the_wheel_stands_in_and_a_server_program_on_path_is_used_when_asked_for(tmp_path: Path) -> None:
    servers.REDIS7.program()
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in os.get_exec_path():
        for program in Path(folder).glob("*"):
            link = programs / program.name
            if not program.name.startswith("java") and not link.exists() and os.access(program, os.X_OK):
                link.symlink_to(program)
    assert shutil.which("java", path=str(programs)) is None
    small = ("--server", "redis-server", "--max-lines", "300", "--timeout-secs", "1")
    status, result, errors = demo(*small, PATH=str(programs), JAVA_HOME="")
    assert status == 0, errors
    assert result["acked"] == 300


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--input", "no-such-file"), "no-such-file"),
        (("--fail-rate", "2"), "--fail-rate"),
        (("--server", "no-such-server"), "no-such-server"),
        (("--master", "locall"), "locall"),
    ],
)
def test_wrong_arguments_say_what_is_wrong(arguments: tuple[str, ...], text: str) -> None:
    status, _, errors = demo(*arguments)
    assert status in (2, 3)
    assert text in errors
    assert "Traceback" not in errors


def test_ctrl_c_ends_everything_it_started() -> None:
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "spark" / "demo.py"), "--max-lines", "2000"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    port = int(process.stdout.readline().rsplit(" ", 1)[1])
    wait_until(lambda: len(_session_of(process.pid)) >= 4, "Spark and its workers to run beside the demo", 60)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == 130
    process.stdout.close()
    wait_until(lambda: not _listening(port), "the server to be gone")
    wait_until(lambda: not _session_of(process.pid), "every process of the session to be gone")


def _session_of(leader: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def _listening(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
