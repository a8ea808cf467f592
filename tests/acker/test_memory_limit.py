"""Above maxmemory: new roots are refused and nothing changes; everything that settles roots goes on."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from acker_redis import Acker, ServerOutOfMemoryError
from acker_redis.acker import app_of
from acker_redis.ops import abandon_run
from tests.support.rounds import exact_values, expire_all, take

ROOTS = np.arange(1, 2_001)
VALS = ROOTS * 7919


@pytest.fixture
def full(start_server, open_acker, plain, kind) -> Iterator[tuple[Acker, Any]]:
    """An app with 2 000 pending roots on a server that has no byte left."""
    server = start_server(kind=kind)
    acker = open_acker(server.url, shards=2)
    acker.init_many(ROOTS, VALS, 0)
    raw = plain(server.url)
    raw.config_set("maxmemory", "1")
    yield acker, raw


def structures(raw: Any) -> dict[bytes, Any]:
    """Every key with its content; not as DUMP gives it, whose order changes while a table is enlarged."""
    read = {
        b"hash": raw.hgetall,
        b"set": raw.smembers,
        b"zset": lambda key: raw.zrange(key, 0, -1, withscores=True),
        b"stream": raw.xrange,
    }
    return {key: read[raw.type(key)](key) for key in raw.scan_iter()}


def test_init_above_maxmemory_is_refused_and_changes_nothing(full) -> None:
    acker, raw = full
    before = structures(raw)
    with pytest.raises(ServerOutOfMemoryError, match=r"refuses new roots.*Raise maxmemory"):
        acker.init(9_999, 1, 0)
    with pytest.raises(ServerOutOfMemoryError):
        acker.init_many(np.arange(10_000, 15_000), np.arange(5_000), 0, idempotency_key="refused")
    assert structures(raw) == before
    raw.config_set("maxmemory", "0")
    assert acker.init_many(np.arange(10_000, 15_000), np.arange(5_000), 0, idempotency_key="refused").applied == 5_000


def test_acks_fails_and_timeouts_work_above_maxmemory(full) -> None:
    acker, _ = full
    acker.ack_many(ROOTS, ROOTS, component="a component that is new")
    exact_values(acker, ROOTS, VALS ^ ROOTS)
    acker.ack_many(ROOTS[:500], (VALS ^ ROOTS)[:500])
    acker.fail_many(ROOTS[500:1_000], reason="malformed", component="another new component")
    assert acker.reset_timeout_many(ROOTS[1_000:]) == 1_000
    acker.ack(123_456_789, 1)  # before its init, so it makes a record
    acker.admin.rotate(force=True)
    assert acker.reset_timeout_many(ROOTS[1_000:]) == 1_000
    assert len(take(acker, 1_000)) == 1_000
    assert expire_all(acker) == 1_000
    assert {outcome.reason for outcome in take(acker, 1_000)} == {"timeout"}
    stats = acker.stats()
    assert (stats.pending, stats.unowned, stats.unconfirmed_outcomes) == (0, 0, 0)
    assert acker.inspect(1) is None


def test_clients_can_connect_above_maxmemory(full, open_acker) -> None:
    _, raw = full
    url = f"redis://127.0.0.1:{raw.connection_pool.connection_kwargs['port']}/0"
    executor: Acker = open_acker(url, shards=2)
    executor.ack_many(ROOTS, VALS, component="sink")
    assert len(take(executor, len(ROOTS))) == len(ROOTS)
    assert open_acker(url, app="another").stats().pending == 0


def test_a_lane_is_held_and_a_dead_run_abandoned_above_maxmemory(full) -> None:
    acker, _ = full
    app = app_of(acker)
    lease = app.lease(lane=0, run_id="dead")
    lease.acquire()
    assert lease.holds()
    lease.release()
    left = abandon_run.preview(app.client, acker.config, "dead")
    assert abandon_run.abandon(app.client, acker.config, left) == len(ROOTS)
    assert acker.stats().pending == 0
