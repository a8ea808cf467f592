"""Random topologies, compared with an oracle that counts the edges of every tree; `make chaos` draws for long."""

import os
import random
from collections import Counter
from typing import Any

import pytest

from acker_redis import Acker
from acker_redis.testing import fake_acker
from tests.model_based.topologies.play import play, play_with_crashes, serve
from tests.support.leaks import assert_no_leaks, run_out

SEEDS = range(60)
ON_SERVERS = range(1000, 1006)
MANY = int(os.environ.get("ACKER_CHAOS_SEED", "1")) * 100_000
"""First seed of `make chaos`."""


@pytest.mark.parametrize("seed", SEEDS)
def test_no_false_ack_no_second_outcome_nothing_lost(seed: int) -> None:
    play(seed)


def test_random_topologies_have_events_of_every_kind() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS[22::5]:
        seen += play(seed).counts
    assert not {
        "tracked", "untracked", "anchored", "multi-anchored", "unanchored", "received", "failed tuples", "acks", "fails",
        "timeouts", "letters", "windows",
    } - set(seen)  # fmt: skip


@pytest.mark.parametrize("seed", ON_SERVERS)
def test_no_server_is_left_with_anything(seed: int, source: Any, raw: Any, connect: Any) -> None:
    acker: Acker = connect(shards=2, message_timeout_secs=60)
    play(seed, acker)
    run_out(acker)
    raw.delete("acker:{test}:dead_letters")
    assert_no_leaks(raw, "test")


@pytest.mark.parametrize("seed", range(2000, 2008))
def test_a_new_run_over_the_acker_of_crashed_ones_hears_only_its_own(seed: int) -> None:
    with fake_acker(shards=2, message_timeout_secs=60) as acker:
        play_with_crashes(seed, acker, crashes=2)


@pytest.mark.parametrize("seed", [3000, 3001])
def test_crashed_runs_leave_nothing_that_a_new_one_does_not_clear(
    seed: int, source: Any, raw: Any, connect: Any
) -> None:
    acker: Acker = connect(shards=2, message_timeout_secs=60)
    play_with_crashes(seed, acker, crashes=2)
    run_out(acker)
    raw.delete("acker:{test}:dead_letters")
    assert_no_leaks(raw, "test")


@pytest.mark.parametrize("seed", range(5000, 5006))
def test_services_lose_nothing_and_tell_what_they_did(seed: int) -> None:
    with fake_acker(shards=2, message_timeout_secs=60) as acker:
        serve(seed, acker)
        assert acker.stats().pending == 0


@pytest.mark.parametrize("seed", range(6000, 6004))
def test_services_survive_lost_replies(seed: int, start_server: Any, start_proxy: Any, open_acker: Any) -> None:
    """Updates whose replies are lost are sent again, and count once: twice would cancel an edge, and ack falsely."""
    proxy = start_proxy(start_server())
    chance = random.Random(seed)

    def cut() -> None:
        if chance.random() < 0.1:
            proxy.cut_replies(chance.choice((0, 1, 5, 60, 200, 1000)))

    serve(seed, open_acker(proxy.url, shards=2, message_timeout_secs=60, outage_timeout_secs=60), cut)


@pytest.mark.parametrize("seed", range(7000, 7004))
def test_services_survive_an_emptied_server(seed: int, url: str, raw: Any, connect: Any) -> None:
    chance = random.Random(seed)

    def empty() -> None:
        if chance.random() < 0.02:
            raw.flushall()

    serve(seed, connect(shards=2, message_timeout_secs=60), empty, loses=True)


@pytest.mark.chaos
def test_many_random_topologies() -> None:
    for seed in range(MANY, MANY + 2000):
        play(seed)
