"""Runs of topologies on the Spark session of the tests."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from acker_redis import Acker
from acker_redis.storm import RunResult, Topology


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    with Acker.connect(url, app="turns", shards=2, message_timeout_secs=60) as acker:
        yield acker


@pytest.fixture
def run(spark: Any, acker: Acker) -> Iterator[Callable[..., RunResult]]:
    """Run a topology on Spark. At the end nothing is left in the ledger.

    What a turn has depends on its spouts alone, and not on how fast a busy machine lets them emit.
    """

    def call(topology: type[Topology] | Topology, **options: Any) -> RunResult:
        return topology.run(spark, acker=acker, **{"turn_secs": 60.0, **options})

    yield call
    assert acker.pending() == 0
