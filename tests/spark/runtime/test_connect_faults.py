"""Faults between a client of Spark Connect and its server, and in its executors. Clients are processes of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark.support.connect import Server, command
from tests.support.spark import session
from tests.support.spark.session import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.connect]

EXACT = {"acked": 190, "dead": 10, "missing": 0}
JOB_SECS = 280


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two executors of one core on this machine, so that one may die."""
    folder = tmp_path_factory.mktemp("connect")
    session.prepare()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    server = Server(command("local-cluster[2,1,1024]", "faults"), environment, folder)
    server.start(**session.settings_in(folder), **{"spark.executor.memory": "512m"})
    yield server
    server.stop()


def run(server: Server, scenario: str, url: str, folder: Path, *others: Server) -> dict[str, Any]:
    port, *more = (one.url.rpartition(":")[2] for one in (server, *others))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.jobs.connect_faults_job", scenario, port, url, str(folder),
         str(server.folder / "connect.log"), *more],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=JOB_SECS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_client_attaches_again_and_hears_of_a_write_once(server: Server, url: str, tmp_path: Path) -> None:
    found = run(server, "reattach", url, tmp_path)
    assert found["cuts"] == 1
    assert {key: found[key] for key in EXACT} == EXACT
    assert (found["emitted"], found["more"], found["writes"], found["metered"]) == (200, 0, 1, 1)


def test_two_threads_on_one_session_are_exact(server: Server, url: str, tmp_path: Path) -> None:
    found = run(server, "threads", url, tmp_path)
    for of_thread in found.values():
        assert of_thread == {**EXACT, "emitted": 200, "more": 0}


def test_a_session_that_its_client_releases_acks_nothing(server: Server, url: str, tmp_path: Path) -> None:
    found = run(server, "released", url, tmp_path)
    assert "INVALID_HANDLE.SESSION" in found["error"]
    assert (found["acked"], found["pending"], found["letters"]) == (0, 0, 0)


def test_a_session_that_expires_acks_nothing_and_another_one_resumes(
    server: Server, url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The other session is that of a server without such a timeout, in which a busy machine may pause for long."""
    folder, log_level = tmp_path_factory.mktemp("expiring"), {"spark.log.level": "INFO"}
    session.prepare()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    expiring = Server(command(session.MASTER, "expiring"), environment, folder)
    manager = "spark.connect.session.manager"
    timeouts = {f"{manager}.defaultSessionTimeout": "10s", f"{manager}.maintenanceInterval": "1s"}
    try:
        expiring.start(**{**session.settings_in(folder), **log_level, **timeouts})
        found = run(expiring, "expired", url, tmp_path_factory.mktemp("client"), server)
    finally:
        expiring.stop()
    assert "INVALID_HANDLE.SESSION" in found["error"]
    assert (found["acked"], found["pending"], found["letters"]) == (0, 0, 0)
    assert {key: found["again"][key] for key in EXACT} == EXACT


def test_an_executor_that_dies_over_connect_keeps_outcomes_exact(server: Server, url: str, tmp_path: Path) -> None:
    found = run(server, "executor", url, tmp_path)
    assert found["killed"]
    assert {key: found[key] for key in EXACT} == EXACT


def test_a_setting_that_the_session_refuses_ends_the_run_before_it_emits(
    server: Server, url: str, tmp_path: Path
) -> None:
    found = run(server, "locked", url, tmp_path)
    assert found["error"].startswith("The session refused spark.sql.warehouse.dir=")
    assert "so nothing was emitted" in found["error"]
    assert not found["written"]
