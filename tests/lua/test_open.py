"""lua/scripts/open.lua: a shard is made ready once, and keeps its generation."""

from typing import Any

import pytest

from acker_redis.client import scripts
from acker_redis.errors import DamagedDataError
from tests.support.seeding import GENERATION, TICK, TICK_MS, Between

OPENED, CREATED, CONFLICT, OTHER_FORMAT = 0, 1, 2, 3
SETTINGS: dict[str, Any] = {
    "num_buckets": 3,
    "lanes": 2,
    "clock": "last_update",
    "max_age_ms": 60_000,
    "tick_ms": TICK_MS,
    "shards": 1,
    "format": 3,
    "max_pending": "",
}


def open_shard(shard: Any, generation: str, **others: Any) -> Any:
    script = scripts.load("open")
    low = shard.server_ms()
    (reply,) = shard.client.run([script.call(shard.keys, generation, *{**SETTINGS, **others}.values())])
    shard.now = Between(low, shard.server_ms())
    return reply


def groups(shard: Any) -> set[tuple[str, bytes]]:
    streams = [*shard.keys["acked"], *shard.keys["failed"]]
    return {(stream, group["name"]) for stream in streams for group in shard.raw.xinfo_groups(stream)}


def test_new_shard_gets_generation_settings_and_groups(lab) -> None:
    shard = lab(opened=False, lanes=2)
    assert open_shard(shard, "mine") == [CREATED, b"mine"]
    after = shard.state()
    assert after.meta == {
        "generation": "mine",
        "tick": 0,
        "num_buckets": 3,
        "lanes": 2,
        "clock": "last_update",
        "max_age_ms": 60_000,
        "tick_ms": 15_000,
        "shards": 1,
        "format": 3,
        "created_ms": shard.now,
        "last_rotation_ms": shard.now,
        "next_rotation_ms": Between(shard.now.low + 15_000, shard.now.high + 15_000),
    }
    assert groups(shard) == {(stream, b"spout") for stream in (*shard.keys["acked"], *shard.keys["failed"])}
    assert (after.ledger, after.buckets, after.dedup, after.stats, after.others) == ({}, {}, {}, {}, set())


def opened(lab: Any) -> Any:
    return lab(lanes=2, clock="last_update", max_age_ms=60_000)


def test_shard_opened_again_keeps_everything(lab) -> None:
    shard = opened(lab)
    shard.put(1, 5)
    before = shard.state()
    assert open_shard(shard, "another") == [OPENED, GENERATION.encode()]
    assert shard.state() == before


@pytest.mark.parametrize(
    "other",
    [{"num_buckets": 4}, {"lanes": 1}, {"clock": "first_seen"}, {"max_age_ms": 0}, {"tick_ms": 1}, {"shards": 2}],
)
def test_shard_created_with_other_settings_is_a_conflict(lab, other: dict[str, Any]) -> None:
    shard = opened(lab)
    shard.put(1, 5)
    before = shard.state()
    assert open_shard(shard, "another", **other) == [CONFLICT, GENERATION.encode()]
    assert shard.state() == before
    assert not any(map(shard.raw.exists, (*shard.keys["acked"], *shard.keys["failed"])))


@pytest.mark.parametrize("stored", [None, 2, 4], ids=["none", "older", "newer"])
def test_shard_of_another_format_is_refused_and_unchanged(lab, stored: int | None) -> None:
    shard = opened(lab)
    shard.put(1, 5)
    if stored is None:
        shard.raw.hdel(shard.keys["meta"], "format")
    else:
        shard.raw.hset(shard.keys["meta"], "format", stored)
    before = shard.state()
    assert open_shard(shard, "another", num_buckets=4) == [OTHER_FORMAT, b"" if stored is None else b"%d" % stored]
    assert shard.state() == before
    assert not any(map(shard.raw.exists, (*shard.keys["acked"], *shard.keys["failed"])))


def test_groups_of_reopened_shard_keep_their_position(lab) -> None:
    shard = opened(lab)
    open_shard(shard, "mine")
    stream = shard.keys["failed"][0]
    shard.raw.xadd(stream, {"spout_id": 7})
    shard.raw.xreadgroup("spout", "consumer", {stream: ">"})
    open_shard(shard, "another")
    assert shard.raw.xreadgroup("spout", "consumer", {stream: ">"}) in ([], {})
    assert len(shard.raw.xpending_range(stream, "spout", "-", "+", 10)) == 1


def test_entries_written_before_the_group_was_made_are_delivered(lab) -> None:
    shard = opened(lab)
    stream = shard.keys["acked"][0]
    shard.raw.xadd(stream, {"spout_id": 7})
    open_shard(shard, "mine")
    assert len(shard.raw.xreadgroup("spout", "consumer", {stream: ">"})) == 1


def test_stream_key_of_another_type_raises_damaged_data(lab) -> None:
    shard = opened(lab)
    shard.raw.set(shard.keys["failed"][1], "not a stream")
    with pytest.raises(DamagedDataError):
        open_shard(shard, "mine")


def test_shard_that_lost_its_data_gets_new_generation(lab) -> None:
    shard = lab(lanes=2)
    shard.raw.flushall()
    assert open_shard(shard, "new") == [CREATED, b"new"]
    assert shard.state().meta["generation"] == "new"


def test_leftovers_of_shard_without_generation_are_deleted(lab) -> None:
    shard = opened(lab)
    open_shard(shard, "another")
    for slot in range(shard.slots):
        shard.put(slot, 5, tick=TICK - slot)
        shard.raw.sadd(shard.keys["dedup"][slot], b"idempotency_key")
    shard.raw.hset(shard.keys["stats"], mapping={"inits": 4, "acked": 2})
    shard.raw.hset(shard.keys["samples"], "3", "1795413370705 4 2 0 0")
    streams = [*shard.keys["acked"], *shard.keys["failed"]]
    for stream in streams:
        shard.raw.xadd(stream, {"spout_id": 7})
        shard.raw.xreadgroup("spout", "consumer", {stream: ">"})
        shard.raw.xadd(stream, {"spout_id": 7})
    mine = (shard.keys["ledger"], *streams, *shard.keys["bucket"])
    others = [*(key.replace(":0}", ":1}") for key in mine), "acker:{lab}:config", "acker:{lab}:components"]
    for key in others:
        shard.raw.set(key, "not of this shard")
    shard.raw.delete(shard.keys["meta"])

    assert open_shard(shard, "new") == [CREATED, b"new"]
    after = shard.state()
    assert (after.meta["generation"], after.meta["tick"]) == ("new", 0)
    assert (after.ledger, after.buckets, after.dedup, after.stats) == ({}, {}, {}, {})
    assert not shard.raw.exists(shard.keys["samples"])
    assert groups(shard) == {(stream, b"spout") for stream in streams}
    for stream in streams:
        assert shard.raw.xlen(stream) == shard.raw.xpending(stream, "spout")["pending"] == 0
    assert after.others == {key.encode() for key in others}


def test_max_pending_is_stored_only_when_shard_is_created(lab) -> None:
    shard = lab(lanes=2, clock="last_update", max_age_ms=60_000, max_pending=9)
    assert open_shard(shard, "another", max_pending=5) == [OPENED, GENERATION.encode()]
    assert shard.state().meta["max_pending"] == 9
    shard.raw.flushall()
    assert open_shard(shard, "new", max_pending=5) == [CREATED, b"new"]
    assert shard.state().meta["max_pending"] == 5
