"""lua/clock.lua: the server's time and the age of a shard's last tick."""

import pytest

from tests.lua.seeding import Between


@pytest.mark.parametrize("ago_ms", [0, 60_000, 2**32 + 5])
def test_the_time_is_the_servers_and_the_rotation_age_counts_from_the_last_tick(lab, ago_ms: int) -> None:
    shard = lab()
    shard.raw.hset(shard.keys["meta"], "last_rotation_ms", shard.seeded_ms - ago_ms)
    before = shard.state()
    now_ms, rotation_age_ms = shard.run("clock")
    assert now_ms == shard.now
    assert rotation_age_ms == min(now_ms - shard.seeded_ms + ago_ms, 2**32 - 1)
    assert shard.state() == before


def test_a_tick_in_the_future_has_no_age(lab) -> None:
    shard = lab()
    shard.raw.hset(shard.keys["meta"], "last_rotation_ms", shard.seeded_ms + 3600_000)
    assert shard.run("clock") == [shard.now, 0]


def test_a_forced_tick_starts_the_age_anew(lab) -> None:
    shard = lab()
    shard.raw.hset(shard.keys["meta"], "last_rotation_ms", 0)
    shard.run("rotate", 1)
    ticked = shard.now
    _, rotation_age_ms = shard.run("clock")
    assert rotation_age_ms == Between(0, shard.now.high - ticked.low)
