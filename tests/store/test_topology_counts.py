"""Counts of topologies, on every server."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from acker_redis import Acker
from acker_redis.acker import app_of
from acker_redis.model import keys
from acker_redis.store import topology_counts
from acker_redis.store.lane_leases import Lease
from acker_redis.store.topology_counts import DIED, ENDED, RUNNING, Counts

COUNTS = Counts("words", "run-1", ENDED, 5, 3, components={"split": {"acked": {"lines:default": 7}}})


@pytest.fixture
def client(connect: Callable[..., Acker], source: object) -> Any:
    return app_of(connect(app="test")).client


def test_counts_are_read_as_written(client: Any, raw: Any) -> None:
    assert topology_counts.read(client, "test", "words") is None and topology_counts.read_all(client, "test") == []
    topology_counts.write(client, "test", COUNTS)
    topology_counts.write(client, "test", replace(COUNTS, topology="a"))
    found = topology_counts.read(client, "test", "words")
    assert found is not None and found.at_ms > 0 and replace(found, at_ms=0) == COUNTS
    assert [counts.topology for counts in topology_counts.read_all(client, "test")] == ["a", "words"]
    assert 0 < raw.ttl(keys.topologies("test")) <= 7 * 24 * 3600


def test_a_run_without_its_lane_has_died(client: Any) -> None:
    topology_counts.write(client, "test", replace(COUNTS, state=RUNNING, lane=2))
    topology_counts.write(client, "test", replace(COUNTS, topology="untracked", state=RUNNING))

    def states() -> list[str]:
        return [counts.state for counts in topology_counts.read_all(client, "test")]

    assert states() == [RUNNING, DIED]
    for run_id, state in (("run-2", DIED), ("run-1", RUNNING)):
        lease = Lease(client, "test", 2, run_id)
        lease.acquire()
        assert states() == [RUNNING, state]
        lease.release()


def test_old_and_damaged_counts_are_dropped(client: Any, raw: Any) -> None:
    topology_counts.write(client, "test", COUNTS)
    key, old = keys.topologies("test"), json.loads(raw.hget(keys.topologies("test"), "words"))
    old["at_ms"] -= 8 * 24 * 3600 * 1000
    raw.hset(key, "old", json.dumps({**old, "topology": "old"}))
    raw.hset(key, "damaged", "{")
    raw.hset(key, "other", json.dumps({**old, "components": {"split": 7}}))
    assert [counts.topology for counts in topology_counts.read_all(client, "test")] == ["old", "words"]
    topology_counts.forget_old(client, "test")
    assert [counts.topology for counts in topology_counts.read_all(client, "test")] == ["words"]
