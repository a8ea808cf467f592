"""What follows when a server evicts single keys of an app: deleted here, which is the same to everybody else."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from acker_redis import Acker, LedgerLostError
from acker_redis.client.client import Client
from acker_redis.client.scripts import Call
from acker_redis.ledger import rotation
from acker_redis.model.keys import ShardKeys
from tests.support.leaks import assert_no_leaks
from tests.support.rounds import take


def shard_keys(acker: Acker) -> list[ShardKeys]:
    config = acker.config
    return [ShardKeys(config.app, shard, config.num_buckets, config.lanes) for shard in range(config.shards)]


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Any]]:
    """Replies of the sweep calls since it was asked last."""
    found: list[Any] = []
    run = Client.run_each

    def recorded(self: Client, calls: list[Call]) -> list[Any]:
        replies = run(self, calls)
        found.extend(reply for call, reply in zip(calls, replies, strict=True) if call.script.name == "sweep")
        return replies

    def taken() -> list[Any]:
        taken, found[:] = list(found), []
        return taken

    monkeypatch.setattr(Client, "run_each", recorded)
    return taken


def test_roots_whose_buckets_were_evicted_still_time_out(source, raw, connect) -> None:
    acker: Acker = connect(shards=2)
    roots = np.arange(1, 931)
    acker.init_many(roots, roots, 0)
    acker.fail_many(roots[:10])
    acker.ack_many(roots + 1_000, roots)
    take(acker, 10)
    for keys in shard_keys(acker):
        raw.delete(*keys.bucket)
    done = [acker.admin.rotate(force=True) for _ in range(acker.config.num_buckets + 1 + rotation.TICKS_PER_PASS)]
    assert sum(one.timed_out for one in done[: acker.config.num_buckets]) == 0
    assert (sum(one.timed_out for one in done), sum(one.orphaned for one in done)) == (920, 930)
    assert {(outcome.reason, outcome.kind) for outcome in take(acker, 920)} == {("timeout", "fail")}
    stats = acker.stats()
    assert (stats.pending, stats.unowned, stats.closed, stats.timed_out) == (0, 0, 0, 920)
    assert_no_leaks(raw, "test")


def test_small_ledger_is_swept_in_a_single_call(source, connect, sweeps) -> None:
    acker: Acker = connect(shards=2)
    acker.admin.rotate(force=True)
    assert [reply[3] for reply in sweeps()] == [0, 0]
    acker.init_many(np.arange(1, 101), np.arange(1, 101), 0)
    acker.admin.rotate(force=True)
    assert sum(reply[3] for reply in sweeps()) == 100
    assert acker.admin.rotate().ticked == 0
    assert sweeps() == []


def test_large_ledger_is_swept_over_several_ticks(real_url, connect, sweeps, monkeypatch) -> None:
    acker: Acker = connect(shards=1)
    blocks = 8_000
    acker.init_many(np.arange(blocks), np.arange(1, blocks + 1), 0)
    acker.admin.rotate(force=True)
    looked_at = [reply[3] for reply in sweeps()]
    assert len(looked_at) > 4
    assert max(looked_at) < 2 * rotation.BLOCKS_PER_SWEEP
    share = blocks / rotation.TICKS_PER_PASS
    assert share <= sum(looked_at) < share + 2 * rotation.BLOCKS_PER_SWEEP
    monkeypatch.setattr(rotation, "MAX_SWEPT_PER_TICK", 500)
    acker.admin.rotate(force=True)
    assert 500 <= sum(reply[3] for reply in sweeps()) < 500 + 2 * rotation.BLOCKS_PER_SWEEP


@pytest.mark.parametrize("kind", ["acked", "failed"])
def test_evicted_outcome_stream_raises_ledger_lost(source, raw, connect, kind) -> None:
    acker: Acker = connect(shards=1)
    acker.init_many([1, 2, 3], [5, 5, 0], 0)
    raw.delete(*getattr(shard_keys(acker)[0], kind))
    acker.ack(1, 5)
    acker.fail(2)
    with pytest.raises(LedgerLostError):
        acker.poll()
    acker.reopen()
    acker.init(4, 0, 0)
    assert 4 in {outcome.root for outcome in acker.poll()}
    assert acker.stats().pending == 0
