"""A run that skipped tests reports them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from acker_redis.client import scripts
from tests.support import kafka, skips

ROOT = Path(__file__).resolve().parents[2]


def test_skip_reasons_are_grouped_with_install_commands() -> None:
    redis, tools = (
        "redis-server is not on PATH (apt-get install redis-server)",
        "redis-cli is not on PATH (apt-get install redis-tools)",
    )
    given = [tools, redis, "a second loopback address and /proc are Linux'", redis]
    assert skips.summary(f"Skipped: {reason}" for reason in given) == [
        "4 tests were skipped:",
        "      2  redis-server is not on PATH",
        "      1  redis-cli is not on PATH",
        "      1  a second loopback address and /proc are Linux'",
        "to run them: apt-get install redis-server redis-tools",
    ]


def test_bare_machine_run_lists_skipped_tests_and_packages() -> None:
    """In the environment that CI's first run has, too."""
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "tests/lua/test_contract.py", "-k", "unknown_global"]
    done = subprocess.run([".ci/bare", *command], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    shown = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    at = next(number for number, line in enumerate(shown) if "not run here" in line)
    count = len(scripts.NAMES)
    assert shown[at + 1] == f"{count} tests were skipped:"
    assert shown[at + 2].split() == [str(count), "luajit", "is", "not", "on", "PATH"]
    assert shown[at + 3] == "to run them: apt-get install luajit"
    assert f"{count} skipped" in shown[-1], "pytest's own summary is last"


def test_bare_environment_has_documented_programs_only() -> None:
    script = "for p in redis-server redis-cli java luajit prometheus promtool python3 make; do command -v $p; done; env"
    shown = subprocess.run(
        [".ci/bare", "sh", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    lines = shown.splitlines()
    assert [line.rpartition("/")[2] for line in lines if line.startswith("/")] == ["python3", "make"]
    assert {line.partition("=")[0] for line in lines if "=" in line} <= {
        "HOME", "PATH", "PWD", "OLDPWD", "SHLVL", "TMPDIR", "_",
    }  # fmt: skip


def test_missing_broker_of_kafka_skips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKER_JARS", str(tmp_path))
    monkeypatch.setattr(kafka, "IN_CI", False)
    monkeypatch.setattr(kafka, "_why_not", kafka._why_not.__wrapped__)  # without its cache
    with pytest.raises(pytest.skip.Exception, match=r"has no kafka-broker|confluent-kafka is not installed"):
        kafka.required()


def test_missing_broker_of_kafka_fails_in_ci(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "tests/kafka/test_letter_topic.py", "-k", "unchanged"]
    environment = {**os.environ, "ACKER_JARS": str(tmp_path), "CI": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert "1 error" in done.stdout.splitlines()[-1], done.stdout + done.stderr
    assert (
        "the folder ACKER_JARS has no kafka-broker" in done.stdout or "confluent-kafka is not installed" in done.stdout
    )
