"""Outcomes on their way to the spout: order, limits, waiting, lanes, sharing."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import redis

from acker_redis import Acker, AckerConfig, Outcome
from acker_redis.testing import wait_until
from tests.support.outcomes import complete, streams
from tests.support.rounds import full_round, take


def test_outcomes_arrive_in_the_order_roots_settled(source, connect) -> None:
    acker: Acker = connect(shards=1)
    order = [5, 3, 9, 1, 7]
    acker.init_many(order, order, 0)
    for root in order:
        acker.ack(root, root)
    outcomes = acker.poll()
    assert [outcome.root for outcome in outcomes] == order
    acker.init_many(order, order, 0)
    for root in order:
        acker.fail(root)
    assert [outcome.root for outcome in acker.poll()] == order


@pytest.mark.parametrize("shards", [1, 3])
def test_poll_returns_max_outcomes_while_available(source, connect, shards) -> None:
    acker: Acker = connect(shards=shards)
    roots = complete(acker, 2_500)
    acker.init_many([9_001, 9_002], [1, 1], 0)
    acker.fail_many([9_001, 9_002])
    found: list[Outcome] = []
    sizes = []
    while outcomes := acker.poll(max_outcomes=700):
        sizes.append(len(outcomes))
        found.extend(outcomes)
    assert sizes == [700, 700, 700, 402]
    assert {outcome.root for outcome in found} == roots | {9_001, 9_002}
    assert [len(acker.poll(max_outcomes=1)) for _ in range(2)] == [0, 0]
    acker.confirm(found)
    complete(acker, 3)
    assert [len(acker.poll(max_outcomes=1)) for _ in range(4)] == [1, 1, 1, 0]


def test_blocking_poll_returns_with_the_first_outcome(real_url, raw, connect) -> None:
    waiting, working = connect(shards=4), connect(shards=4)
    with ThreadPoolExecutor(1) as pool:
        polled = pool.submit(waiting.poll, block_ms=300_000)
        wait_until(lambda: raw.info("clients")["blocked_clients"] == 1, "the poll waits")
        complete(working, 1)
        outcomes = polled.result(timeout=120)  # much earlier than it would have by itself
    assert [outcome.root for outcome in outcomes] == [1]


def test_blocking_poll_outlasts_a_short_socket_timeout(real_url, plain) -> None:
    """A client given with a short socket timeout is not taken for a lost connection."""
    given = plain(real_url, socket_timeout=1.0)
    with Acker.connect(given, AckerConfig(app="test")) as acker:
        began = time.monotonic()
        assert acker.poll(block_ms=2_000) == []
        assert time.monotonic() - began >= 2.0
        complete(acker, 10)
        outcomes = take(acker, 10)
    assert not any(outcome.redelivered for outcome in outcomes)


def test_non_blocking_poll_returns_at_once(source, connect) -> None:
    """A server waits for ever, where it is asked to wait for 0 ms."""
    acker: Acker = connect()
    acker.poll()
    for _ in range(20):
        assert acker.poll(block_ms=0) == []


def test_lane_delivers_only_outcomes_of_its_spout_ids(source, connect) -> None:
    acker: Acker = connect(shards=2, lanes=3)
    roots_of = {spout_id: complete(acker, 50, first=spout_id * 1_000, spout_id=spout_id) for spout_id in range(6)}
    acker.init_many([90_000, 90_001], [1, 1], 4)
    acker.fail_many([90_000])
    acker.admin.rotate(force=True)
    for _ in range(3):
        acker.admin.rotate(force=True)
    roots_of[4] |= {90_000, 90_001}
    for lane in range(3):
        outcomes = acker.poll(consumer=f"spout-{lane}", lane=lane)
        assert {outcome.root for outcome in outcomes} == roots_of[lane] | roots_of[lane + 3]
        assert {outcome.spout_id % 3 for outcome in outcomes} == {lane}
        acker.confirm(outcomes)
    assert acker.poll() == []
    assert acker.stats().unconfirmed_outcomes == 0


def test_consumers_share_outcomes_without_duplicates(real_url, connect) -> None:
    acker: Acker = connect(shards=2)
    count = 6_000
    acker.init_many(np.arange(1, count + 1), np.ones(count, np.int64), 0)
    acker.ack_many(np.arange(1, count // 2 + 1), np.ones(count // 2, np.int64))
    acker.fail_many(np.arange(count // 2 + 1, count + 1))

    def consume(name: str) -> list[Outcome]:
        found: list[Outcome] = []
        with Acker.connect(real_url, acker.config) as mine:
            while outcomes := mine.poll(max_outcomes=100, consumer=name):
                found.extend(outcomes)
                mine.confirm(outcomes)
        return found

    with ThreadPoolExecutor(3) as pool:
        found = [outcome for part in pool.map(consume, ("a", "b", "c")) for outcome in part]
    assert sorted(outcome.root for outcome in found) == list(range(1, count + 1))
    assert not any(outcome.redelivered for outcome in found)


@pytest.mark.parametrize("protocol", [2, 3])
def test_provided_client_works_with_resp2_and_resp3(real_url, raw, protocol) -> None:
    given = redis.Redis.from_url(real_url, protocol=protocol)
    with Acker.connect(given, app="test", shards=2, lanes=2) as acker:
        full_round(acker)
    with Acker.connect(given, app="short", shards=1, message_timeout_secs=0.2) as acker:
        complete(acker, 5)
        assert (
            len(acker.poll(5, consumer="gone")) == 5
        )  # a poll for more would go on, and claim from itself if it took long
        found: list[Outcome] = []

        def claimed() -> bool:
            found.extend(acker.poll(5))
            return len(found) == 5

        wait_until(claimed, "what the other one left is claimed")
        assert {outcome.redelivered for outcome in found} == {True}
    assert given.ping()
    given.close()


def test_small_poll_reads_few_entries(real_url, raw, connect) -> None:
    acker: Acker = connect(shards=2)
    for first in range(1, 100_000, 2_000):
        complete(acker, 2_000, first)
    entries = sum(raw.xlen(key) for key in streams(raw))
    assert entries >= 100
    assert len(acker.poll(max_outcomes=1_000)) == 1_000
    assert sum(raw.xinfo_groups(key)[0]["pending"] for key in streams(raw)) <= 4
    assert len(acker.poll(max_outcomes=60_000)) == 60_000
    assert sum(raw.xinfo_groups(key)[0]["pending"] for key in streams(raw)) <= 0.7 * entries
