"""Outcomes in packs: what is alike together, read ahead, whole entries."""

from typing import Any

import numpy as np
import pytest

from acker_redis import Acker, ConnectionLostError
from acker_redis.acker import app_of
from tests.support.outcomes import complete, expire, roots_of, time_out, unconfirmed


def test_similar_outcomes_arrive_in_few_batches(real_url, raw, connect) -> None:
    acker: Acker = connect(shards=4)
    roots = np.random.default_rng(7).integers(-(2**63), 2**63 - 1, 10_000)
    time_out(acker, roots)
    packed = acker.poll_batches(max_outcomes=10_000)
    assert roots_of(packed) == sorted(roots.tolist())
    assert len(packed) <= 50
    assert {
        (one.kind, one.spout_id, one.reason, one.last_component, one.detail, one.redelivered) for one in packed
    } == {("fail", 0, "timeout", None, None, False)}
    assert acker.confirm_batches(packed) == 10_000
    assert unconfirmed(raw) == 0


def test_long_entry_of_acks_arrives_whole(source, raw, connect) -> None:
    """One call acks so many roots that they are one entry of the stream, and one batch."""
    acker: Acker = connect(shards=1)
    roots = complete(acker, 5_000)
    packed = acker.poll_batches(max_outcomes=10_000)
    assert roots_of(packed) == sorted(roots)
    assert max(len(one.roots) for one in packed) > 1_000
    acker.confirm_batches(packed)
    assert unconfirmed(raw) == 0


def test_differing_outcomes_arrive_in_separate_batches(source, raw, connect) -> None:
    acker: Acker = connect(shards=1)
    for spout_id in (0, 1):
        roots = np.arange(24) + 1_000 * spout_id
        acker.init_many(roots, np.ones(24, np.int64), spout_id)
        acker.ack_many(roots[::2], np.full(12, 2), component="parse")
        acker.fail_many(roots[0:4])
        acker.fail_many(roots[4:8], component="write")
        acker.fail_many(roots[8:12], reason="full", component="write")
        acker.fail_many(roots[12:16], reason="vollständig", component="write")
    expire(acker)
    packed = acker.poll_batches()
    found = {(one.spout_id, one.reason, one.last_component, one.detail): sorted(one.roots.tolist()) for one in packed}
    assert len(found) == len(packed)
    expected: dict[tuple[int, str | None, str | None, str | None], list[int]] = {
        **{(spout_id, "failed", "parse", None): [1_000 * spout_id + i for i in (0, 2)] for spout_id in (0, 1)},
        **{(spout_id, "failed", None, None): [1_000 * spout_id + i for i in (1, 3)] for spout_id in (0, 1)},
        **{(spout_id, "failed", "write", None): [1_000 * spout_id + i for i in range(4, 8)] for spout_id in (0, 1)},
        **{(spout_id, "failed", "write", "full"): [1_000 * spout_id + i for i in range(8, 12)] for spout_id in (0, 1)},
        **{
            (spout_id, "failed", "write", "vollständig"): [1_000 * spout_id + i for i in range(12, 16)]
            for spout_id in (0, 1)
        },
        **{
            (spout_id, "timeout", "parse", None): [1_000 * spout_id + i for i in range(16, 24, 2)]
            for spout_id in (0, 1)
        },
        **{(spout_id, "timeout", None, None): [1_000 * spout_id + i for i in range(17, 24, 2)] for spout_id in (0, 1)},
    }
    assert found == expected
    some = [one for one in packed if one.spout_id == 1]
    assert acker.confirm_batches(some) == 24
    assert raw.xlen("acker:{test:0}:failed:0") == 24
    again = connect(shards=1).poll_batches()
    assert {one.spout_id for one in again} == {0}
    assert acker.confirm_batches(again) == 24
    assert unconfirmed(raw) == 0


def test_unconfirmed_batches_are_redelivered_whole(source, raw, connect) -> None:
    acker: Acker = connect(shards=2)
    time_out(acker, np.arange(200))
    complete(acker, 200, first=1_000)
    first = acker.poll_batches()
    assert not any(one.redelivered for one in first)
    acker.confirm_batches([one for one in first if one.kind == "ack"])
    again = connect(shards=2).poll_batches()
    assert roots_of(again) == list(range(200))
    assert all(one.redelivered for one in again)
    acker.confirm_batches(first)
    assert unconfirmed(raw) == 0
    assert connect(shards=2).poll_batches() == []


def test_poll_batches_returns_at_most_max_outcomes_fails(source, connect) -> None:
    acker: Acker = connect(shards=2)
    time_out(acker, np.arange(500))
    sizes = []
    while packed := acker.poll_batches(max_outcomes=150):
        sizes.append(len(roots_of(packed)))
        acker.confirm_batches(packed)
    assert sizes == [150, 150, 150, 50]


def test_outcomes_read_ahead_are_delivered_once(source, raw, connect) -> None:
    acker: Acker = connect(shards=2)
    time_out(acker, np.arange(900))
    found = [roots_of(acker.poll_batches(max_outcomes=200))]
    found.append(roots_of(acker.poll_batches(max_outcomes=200)))
    found.append(roots_of(acker.poll_batches(max_outcomes=200, again=True)))  # begins with both, again
    while packed := acker.poll_batches(max_outcomes=200):
        found.append(roots_of(packed))
    taken = sorted(root for part in found for root in part)
    assert sorted(set(taken)) == list(range(900))
    assert len(taken) == 900 + sum(map(len, found[:2]))


@pytest.mark.parametrize("way", ["ends", "recovers"])
def test_outcomes_read_ahead_survive_close_and_recover(source, raw, connect, way) -> None:
    acker: Acker = connect(shards=1)
    time_out(acker, np.arange(600))
    acker.confirm_batches(packed := acker.poll_batches(max_outcomes=100))
    taken = roots_of(packed)
    if way == "ends":
        acker.close()
        acker = connect(shards=1)
    else:
        acker.reopen()
    while packed := acker.poll_batches(max_outcomes=100):
        taken += roots_of(packed)
        acker.confirm_batches(packed)
    assert sorted(taken) == list(range(600))
    assert unconfirmed(raw) == 0


def test_error_while_reading_ahead_is_raised_by_the_next_poll(source, connect, monkeypatch) -> None:
    acker: Acker = connect(shards=1)
    time_out(acker, np.arange(300))
    assert len(acker.poll(max_outcomes=1)) == 1
    pipeline_each, failures = app_of(acker).client.pipeline_each, iter([None, ConnectionLostError("gone")])

    def failing_the_second(commands: Any, **options: Any) -> Any:
        replies = pipeline_each(commands, **options)
        if any(b"XREADGROUP" in command for command in commands) and (failure := next(failures, None)):
            return [failure] * len(commands)  # the replies are lost, the entries are this consumer's
        return replies

    monkeypatch.setattr(app_of(acker).client, "pipeline_each", failing_the_second)
    first = acker.poll_batches(max_outcomes=100)
    with pytest.raises(ConnectionLostError):
        acker.poll_batches(max_outcomes=100)
    taken = roots_of(first)
    while packed := acker.poll_batches(max_outcomes=100):
        taken += roots_of(packed)
    assert set(taken) >= set(range(300)) - {0}


def test_poll_and_poll_batches_can_be_mixed(source, raw, connect) -> None:
    acker: Acker = connect(shards=1)
    time_out(acker, np.arange(20))
    outcomes = acker.poll(max_outcomes=7)
    packed = acker.poll_batches(max_outcomes=5)  # reads ahead for whoever polls next
    outcomes += acker.poll()
    assert sorted([outcome.root for outcome in outcomes] + roots_of(packed)) == list(range(20))
    assert acker.confirm(outcomes) + acker.confirm_batches(packed) == 20
    assert unconfirmed(raw) == 0


def test_stream_reads_are_bounded_to_1000_entries(connect, source, monkeypatch) -> None:
    acker: Acker = connect(shards=8)
    sent: list[tuple[Any, ...]] = []
    send = app_of(acker).client._send

    def noting(commands: Any, *options: Any) -> Any:
        sent.extend(commands)
        return send(commands, *options)

    monkeypatch.setattr(app_of(acker).client, "_send", noting)
    for wanted in (1_000, 5_000, 10_000, 1_000_000):
        acker.poll_batches(max_outcomes=wanted)
    reads = [tuple(str(part) for part in command) for command in sent if "COUNT" in command]
    streams = [(len(read) - read.index("STREAMS") - 1) // 2 if "STREAMS" in read else 1 for read in reads]
    entries = [int(read[read.index("COUNT") + 1]) * among for read, among in zip(reads, streams, strict=True)]
    assert len(entries) > 16
    assert max(entries) <= 1_000
