"""Roots that share blocks: over reloads, restarts and replicas, updated in random parts; the truth is kept beside."""

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acker_redis import Acker, AckerConfig, Applied, BadBatchError, FormatVersionError
from acker_redis.ledger.rotation import TICKS_PER_PASS
from acker_redis.model import ids
from acker_redis.ops.rotation_check import check
from acker_redis.testing import wait_until
from tests.support.rounds import exact_values, expire_all, take
from tests.support.servers import wait_for_replica

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
SEED = 20_261_122


def updated(acker: Acker, chance: random.Random, truth: dict[int, int]) -> None:
    """Ack some of the roots that are pending: of some blocks all, of others few; some to zero, some not."""
    for _ in range(5):
        share = chance.choice((0.05, 0.3, 1.0))
        some = [root for root in truth if chance.random() < share] or list(truth)[:1]
        vals = [truth[root] if chance.random() < 0.2 else chance.getrandbits(63) for root in some]
        acker.ack_many(some, vals)
        for root, val in zip(some, vals, strict=True):
            truth[root] ^= val
            if not truth[root]:
                del truth[root]


@pytest.mark.parametrize("shards", [1, 3])
def test_blocks_survive_reloads_restarts_and_replication(
    start_server, open_acker, plain, kind: str, shards: int
) -> None:
    debug = () if kind == "redis62" else ("--enable-debug-command", "yes")
    primary = start_server(*DURABLE, *debug, kind=kind)
    replica = start_server("--replicaof", "127.0.0.1", str(primary.port), kind=kind)
    acker: Acker = open_acker(primary.url, shards=shards)
    raw, copy = plain(primary.url), plain(replica.url)
    chance = random.Random(SEED)
    minted = acker.new_roots(700)
    truth = {root: chance.getrandbits(63) | 1 for root in [*minted.tolist(), *range(100)]}
    acker.init_many(list(truth), list(truth.values()), 3)
    for disturb in (
        lambda: raw.execute_command("DEBUG", "RELOAD"),
        lambda: (primary.kill(), primary.start()),
        lambda: None,
    ):
        updated(acker, chance, truth)
        disturb()
        exact_values(acker, list(truth), list(truth.values()))
    wait_until(lambda: copy.info("replication")["master_link_status"] == "up", "the replica is in step")
    wait_for_replica(raw)
    ledgers = [f"acker:{{{acker.config.app}:{shard}}}:ledger" for shard in range(shards)]
    assert [copy.hgetall(key) for key in ledgers] == [raw.hgetall(key) for key in ledgers]
    assert not list(raw.scan_iter("*scratch*")) + list(copy.scan_iter("*scratch*"))
    written = b"".join(path.read_bytes() for path in Path(raw.config_get("dir")["dir"]).rglob("*.aof"))
    assert b"scratch" not in written and b"ledger" in written
    done = len(minted) + 100 - len(truth)
    assert {o.kind for o in take(acker, done)} == {"ack"}
    assert expire_all(acker) == len(truth)
    assert {o.root for o in take(acker, len(truth))} == truth.keys()


def test_block_initialised_by_several_calls_ends_each_root_once(source: Any, connect: Any) -> None:
    """Any way of cutting the inits, with acks before, between and after them, ends each root once."""
    chance = random.Random(SEED)
    for number in range(20):
        acker: Acker = connect(app=f"cut-{number}", shards=2)
        others: Acker = connect(app=f"cut-{number}", shards=2)
        roots = acker.new_roots(96).tolist()
        vals = {root: ids.derive("val", root) for root in roots}
        calls: list[tuple[str, list[int]]] = []
        for kind in ("init", "ack"):
            left = chance.sample(roots, len(roots))
            while left:
                size = chance.choice((1, 2, 7, 40))
                calls.append((kind, left[:size]))
                left = left[size:]
        chance.shuffle(calls)
        for kind, some in calls:
            by = chance.choice((acker, others))
            values = [vals[root] for root in some]
            if kind == "init":
                by.init_many(some, values, 4)
            else:
                by.ack_many(some, values)
        assert Counter(o.root for o in take(acker, len(roots))) == Counter(roots)
        stats = acker.stats()
        assert (stats.pending, stats.unowned, stats.acked, stats.late_updates) == (0, 0, 96, 0)


def test_roots_of_two_spout_ids_in_a_block_are_refused(source: Any, connect: Any) -> None:
    acker: Acker = connect(shards=1)
    roots = acker.new_roots(32)
    acker.init_many(roots[:16], roots[:16], 1)
    with pytest.raises(BadBatchError, match="Use one spout_id for all"):
        acker.init_many(roots[16:], roots[16:], 2)
    assert acker.stats().inits == 16
    acker.init_many(roots[16:], roots[16:], 1)
    exact_values(acker, roots, roots)


def test_block_timeout_restarts_with_each_init_and_reset(source: Any, connect: Any) -> None:
    acker: Acker = connect(shards=1, num_buckets=3)
    roots = acker.new_roots(3)
    acker.init_many(roots[:1], [1], 0)
    acker.admin.rotate(force=True)
    acker.init_many(roots[1:2], [1], 0)  # begins the time of all anew
    assert [acker.admin.rotate(force=True).timed_out for _ in range(2)] == [0, 0]
    assert acker.reset_timeout(int(roots[1]))  # and so does this
    assert [acker.admin.rotate(force=True).timed_out for _ in range(3)] == [0, 0, 2]
    assert {o.root for o in acker.poll()} == set(roots[:2].tolist())


@pytest.mark.parametrize("stored", [None, 3, 5], ids=["none", "older", "newer"])
def test_app_of_another_format_is_refused_and_left_unchanged(
    source: Any, connect: Any, raw: Any, stored: int | None
) -> None:
    acker: Acker = connect(shards=2)
    acker.init(1, 5, 0)
    for shard in range(2):
        if stored is None:
            raw.hdel(f"acker:{{test:{shard}}}:meta", "format")
        else:
            raw.hset(f"acker:{{test:{shard}}}:meta", "format", stored)
    form = "a format without number" if stored is None else f"format {stored}"
    sentence = rf"App 'test' has shards of {form}, but .* reads format 4\..* Then delete the app"
    before = {key: raw.dump(key) if isinstance(source, str) else raw.type(key) for key in raw.scan_iter("acker:*")}
    with pytest.raises(FormatVersionError, match=sentence):
        connect(shards=2)
    with pytest.raises(FormatVersionError, match=sentence):
        Acker.open_existing(source, "test")
    if isinstance(source, str):  # of other apps on the server it says nothing
        (health,) = check(source, ["test"])
        assert (health.healthy, bool(re.search(sentence, health.text))) == (False, True)
    assert before == {
        key: raw.dump(key) if isinstance(source, str) else raw.type(key) for key in raw.scan_iter("acker:*")
    }


def test_app_in_the_layout_of_format_2_is_refused_and_left_unchanged(source: Any, connect: Any, raw: Any) -> None:
    settings = AckerConfig("test", shards=1).as_fields()
    raw.hset("acker:{test}:config", mapping=settings)
    raw.hset("acker:{test}:stages", "parse", 1)
    raw.hset(
        "acker:{test:0}:meta",
        mapping={
            "generation": "g", "tick": 0, "num_buckets": settings["num_buckets"], "lanes": settings["lanes"],
            "clock": settings["clock"], "max_age_ms": 0, "tick_ms": 15_000, "shards": 1, "format": 2, "created_ms": 1,
            "last_rotation_ms": 1, "next_rotation_ms": 2, "stage:1": "parse",
        },
    )  # fmt: skip
    raw.sadd("acker:{test:0}:fence:0", b"token-token-")
    raw.xadd("acker:{test}:dead", {"message_id": 1, "run_id": "run", "attempts": 2, "reason": "failed", "task": 0})
    before = {key: raw.type(key) for key in raw.scan_iter("acker:*")}
    for opened in (lambda: connect(shards=1), lambda: Acker.open_existing(source, "test")):
        with pytest.raises(FormatVersionError, match=r"shards of format 2, .* reads format 4"):
            opened()
    assert before == {key: raw.type(key) for key in raw.scan_iter("acker:*")}


def test_new_roots_with_an_invalid_count_is_refused() -> None:
    for count in (-1, 1.5, "many"):
        with pytest.raises(BadBatchError, match="count="):
            Acker.new_roots(count)  # type: ignore[arg-type]
    assert len(np.unique(Acker.new_roots(1000))) == 1000


def test_batch_with_empty_parts_is_applied(source: Any, connect: Any) -> None:
    acker: Acker = connect(shards=2)
    with acker.batch() as batch:
        batch.init_many([1], [5], spout_id=0)
        batch.ack_many([], [])
        batch.fail_many([])
    assert batch.result == Applied(1, False)


def test_fails_of_neighbours_do_not_extend_a_hung_root(source: Any, connect: Any) -> None:
    """Nor do roots that fail with their init; whatever the age."""
    acker: Acker = connect(shards=1, num_buckets=2)
    roots = acker.new_roots(4).tolist()
    acker.fail(roots[3])
    acker.init_many(roots[:3], [5, 5, 5], 0)
    acker.admin.rotate(force=True)
    acker.fail(roots[1])
    acker.init(roots[3], 5, 0)
    acker.fail(roots[2])
    assert acker.admin.rotate(force=True).timed_out == 1
    assert {o.root: o.reason for o in acker.poll()} == {
        roots[0]: "timeout", roots[1]: "failed", roots[2]: "failed", roots[3]: "failed",
    }  # fmt: skip


def test_stale_blocks_are_swept_within_a_few_ticks(url: str, connect: Any, raw: Any) -> None:
    acker: Acker = connect(shards=1)
    roots = acker.new_roots(32 * 400)
    acker.init_many(roots, roots, 0)
    raw.delete(*(f"acker:{{test:0}}:bucket:{slot}" for slot in range(4)))
    ticks = 0
    while acker.stats(with_oldest_age=False).pending:
        acker.admin.rotate(force=True)
        ticks += 1
    assert ticks <= acker.config.num_buckets + 1 + 2 * TICKS_PER_PASS
