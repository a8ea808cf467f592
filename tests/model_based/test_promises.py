"""The promises, checked on trees of real edges: no oracle, only what is known of each tree beforehand."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from acker_redis import Acker, IdempotencyKeyReusedError
from acker_redis.model import ids
from tests.support.leaks import assert_no_leaks, run_out

PROFILE = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    print_blob=True,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)

_app_numbers = itertools.count()


@dataclass(frozen=True)
class Message:
    """What one spout or bolt sends for one tuple."""

    operation: str
    root: int
    val: int = 0


@st.composite
def trees(draw: st.DrawFn, root: int) -> list[Message]:
    """Every message of one tree: the init, and one ack per edge with the edges of the children it emitted."""
    edges = (ids.derive(root, "edge", n) for n in itertools.count())
    open_edges = [next(edges) for _ in range(draw(st.integers(0, 3)))]
    messages = [Message("init", root, _xor(open_edges))]
    for size in draw(st.lists(st.integers(0, 2), max_size=8)):
        if open_edges:
            children = [next(edges) for _ in range(size)]
            messages.append(Message("ack", root, _xor([open_edges.pop(0), *children])))
            open_edges += children
    return messages + [Message("ack", root, edge) for edge in open_edges]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Message], list[Message], list[list[Message]], list[int]]:
    """All messages of some trees, those that are lost, the others in batches, and the order in which batches come."""
    messages = [message for root in (1, -2, 2**62) for message in draw(trees(root))]
    if draw(st.booleans()):
        messages.append(Message("fail", 1))
    lost = draw(st.lists(st.sampled_from(messages), max_size=2, unique_by=id))
    rest = draw(st.permutations([m for m in messages if not any(m is gone for gone in lost)]))
    cuts = sorted(draw(st.lists(st.integers(0, len(rest)), max_size=5)))
    batches = [rest[a:b] for a, b in itertools.pairwise([0, *cuts, len(rest)]) if a < b]
    repeats = draw(st.lists(st.integers(0, max(0, len(batches) - 1)), max_size=4)) if batches else []
    return messages, lost, batches, [*range(len(batches)), *repeats]


def _xor(edges: list[int]) -> int:
    val = 0
    for edge in edges:
        val ^= edge
    return val


def _send(acker: Acker, messages: list[Message], idempotency_key: str) -> None:
    with acker.batch(idempotency_key=idempotency_key) as batch:
        for message in messages:
            if message.operation == "init":
                batch.init(message.root, message.val, spout_id=abs(message.root) % 3)
            elif message.operation == "ack":
                batch.ack(message.root, message.val)
            else:
                batch.fail(message.root)


def test_a_root_is_acked_only_if_no_message_was_lost(source: Any, raw: Any, connect: Callable[..., Acker]) -> None:
    @PROFILE
    @given(history=histories(), ticks=st.integers(0, 2), clock=st.sampled_from(("first_seen", "last_update")))
    def run(history: Any, ticks: int, clock: str) -> None:
        messages, lost, batches, order = history
        acker = connect(app=f"promises-{next(_app_numbers)}", shards=2, lanes=2, clock=clock)
        for step, number in enumerate(order):
            _send(acker, batches[number], f"batch-{number}")
            if step == len(batches) - 1:
                for _ in range(ticks):  # fewer than a root or an idempotency key lives through
                    acker.admin.rotate(force=True)
        outcomes = run_out(acker)
        ends = {outcome.root: outcome for outcome in outcomes}
        assert max(Counter(outcome.root for outcome in outcomes).values(), default=0) <= 1
        for root in {message.root for message in messages}:
            gone = {message.operation for message in lost if message.root == root}
            if "init" in gone:
                assert root not in ends
                continue
            assert ends[root].spout_id == abs(root) % 3
            if gone - {"fail"}:
                assert ends[root].kind == "fail"
            elif Message("fail", root) not in messages or "fail" in gone:
                assert ends[root].kind == "ack"
        assert_no_leaks(raw, acker.config.app)
        acker.close()

    run()


def test_late_updates_of_failed_roots_are_not_counted_as_orphans(source: Any, raw: Any, connect: Any) -> None:
    """Every third root fails, before its init or after it, and is acked, failed, initialised and reset all the same."""
    acker: Acker = connect(shards=2)
    roots, rounds, ticks = 300, 4, acker.config.num_buckets - 1
    for part in range(rounds):
        every = np.arange(1, roots + 1) + part * roots
        early, failing = every[::6], every[::3]
        acker.fail_many(early)
        acker.init_many(every, every * 3, 0)
        acker.fail_many(np.setdiff1d(failing, early), reason="bad")
        acker.ack_many(every, every, component="first")
        acker.fail_many(failing, reason="bad again")
        for _ in range(ticks):
            acker.admin.rotate(force=True)
        acker.ack_many(every, every * 3 ^ every, component="last")
        assert acker.init_many(every[::3], every[::3], 0).applied == 0
        assert acker.reset_timeout_many(failing) == 0
    stats, failed = acker.stats(), rounds * roots // 3
    assert (stats.acked, stats.failed, stats.pending, stats.unowned) == (2 * failed, failed, 0, 0)
    assert (stats.late_updates, stats.duplicate_inits, stats.fails) == (4 * failed, failed, failed)
    assert stats.closed > 0
    outcomes = run_out(acker)
    assert (len(outcomes), max(Counter(o.root for o in outcomes).values())) == (rounds * roots, 1)
    stats = acker.stats()
    assert (stats.orphaned, stats.timed_out, stats.pending, stats.unowned, stats.closed) == (0, 0, 0, 0, 0)
    assert_no_leaks(raw, "test")


@pytest.mark.parametrize("operation", ["init", "ack", "fail"])
def test_idempotency_key_is_known_when_resent_to_fewer_shards(source: Any, connect: Any, operation: str) -> None:
    acker: Acker = connect(shards=2)
    everywhere = np.arange(1, 40, dtype=np.int64)
    on_shard_1 = everywhere[ids.shard_of(everywhere.view(np.uint64), 2) == 1]

    def send(roots: Any) -> Any:
        if operation == "init":
            return acker.init_many(roots, roots, 7, idempotency_key="t")
        if operation == "ack":
            return acker.ack_many(roots, roots, idempotency_key="t")
        return acker.fail_many(roots, idempotency_key="t")

    assert send(everywhere) == (39, False)
    assert send(on_shard_1) == (0, True)
    with pytest.raises(IdempotencyKeyReusedError):
        send(on_shard_1[1:])
    assert acker.stats().deduplicated == 2
