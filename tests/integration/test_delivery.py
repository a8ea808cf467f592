"""Outcomes on their way to the spout: order, limits, waiting, confirming, redelivery, sharing."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import redis

from acker_redis import Acker, AckerConfig, ConnectionLostError, Outcome, PackedOutcomes
from acker_redis.testing import wait_until
from tests.integration.rounds import full_round, take


def streams(raw: Any, app: str = "test") -> list[bytes]:
    return [key for key in raw.scan_iter(f"acker:{{{app}:*") if b":acked:" in key or b":failed:" in key]


def unconfirmed(raw: Any) -> int:
    """Entries in the streams, and delivered ones without confirmation."""
    return sum(raw.xlen(key) + raw.xinfo_groups(key)[0]["pending"] for key in streams(raw))


def complete(acker: Acker, count: int, first: int = 1, task: int = 0) -> set[int]:
    """Roots that complete at once, packed into as few entries as the batch allows."""
    acker.init_many(np.arange(first, first + count), np.zeros(count, np.int64), task)
    return set(range(first, first + count))


def test_outcomes_come_in_the_order_in_which_roots_settled(source, connect) -> None:
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
def test_no_more_than_max_outcomes_and_no_fewer_than_there_are(source, connect, shards) -> None:
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


def test_a_poll_that_waits_returns_as_soon_as_there_is_an_outcome(real_url, raw, connect) -> None:
    waiting, working = connect(shards=4), connect(shards=4)
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        polled = pool.submit(waiting.poll, block_ms=60_000)
        wait_until(lambda: raw.info("clients")["blocked_clients"] == 1, "the poll waits")
        complete(working, 1)
        outcomes = polled.result(timeout=30)
    assert [outcome.root for outcome in outcomes] == [1]
    assert time.monotonic() - began < 20


def test_a_poll_that_waits_longer_than_the_socket_may_be_silent(real_url, plain) -> None:
    """A client given with a short socket timeout is not taken for a lost connection."""
    given = plain(real_url, socket_timeout=0.4)
    with Acker.connect(given, AckerConfig(app="test")) as acker:
        began = time.monotonic()
        assert acker.poll(block_ms=1_200) == []
        assert time.monotonic() - began >= 1.2
        complete(acker, 10)
        outcomes = take(acker, 10)
    assert not any(outcome.redelivered for outcome in outcomes)


def test_a_poll_that_does_not_wait_returns_at_once(source, connect) -> None:
    acker: Acker = connect()
    acker.poll()
    began = time.monotonic()
    for _ in range(20):
        assert acker.poll(block_ms=0) == []
    assert time.monotonic() - began < 5


def test_a_lane_holds_the_outcomes_of_its_tasks_only(source, connect) -> None:
    acker: Acker = connect(shards=2, lanes=3)
    roots_of = {task: complete(acker, 50, first=task * 1_000, task=task) for task in range(6)}
    acker.init_many([90_000, 90_001], [1, 1], 4)
    acker.fail_many([90_000])
    acker.rotate(force=True)
    for _ in range(3):
        acker.rotate(force=True)
    roots_of[4] |= {90_000, 90_001}
    for lane in range(3):
        outcomes = acker.poll(consumer=f"spout-{lane}", lane=lane)
        assert {outcome.root for outcome in outcomes} == roots_of[lane] | roots_of[lane + 3]
        assert {outcome.task % 3 for outcome in outcomes} == {lane}
        acker.confirm(outcomes)
    assert acker.poll() == []
    assert acker.stats().waiting == 0


def test_after_a_crash_the_same_consumer_gets_them_again_at_once(source, connect) -> None:
    config = {"shards": 2}
    crashed: Acker = connect(**config)
    roots = complete(crashed, 20)
    crashed.init_many([101, 102], [1, 1], 0)
    crashed.fail_many([101, 102], reason="malformed")
    first = crashed.poll(consumer="spout-a")
    assert {outcome.redelivered for outcome in first} == {False}
    crashed.confirm([outcome for outcome in first if outcome.root == 101])

    restarted: Acker = connect(**config)
    assert restarted.poll(consumer="spout-b") == []
    again = restarted.poll(consumer="spout-a")
    assert {outcome.root for outcome in again} == roots | {102}
    assert {outcome.redelivered for outcome in again} == {True}
    assert [outcome.detail for outcome in again if outcome.root == 102] == ["malformed"]
    restarted.confirm(again)
    assert connect(**config).poll(consumer="spout-a") == []


def test_after_a_crash_another_consumer_gets_them_after_a_message_timeout(source, raw, connect) -> None:
    config = {"shards": 2, "message_timeout_secs": 0.4}
    crashed: Acker = connect(**config)
    roots = complete(crashed, 20)
    began = time.monotonic()
    assert len(crashed.poll(consumer="spout-a")) == 20
    other: Acker = connect(**config)
    found: list[Outcome] = []

    def claimed() -> bool:
        found.extend(other.poll(consumer="spout-b"))
        return len(found) >= 20

    wait_until(claimed, "claimed outcomes")
    assert time.monotonic() - began >= 0.4
    assert {outcome.root for outcome in found} == roots
    assert {outcome.redelivered for outcome in found} == {True}
    assert other.confirm(found) > 0
    assert unconfirmed(raw) == 0


def test_what_a_dead_consumer_left_is_taken_over_bit_by_bit(source, raw, connect) -> None:
    """Small polls must get past entries that a living consumer holds."""
    config = {"shards": 1, "message_timeout_secs": 0.4}
    dead: Acker = connect(**config)
    dead.init_many(np.arange(1, 41), np.ones(40, np.int64), 0)
    dead.fail_many(np.arange(1, 41))
    assert len(dead.poll(consumer="dead")) == 40
    living: Acker = connect(**config)
    found: set[int] = set()

    def taken() -> bool:
        outcomes = living.poll(max_outcomes=2, consumer="living")
        living.confirm(outcomes)
        found.update(outcome.root for outcome in outcomes)
        return len(found) == 40

    wait_until(taken, "all outcomes of the dead consumer", 3)
    assert unconfirmed(raw) == 0


def test_a_packed_entry_is_confirmed_with_its_last_outcome(source, raw, connect) -> None:
    config = {"shards": 1}
    acker: Acker = connect(**config)
    roots = complete(acker, 10)
    (stream,) = [key for key in streams(raw) if raw.xlen(key)]
    assert raw.xlen(stream) == 1
    outcomes = acker.poll()
    assert acker.confirm(outcomes[:9]) == 0
    assert raw.xlen(stream) == 1
    assert {outcome.root for outcome in connect(**config).poll()} == roots
    assert acker.confirm(outcomes[9:]) == 1
    assert unconfirmed(raw) == 0
    assert connect(**config).poll() == []


def test_confirming_twice_changes_nothing(source, raw, connect) -> None:
    acker: Acker = connect(shards=1)
    complete(acker, 10)
    outcomes = acker.poll()
    assert acker.confirm(outcomes) == 1
    assert acker.confirm(outcomes) == 0
    assert acker.confirm([]) == 0
    complete(acker, 5)
    assert acker.confirm(outcomes) == 0
    assert len(acker.poll()) == 5


def test_confirmed_outcomes_leave_nothing(real_url, raw, connect) -> None:
    acker: Acker = connect(shards=2, lanes=2)

    def round_trip(first: int) -> int:
        roots = np.arange(first, first + 2_000)
        acker.init_many(roots, roots, 1)
        acker.ack_many(roots[:1_000], roots[:1_000])
        acker.fail_many(roots[1_000:])
        take(acker, 2_000)
        acker.rotate(force=True)
        assert unconfirmed(raw) == 0
        return sum(raw.memory_usage(key) for key in raw.scan_iter())

    sizes = [round_trip(1 + number * 2_000) for number in range(12)]
    assert sizes[-1] <= sizes[3] * 1.1


def test_consumers_share_the_work_and_no_outcome_is_given_twice(real_url, connect) -> None:
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
def test_a_client_given_may_speak_either_protocol(real_url, raw, protocol) -> None:
    given = redis.Redis.from_url(real_url, protocol=protocol)
    config = AckerConfig(app="test", shards=2, lanes=2, message_timeout_secs=0.2)
    with Acker.connect(given, config) as acker:
        full_round(acker)
        complete(acker, 5)
        assert len(acker.poll(consumer="gone")) == 5
        assert {outcome.redelivered for outcome in take(acker, 5)} == {True}
    assert given.ping()
    given.close()


def test_an_error_does_not_swallow_what_was_taken_off_the_streams(url, raw, connect) -> None:
    acker: Acker = connect(shards=1)
    acker.init_many(np.arange(1, 11), np.zeros(10, np.int64), 0)
    assert len(acker.poll(max_outcomes=4)) == 4
    raw.flushall()
    assert len(acker.poll()) == 6


def test_the_process_that_lost_its_place_gets_unconfirmed_outcomes_again(source, raw, connect) -> None:
    """Without a restart: whoever took outcomes and did not confirm them gets them again after a message timeout."""
    acker: Acker = connect(shards=2, message_timeout_secs=0.2)
    roots = complete(acker, 20)
    assert {outcome.redelivered for outcome in acker.poll()} == {False}
    found: list[Outcome] = []

    def again() -> bool:
        found.extend(acker.poll())
        return len(found) >= 20

    wait_until(again, "the outcomes again")
    assert {outcome.root for outcome in found} == roots
    assert {outcome.redelivered for outcome in found} == {True}
    acker.confirm(found)
    assert unconfirmed(raw) == 0


def test_what_was_read_and_not_handed_out_yet_is_not_claimed_from_oneself(source, connect) -> None:
    acker: Acker = connect(shards=1, message_timeout_secs=0.05)
    complete(acker, 30)
    found = acker.poll(max_outcomes=10)

    def one_by_one() -> bool:
        found.extend(acker.poll(max_outcomes=1))
        return len(found) >= 30

    wait_until(one_by_one, "the others, after more than a message timeout")  # which looks 50 times a second
    assert sorted(outcome.root for outcome in found) == list(range(1, 31))
    assert not any(outcome.redelivered for outcome in found)


def test_a_confirm_that_met_an_error_can_be_repeated(real_url, raw, connect, monkeypatch) -> None:
    acker: Acker = connect(shards=1)
    complete(acker, 10)
    outcomes = acker.poll()
    with monkeypatch.context() as patch:
        patch.setattr(acker._client, "run", lambda calls: [ConnectionLostError("cut")] * len(calls))
        with pytest.raises(ConnectionLostError):
            acker.confirm(outcomes)
    assert acker.confirm(outcomes) == 1
    assert unconfirmed(raw) == 0


def test_a_small_poll_takes_about_what_it_was_asked_for(real_url, raw, connect) -> None:
    acker: Acker = connect(shards=2)
    for first in range(1, 100_000, 2_000):
        complete(acker, 2_000, first)
    entries = sum(raw.xlen(key) for key in streams(raw))
    assert entries >= 100
    assert len(acker.poll(max_outcomes=1_000)) == 1_000
    assert sum(raw.xinfo_groups(key)[0]["pending"] for key in streams(raw)) <= 4
    assert len(acker.poll(max_outcomes=60_000)) == 60_000
    assert sum(raw.xinfo_groups(key)[0]["pending"] for key in streams(raw)) <= 0.7 * entries


def test_outcomes_whose_reply_was_lost_are_handed_out_when_asked_for_again(source, raw, connect) -> None:
    acker: Acker = connect(shards=1)
    acker.poll_packed()
    roots = complete(acker, 10)
    raw.xreadgroup("spout", "spout", {"acker:{test:0}:acked:0": ">"})  # the reply of the same consumer, lost
    assert acker.poll_packed() == []
    (packed,) = acker.poll_packed(again=True)
    assert set(packed.roots.tolist()) == roots
    assert packed.redelivered
    acker.confirm_packed([packed])
    assert acker.poll_packed(again=True) == []


def time_out(acker: Acker, roots: Any, task: int = 0) -> None:
    acker.init_many(roots, np.ones(len(roots), np.int64), task)
    expire(acker)


def expire(acker: Acker) -> None:
    for _ in range(acker.config.num_buckets):
        acker.rotate(force=True)


def roots_of(packed: list[PackedOutcomes]) -> list[int]:
    return sorted(root for one in packed for root in one.roots.tolist())


def test_outcomes_that_are_alike_come_in_few_packs(real_url, raw, connect) -> None:
    acker: Acker = connect(shards=4)
    roots = np.random.default_rng(7).integers(-(2**63), 2**63 - 1, 10_000)
    time_out(acker, roots)
    packed = acker.poll_packed(max_outcomes=10_000)
    assert roots_of(packed) == sorted(roots.tolist())
    assert len(packed) <= 50
    assert {(one.kind, one.task, one.reason, one.last_stage, one.detail, one.redelivered) for one in packed} == {
        ("fail", 0, "timeout", None, None, False)
    }
    assert acker.confirm_packed(packed) == 10_000
    assert unconfirmed(raw) == 0


def test_outcomes_that_differ_come_in_packs_of_their_own(source, raw, connect) -> None:
    acker: Acker = connect(shards=1)
    for task in (0, 1):
        roots = np.arange(24) + 1_000 * task
        acker.init_many(roots, np.ones(24, np.int64), task)
        acker.ack_many(roots[::2], np.full(12, 2), stage="parse")
        acker.fail_many(roots[0:4])
        acker.fail_many(roots[4:8], stage="write")
        acker.fail_many(roots[8:12], reason="full", stage="write")
        acker.fail_many(roots[12:16], reason="vollständig", stage="write")
    expire(acker)
    packed = acker.poll_packed()
    found = {(one.task, one.reason, one.last_stage, one.detail): sorted(one.roots.tolist()) for one in packed}
    assert len(found) == len(packed)
    expected: dict[tuple[int, str | None, str | None, str | None], list[int]] = {
        **{(task, "failed", "parse", None): [1_000 * task + i for i in (0, 2)] for task in (0, 1)},
        **{(task, "failed", None, None): [1_000 * task + i for i in (1, 3)] for task in (0, 1)},
        **{(task, "failed", "write", None): [1_000 * task + i for i in range(4, 8)] for task in (0, 1)},
        **{(task, "failed", "write", "full"): [1_000 * task + i for i in range(8, 12)] for task in (0, 1)},
        **{(task, "failed", "write", "vollständig"): [1_000 * task + i for i in range(12, 16)] for task in (0, 1)},
        **{(task, "timeout", "parse", None): [1_000 * task + i for i in range(16, 24, 2)] for task in (0, 1)},
        **{(task, "timeout", None, None): [1_000 * task + i for i in range(17, 24, 2)] for task in (0, 1)},
    }
    assert found == expected
    some = [one for one in packed if one.task == 1]
    assert acker.confirm_packed(some) == 24
    assert raw.xlen("acker:{test:0}:failed:0") == 24
    again = connect(shards=1).poll_packed()
    assert {one.task for one in again} == {0}
    assert acker.confirm_packed(again) == 24
    assert unconfirmed(raw) == 0


def test_packs_that_were_not_confirmed_are_delivered_again_as_a_whole(source, raw, connect) -> None:
    acker: Acker = connect(shards=2)
    time_out(acker, np.arange(200))
    complete(acker, 200, first=1_000)
    first = acker.poll_packed()
    assert not any(one.redelivered for one in first)
    acker.confirm_packed([one for one in first if one.kind == "ack"])
    again = connect(shards=2).poll_packed()
    assert roots_of(again) == list(range(200))
    assert all(one.redelivered for one in again)
    acker.confirm_packed(first)
    assert unconfirmed(raw) == 0
    assert connect(shards=2).poll_packed() == []


def test_a_packed_poll_takes_no_more_fails_than_it_was_asked_for(source, connect) -> None:
    acker: Acker = connect(shards=2)
    time_out(acker, np.arange(500))
    sizes = []
    while packed := acker.poll_packed(max_outcomes=150):
        sizes.append(len(roots_of(packed)))
        acker.confirm_packed(packed)
    assert sizes == [150, 150, 150, 50]


def test_what_was_read_ahead_is_handed_out_once(source, raw, connect) -> None:
    acker: Acker = connect(shards=2)
    time_out(acker, np.arange(900))
    found = [roots_of(acker.poll_packed(max_outcomes=200))]
    found.append(roots_of(acker.poll_packed(max_outcomes=200)))
    found.append(roots_of(acker.poll_packed(max_outcomes=200, again=True)))  # begins with both, again
    while packed := acker.poll_packed(max_outcomes=200):
        found.append(roots_of(packed))
    taken = sorted(root for part in found for root in part)
    assert sorted(set(taken)) == list(range(900))
    assert len(taken) == 900 + sum(map(len, found[:2]))


@pytest.mark.parametrize("way", ["ends", "recovers"])
def test_what_was_read_ahead_and_not_handed_out_is_not_lost(source, raw, connect, way) -> None:
    acker: Acker = connect(shards=1)
    time_out(acker, np.arange(600))
    acker.confirm_packed(packed := acker.poll_packed(max_outcomes=100))
    taken = roots_of(packed)
    if way == "ends":
        acker.close()
        acker = connect(shards=1)
    else:
        acker.recover()
    while packed := acker.poll_packed(max_outcomes=100):
        taken += roots_of(packed)
        acker.confirm_packed(packed)
    assert sorted(taken) == list(range(600))
    assert unconfirmed(raw) == 0


def test_an_error_met_while_reading_ahead_comes_with_the_next_poll(source, connect, monkeypatch) -> None:
    acker: Acker = connect(shards=1)
    time_out(acker, np.arange(300))
    assert len(acker.poll(max_outcomes=1)) == 1
    pipeline, failures = acker._client.pipeline, iter([None, ConnectionLostError("gone")])

    def failing_the_second(commands: Any, **options: Any) -> Any:
        replies = pipeline(commands, **options)
        if any(b"XREADGROUP" in command for command in commands) and (failure := next(failures, None)):
            raise failure  # the reply is lost, the entries are this consumer's
        return replies

    monkeypatch.setattr(acker._client, "pipeline", failing_the_second)
    first = acker.poll_packed(max_outcomes=100)
    with pytest.raises(ConnectionLostError):
        acker.poll_packed(max_outcomes=100)
    taken = roots_of(first)
    while packed := acker.poll_packed(max_outcomes=100):
        taken += roots_of(packed)
    assert set(taken) >= set(range(300)) - {0}


def test_one_poll_may_go_on_where_the_other_ended(source, raw, connect) -> None:
    acker: Acker = connect(shards=1)
    time_out(acker, np.arange(20))
    outcomes = acker.poll(max_outcomes=7)
    packed = acker.poll_packed(max_outcomes=5)  # reads ahead for whoever polls next
    outcomes += acker.poll()
    assert sorted([outcome.root for outcome in outcomes] + roots_of(packed)) == list(range(20))
    assert acker.confirm(outcomes) + acker.confirm_packed(packed) == 20
    assert unconfirmed(raw) == 0


def test_no_command_reads_so_much_that_it_holds_the_server(connect, source, monkeypatch) -> None:
    acker: Acker = connect(shards=8)
    sent: list[tuple[Any, ...]] = []
    pipeline = acker._client.pipeline

    def noting(commands: Any, **options: Any) -> Any:
        sent.extend(commands)
        return pipeline(commands, **options)

    monkeypatch.setattr(acker._client, "pipeline", noting)
    for wanted in (1_000, 5_000, 10_000, 1_000_000):
        acker.poll_packed(max_outcomes=wanted)
    reads = [tuple(str(part) for part in command) for command in sent if "COUNT" in command]
    streams = [(len(read) - read.index("STREAMS") - 1) // 2 if "STREAMS" in read else 1 for read in reads]
    entries = [int(read[read.index("COUNT") + 1]) * among for read, among in zip(reads, streams, strict=True)]
    assert len(entries) > 16
    assert max(entries) <= 1_000


@pytest.mark.parametrize("consumer", ["spout", "another"])
def test_entries_that_were_deleted_are_dropped_from_the_group(source, raw, connect, consumer) -> None:
    """By hand, or by a server that lost its last writes: there is nothing to deliver any more."""
    config = {"shards": 1, "message_timeout_secs": 0.05}
    acker: Acker = connect(**config)
    time_out(acker, np.arange(6))
    assert len(roots_of(acker.poll_packed(consumer="spout"))) == 6
    failed = "acker:{test:0}:failed:0"
    raw.xdel(failed, *(entry_id for entry_id, _ in raw.xrange(failed)[1:4]))
    found: list[PackedOutcomes] = []
    other: Acker = connect(**config)

    def taken() -> bool:
        found.extend(other.poll_packed(consumer=consumer))
        return len(roots_of(found)) == 3

    wait_until(taken, "what is left")
    other.confirm_packed(found)
    assert other.poll_packed(consumer=consumer, again=True) == []  # Redis 6.2 names those claimed only now
    assert unconfirmed(raw) == 0
