"""lua/lib/dedup.lua: a batch is applied once per idempotency key."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.seeding import DIGEST, IDEMPOTENCY_KEY, TICK, pack_pairs, pack_updates

SEEN, REUSED = 1, 2
UPDATES: dict[str, tuple[Any, ...]] = {
    "init": (7, 0, pack_pairs((1, 5), (2, 0))),
    "ack": (0, "", pack_pairs((1, 5))),
    "fail": (0, "", 0, pack_updates(1)),
}


@pytest.mark.parametrize("slot", range(4))
@pytest.mark.parametrize("name", UPDATES)
def test_batch_with_idempotency_key_in_any_dedup_set_is_skipped(lab, name: str, slot: int) -> None:
    shard = lab()
    shard.put(1, 5, tick=TICK - 1)
    shard.raw.sadd(shard.keys["dedup"][slot], IDEMPOTENCY_KEY, IDEMPOTENCY_KEY + DIGEST)
    before = shard.state()
    assert shard.run(name, IDEMPOTENCY_KEY, DIGEST, *UPDATES[name]) == [SEEN, 0]
    assert shard.state() == replace(before, stats={"deduplicated": 1})


@pytest.mark.parametrize("name", UPDATES)
def test_idempotency_key_reused_for_other_content_is_refused(lab, name: str) -> None:
    shard = lab()
    shard.put(1, 5)
    shard.raw.sadd(shard.keys["dedup"][1], IDEMPOTENCY_KEY, IDEMPOTENCY_KEY + DIGEST)
    before = shard.state()
    assert shard.run(name, IDEMPOTENCY_KEY, b"otherone", *UPDATES[name]) == [REUSED, 0]
    assert shard.state() == replace(before, stats={"deduplicated": 1})


@pytest.mark.parametrize("name", UPDATES)
def test_a_batch_sent_twice_is_applied_once(lab, name: str) -> None:
    shard = lab()
    shard.put(1, 6)
    assert shard.run(name, IDEMPOTENCY_KEY, DIGEST, *UPDATES[name])[0] == 0
    before = shard.state()
    assert shard.run(name, IDEMPOTENCY_KEY, DIGEST, *UPDATES[name]) == [SEEN, 0]
    assert shard.state() == replace(before, stats={**before.stats, "deduplicated": 1})


@pytest.mark.parametrize("name", UPDATES)
def test_batch_with_another_idempotency_key_is_applied(lab, name: str) -> None:
    shard = lab()
    shard.put(1, 6)
    shard.raw.sadd(shard.keys["dedup"][shard.nursery], IDEMPOTENCY_KEY, IDEMPOTENCY_KEY + DIGEST)
    other = b"another-key-"
    assert shard.run(name, other, DIGEST, *UPDATES[name])[0] == 0
    assert shard.state().dedup == {shard.nursery: {IDEMPOTENCY_KEY, IDEMPOTENCY_KEY + DIGEST, other, other + DIGEST}}
