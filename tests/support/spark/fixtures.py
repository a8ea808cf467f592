"""One Spark session for all tests here; see `session`."""

import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark.cases import MakeCase
    from tests.support.spark.session import Sessions
    from tests.support.spark.warm import Warm


@pytest.fixture(scope="session")
def _sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Sessions"]:
    from tests.support.spark.session import Sessions

    sessions = Sessions(tmp_path_factory.mktemp("spark"))
    yield sessions
    sessions.stop()


@pytest.fixture
def spark(_sessions: "Sessions") -> "SparkSession":
    """The same for all tests, but behind one that lost its shuffle files."""
    return _sessions.live()


@cache
def _freeze_imports() -> None:
    """Modules that Spark's tests import aren't looked through for garbage behind each of them."""
    import pandas  # noqa: F401, ICN001
    import pyspark.sql.functions  # noqa: F401

    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _spark_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests on Spark pause little between broken emissions (tests/spout/test_emitter.py has the real pauses).

    py4j's objects stand in cycles: the JVM keeps what they hold until Python collects them, which it seldom does by itself.
    """
    if request.node.get_closest_marker("spark") is None:
        yield
        return
    _freeze_imports()
    monkeypatch.setattr("acker_redis.spout.emitter.BROKEN_BASE_SECS", 0.001)
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

    made: list[Case] = []

    def make(**options: Any) -> Case:
        folder = tmp_path / f"case-{len(made)}"
        folder.mkdir()
        made.append(Case(spark, url, folder, **options))
        return made[-1]

    yield make
    for one in made:
        one.acker.close()
