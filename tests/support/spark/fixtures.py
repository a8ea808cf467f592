"""One Spark session for all tests here; see `session`."""

import gc
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark.cases import MakeCase
    from tests.support.spark.connect import ConnectSessions
    from tests.support.spark.session import Sessions
    from tests.support.spark.warm import Warm


@pytest.fixture(scope="session")
def _sessions(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Sessions | ConnectSessions"]:
    from tests.support.spark.connect import ConnectSessions
    from tests.support.spark.session import Sessions

    kind = ConnectSessions if request.config.getoption("connect") else Sessions
    sessions = kind(tmp_path_factory.mktemp("spark"))
    yield sessions
    sessions.stop()


COMPILED = ("tests/model_based/", "tests/spark/proof/", "tests/spark/test_tracker")
"""Tests for which Spark compiles whole stages, as it does by default. For rows as few as those of the tests, compiling takes a
quarter of their CPU time. `make matrix` sets ACKER_COMPILED, and Spark compiles for all tests."""


@pytest.fixture
def spark(request: pytest.FixtureRequest, _sessions: "Sessions | ConnectSessions") -> "SparkSession":
    """The same for all tests, but behind one that lost its shuffle files. With `--connect`, a session of Spark Connect."""
    from acker_redis.spark.runtime.sessions import is_connect

    session = _sessions.live()
    if not is_connect(session) and "ACKER_COMPILED" not in os.environ:
        is_compiled = request.node.nodeid.startswith(COMPILED)
        session.conf.set("spark.sql.codegen.wholeStage", str(is_compiled).lower())
    return session


@pytest.fixture
def environment(_sessions: "Sessions | ConnectSessions", spark: "SparkSession") -> dict[str, str]:  # noqa: ARG001
    """Variables for programs that are to have the kind of session that `spark` is."""
    return {**os.environ, **_sessions.environment}


@pytest.fixture
def loses_executor(_sessions: "Sessions | ConnectSessions") -> Iterator[None]:
    """For a test that takes shuffle files away: a session of Spark Connect doesn't tell that its only executor is lost."""
    yield
    _sessions.renew()


@pytest.fixture
def one_attempt(spark: "SparkSession") -> Iterator[None]:
    """For a test whose tasks fail each time: Spark tries them once. Over Spark Connect it tries them four times, as ever.

    Each attempt ends a Python worker, so four of them take most of the time of such a test. `test_retries.py` has what
    further attempts may change.
    """
    from acker_redis.spark.runtime.sessions import is_connect
    from tests.support.spark import session

    if is_connect(spark):
        yield
        return
    session.try_tasks(spark, 1)
    yield
    session.try_tasks(spark, session.ATTEMPTS)


@cache
def _freeze_imports() -> None:
    """Modules that Spark's tests import aren't looked through for garbage behind each of them."""
    import pandas  # noqa: F401, ICN001
    import pyspark.sql.functions  # noqa: F401

    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _spark_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests on Spark pause little between broken emissions (tests/spout/test_emission_thread.py has the real pauses).

    py4j's objects stand in cycles: the JVM keeps what they hold until Python collects them, which it seldom does by itself.
    """
    if request.node.get_closest_marker("spark") is None:
        yield
        return
    _freeze_imports()
    monkeypatch.setattr("acker_redis.spout.emission_thread.BROKEN_BASE_SECS", 0.001)
    yield
    gc.collect()


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Warm"]:
    from tests.support.spark.warm import Warm

    one = Warm(tmp_path_factory.mktemp("warm"))
    yield one
    one.stop()


@pytest.fixture
def case(spark: "SparkSession", url: str, tmp_path: Path) -> Iterator["MakeCase"]:
    from tests.support.spark.cases import Case

    cases: list[Case] = []

    def make(**options: Any) -> Case:
        folder = tmp_path / f"case-{len(cases)}"
        folder.mkdir()
        cases.append(Case(spark, url, folder, **options))
        return cases[-1]

    yield make
    for one in cases:
        one.acker.close()
