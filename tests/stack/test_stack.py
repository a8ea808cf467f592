"""Profiles of `docker-compose.yml` as plain processes: every command line, health check and mounted file is used."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from acker_redis.testing import wait_until
from tests.support.kafka import required as required_kafka
from tests.support.servers import required

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
def test_profile_starts_every_server_and_stops_every_process(profile: str, servers: list[str]) -> None:
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


def test_kafka_of_the_stack_takes_records() -> None:
    required_kafka()
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    process = run("--profile", "kafka")
    assert process.stdout is not None
    shown = ""
    try:
        for line in process.stdout:
            shown += line
            if "all are well" in line:
                break
        (port,) = re.findall(r"^kafka: pid \d+, port (\d+),", shown, re.MULTILINE)
        client: Any = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}
        admin = AdminClient(client)  # what it was asked ends with it
        admin.create_topics([NewTopic("orders", 1)])["orders"].result(60)
        told: list[object] = []
        producer = Producer(client)
        producer.produce("orders", b"1", on_delivery=lambda error, _: told.append(error))
        assert producer.flush(60) == 0 and told == [None]
    finally:
        os.killpg(process.pid, signal.SIGINT)
        rest = end_of(process, 120)
    assert rest.strip().endswith("ended"), shown + rest
    wait_until(lambda: all(map(is_gone, pids(shown))), "nothing is left")


def test_ctrl_c_during_make_stack_stops_it_without_an_error() -> None:
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
