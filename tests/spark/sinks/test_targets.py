"""Sinks tried with the real thing, in both kinds of sessions: Delta, Iceberg, PostgreSQL, Kafka. Each JVM has its jars."""

import importlib
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.support import java
from tests.support.jars import SPARK, jars_of
from tests.support.jobs.target_job import NO_JARS, NOT_OVER_CONNECT
from tests.support.kafka import broker
from tests.support.postgres import postgres
from tests.support.servers import IN_CI, VALKEY
from tests.support.spark.session import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]  # the first test of a target runs all of its scenarios

NAMES = ("delta", "iceberg", "postgresql", "kafka")
SCENARIOS = [
    pytest.param(name, kind, scenario.__name__, marks=marks)
    for name in NAMES
    for kind, marks in (("classic", ()), ("connect", pytest.mark.connect))
    for scenario in importlib.import_module(f"tests.support.targets.{name}").SCENARIOS
]

Results: TypeAlias = dict[str, str | None]


@pytest.fixture(scope="module")
def results() -> dict[tuple[str, str], Results | None]:
    """Filled by the first test of each target and kind; None where its jars can't be had."""
    return {}


def run(name: str, kind: str, folder: Path) -> Results | None:
    with ExitStack() as stack:
        server = stack.enter_context(VALKEY.server())
        environment = {**java.preloaded(), "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        if name == "postgresql":
            environment["ACKER_TESTS_JDBC"] = stack.enter_context(postgres())
        if name == "kafka":
            node = stack.enter_context(broker())
            topics = node.topic(partitions=7), node.topic(partitions=7)
            environment["ACKER_TESTS_KAFKA"] = " ".join([node.address, *topics])
        command = [sys.executable, "-m", "tests.support.jobs.target_job", name, kind, server.url, str(folder)]
        if kind == "connect":
            environment["SPARK_CONNECT_MODE_ENABLED"] = "1"  # columns that modules make are Connect's
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1100)
    if done.returncode == NO_JARS:
        return None
    assert done.returncode == 0, done.stderr[-3000:]
    found: Results = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("name", "kind", "scenario"), SCENARIOS)
def test_target_is_proven_or_refused(
    results: dict[tuple[str, str], Results | None],
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    kind: str,
    scenario: str,
) -> None:
    if jars_of(name) is None:
        pytest.skip(f"no jar of {name} was published for Spark {SPARK}")
    if (name, kind) not in results:
        results[name, kind] = run(name, kind, tmp_path_factory.mktemp(name))
    found = results[name, kind]
    if found is None:
        (pytest.fail if IN_CI else pytest.skip)(
            f"the jar of {name} can't be downloaded, and is not in the folder ACKER_JARS"
        )
    if found[scenario] == NOT_OVER_CONNECT:
        pytest.skip(NOT_OVER_CONNECT)
    assert found[scenario] is None, found[scenario]
