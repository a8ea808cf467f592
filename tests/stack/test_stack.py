"""Profiles of `docker-compose.yml` as plain processes: every command line, health check and mounted file is used."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from acker_redis.testing import wait_until
from stack import processes
from stack.compose import services
from stack.processes import Processes, StackError
from tests.support.servers import REDIS7, required

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "stack", *arguments], cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0,
    )  # fmt: skip


def end_of(process: subprocess.Popen[str], timeout_secs: float) -> str:
    """What it printed until it ended; if it does not, it is ended with all that it started, and the test fails."""
    try:
        return process.communicate(timeout=timeout_secs)[0]
    except subprocess.TimeoutExpired:
        process.terminate()
        pytest.fail(f"not ended after {timeout_secs} s: {process.communicate(timeout=600)[0]}")


def pids(shown: str) -> list[int]:
    return [int(pid) for pid in re.findall(r": pid (\d+)", shown)]


def is_gone(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize(
    ("profile", "servers"),
    [
        ("valkey", ["valkey"]),
        ("sentinel", ["sentinel-primary", "sentinel-replica"]),
        ("cluster", ["cluster-1", "cluster-2", "cluster-3"]),
        ("monitoring", ["redis"]),
    ],
)
def test_a_profile_comes_up_whole_and_goes_down(profile: str, servers: list[str]) -> None:
    if profile == "monitoring":
        required("prometheus", "prometheus")
    process = run("--once", "--profile", profile)
    shown = end_of(process, 240)
    assert process.returncode == 0, shown
    assert "all are well" in shown
    assert [name for name in servers if f"\n{name}\nacker " in shown] == servers
    assert shown.count("noeviction  primary") + shown.count("noeviction  replica, link up") == len(servers)
    assert len(pids(shown)) >= 3
    wait_until(lambda: all(map(is_gone, pids(shown))), "nothing is left")


def test_ctrl_c_ends_all_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    process = run("--profile", "valkey", "--folder", str(folder))
    assert process.stdout is not None
    shown = ""
    for line in process.stdout:
        shown += line
        if "no apps here" in line:
            break
    process.send_signal(signal.SIGINT)
    rest = end_of(process, 120)
    assert process.returncode == 130, shown + rest
    assert "Traceback" not in rest
    wait_until(lambda: all(map(is_gone, pids(shown))), "nothing is left")
    assert (folder / "valkey-rotator.log").exists()


def test_ctrl_c_of_make_ends_it_without_an_error() -> None:
    """As a terminal does it: make, its shell and the program are interrupted together."""
    process = subprocess.Popen(
        [ROOT / ".ci" / "bare", "make", "-o", ".venv/.set-up", "stack", "ARGS=--profile valkey"], cwd=ROOT, process_group=0,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    shown = ""
    for line in process.stdout:
        shown += line
        if "no apps here" in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    rest = end_of(process, 120)
    assert rest.strip().endswith("ended"), shown + rest
    assert "***" not in rest and "Traceback" not in rest, rest
    wait_until(lambda: all(map(is_gone, pids(shown))), "nothing is left")


STUBBORN = """
import os, signal, time
def asked(*_):
    os.kill(os.getppid(), signal.SIGINT)
    while True: time.sleep(60)
signal.signal(signal.SIGTERM, asked)
print("ready", flush=True)
while True: time.sleep(60)
"""


def test_a_second_ctrl_c_while_it_ends_leaves_nothing(tmp_path: Path) -> None:
    """The first one is behind it; the second comes as the last service, asked to end, takes its time."""
    given = {"first": {"command": ["python", "-c", STUBBORN]}, "last": {"command": ["python", "-c", STUBBORN]}}
    (tmp_path / "compose.yml").write_text(yaml.safe_dump({"services": given}))
    (tmp_path / "here").mkdir()
    shown = list[str]()
    with pytest.raises(KeyboardInterrupt), Processes(services(tmp_path / "compose.yml"), tmp_path / "here") as stack:
        stack.start(shown.append)
        wait_until(lambda: all("ready" in stack.said_by(name) for name in given), "both are ready")
    assert len(pids("\n".join(shown))) == 2
    assert all(map(is_gone, pids("\n".join(shown))))


def test_a_health_check_that_hangs_is_an_unhealthy_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STARTS_IN_SECS", 1.0)
    monkeypatch.setattr(processes, "HEALTH_SECS", 0.1)
    hangs = ["python", "-c", "import time; time.sleep(60)"]
    given = {"silent": {"command": hangs, "healthcheck": {"test": ["CMD", *hangs]}}}
    (tmp_path / "compose.yml").write_text(yaml.safe_dump({"services": given}))
    (tmp_path / "here").mkdir()
    with Processes(services(tmp_path / "compose.yml"), tmp_path / "here") as stack:
        stack.start(str)
        with pytest.raises(StackError, match="silent is not there after 1 s"):
            stack.wait_healthy("silent")


def test_wrong_arguments_start_nothing(tmp_path: Path) -> None:
    for arguments, said in (
        (("--profile", "kafka"), "no profile 'kafka'"),
        (("--folder", str(tmp_path)), "give a new one"),
    ):
        process = run(*arguments, COLUMNS="1000")
        shown = end_of(process, 60)
        assert (process.returncode, pids(shown)) == (2, [])
        assert said in shown


def test_a_service_that_does_not_start_is_named_with_what_it_said(tmp_path: Path) -> None:
    REDIS7.program()
    process = run("--once", "--profile", "valkey", "--server", "redis-server", PYTHONPATH=str(broken_package(tmp_path)))
    shown = end_of(process, 120)
    assert process.returncode == 3, shown
    assert "error: valkey-functions ended with" in shown
    assert "broken on purpose" in shown
    wait_until(lambda: all(map(is_gone, pids(shown))), "nothing is left")


def broken_package(folder: Path) -> Path:
    """Something that ends every Python process which acts as `acker-redis`."""
    (folder / "sitecustomize.py").write_text(
        "import sys\nif 'ACKER_REDIS_URL' in __import__('os').environ: sys.exit('broken on purpose')\n"
    )
    return folder
