"""The oracle of random topologies finds faults that are planted in the product, and no edge of a run repeats."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from acker_redis.storm import WindowedBolt
from acker_redis.storm.core import collectors, java_hash
from acker_redis.storm.core.edges import CallEdges
from acker_redis.storm.core.windows import ArrivalWindows, Windows
from acker_redis.storm.local import spouts, updates
from acker_redis.storm.local.pending import PendingMap
from acker_redis.storm.local.queues import Queues
from tests.model_based.topologies.oracle import Wrong
from tests.model_based.topologies.play import play

MOST = 400
"""Seeds after which a planted fault has to be found."""

Plant = Callable[[pytest.MonkeyPatch], None]


def one_edge_per_call(patch: pytest.MonkeyPatch) -> None:
    """Edges without ordinal and place: equal emits of one call, and a task that is named twice, cancel each other."""
    edge = CallEdges.edge

    def planted(self: CallEdges, root: int, place: int, target: int, content: bytes) -> int:
        ordinal, self.ordinal = self.ordinal, 0
        try:
            return edge(self, root, 0, target, b"")
        finally:
            self.ordinal = ordinal

    patch.setattr(CallEdges, "edge", planted)


def one_edge_per_root(patch: pytest.MonkeyPatch) -> None:
    """Edges that derive from the root alone."""
    patch.setattr(CallEdges, "edge", lambda self, root, place, target, content: root | 1)


def children_outside_of_the_tree(patch: pytest.MonkeyPatch) -> None:
    """Emitted edges don't reach the anchor."""
    send = collectors.BoltCollector._send

    def planted(self: Any, target: int, stream: Any, values: Any, edges: Any) -> None:
        send(self, target, stream, values, None)

    patch.setattr(collectors.BoltCollector, "_send", planted)


def fails_are_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(updates.Updates, "fail", lambda self, *arguments: None)


def fails_are_acks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        collectors.BoltCollector,
        "fail",
        lambda self, tup, reason=None, **options: self.ack(tup) if not done(tup) else None,
    )

    def done(tup: Any) -> bool:
        return isinstance(tup, str) or tup.state != 0


def acks_are_lost_sometimes(patch: pytest.MonkeyPatch) -> None:
    ack, number = updates.Updates.ack, count()

    def planted(self: updates.Updates, root: int, val: int, component: str) -> None:
        ack(self, root, val ^ (next(number) % 7 == 6), component)

    patch.setattr(updates.Updates, "ack", planted)


def early_timeouts(patch: pytest.MonkeyPatch) -> None:
    """One bucket instead of two: messages time out at an age of 0 to T."""
    rotate = PendingMap.rotate

    def planted(self: PendingMap) -> Any:
        return [*rotate(self), *rotate(self)]

    patch.setattr(PendingMap, "rotate", planted)


def no_timeouts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingMap, "rotate", lambda self: [])


def resets_are_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingMap, "reset", lambda self, root: None)


def outcomes_come_twice(patch: pytest.MonkeyPatch) -> None:
    deliver = spouts.SpoutExecutor.deliver

    def planted(self: Any) -> int:
        for outcome in self.inbox[:1]:
            task = outcome.message.task
            if outcome.is_acked:
                task.ack(outcome.message.emission.tup_id, "default", 0.0)
        return deliver(self)

    patch.setattr(spouts.SpoutExecutor, "deliver", planted)


def queues_in_any_order(patch: pytest.MonkeyPatch) -> None:
    put = Queues.put

    def planted(self: Queues, sender: int, target: int, tup: Any) -> None:
        put(self, sender, target, tup)
        self._queues[sender, target].rotate(1)

    patch.setattr(Queues, "put", planted)


def tuples_are_lost_sometimes(patch: pytest.MonkeyPatch) -> None:
    put, number = Queues.put, count()

    def planted(self: Queues, sender: int, target: int, tup: Any) -> None:
        if next(number) % 50 != 49 or sender < 0:
            put(self, sender, target, tup)

    patch.setattr(Queues, "put", planted)


def another_task(patch: pytest.MonkeyPatch) -> None:
    """Fields grouping by Python's order of letters, not Java's hash."""
    patch.setattr(java_hash, "task_index", lambda values, tasks: ord(values[0][0]) % tasks)


def windows_forget_to_ack(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Windows, "_leave", lambda self, out: self._drop(out) if out else None)


def windows_ack_early(patch: pytest.MonkeyPatch) -> None:
    """The oldest tuple is acked as soon as there is another one."""
    add = ArrivalWindows.add

    def planted(self: ArrivalWindows, tup: Any, now_ms: int) -> None:
        add(self, tup, now_ms)
        if len(self._held) > 1:
            self._leave(self._held[:1])

    patch.setattr(ArrivalWindows, "add", planted)


def windows_emit_for_their_newest_tuple(patch: pytest.MonkeyPatch) -> None:
    def planted(self: WindowedBolt, window: Any) -> bool:
        with self._acker_processing(window.tuples, acks=False) as done:
            self._acker_current = window.tuples[-1:]
            self.process_window(window)
        return not done.has_failed

    patch.setattr(WindowedBolt, "_acker_fire", planted)


PLANTS: tuple[Plant, ...] = (
    one_edge_per_call, one_edge_per_root, children_outside_of_the_tree, fails_are_lost, fails_are_acks,
    acks_are_lost_sometimes, early_timeouts, no_timeouts, resets_are_lost, outcomes_come_twice, queues_in_any_order,
    tuples_are_lost_sometimes, another_task, windows_forget_to_ack, windows_ack_early,
    windows_emit_for_their_newest_tuple,
)  # fmt: skip


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(Wrong):
        for seed in range(16, MOST):
            play(seed)


@pytest.mark.parametrize("content", ["", "of values"])
def test_no_edge_of_a_run_repeats(content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the values, too: those of random topologies have serials, so that no two of them are equal."""
    seen: set[int] = set()
    edge = CallEdges.edge

    def watched(self: CallEdges, root: int, place: int, target: int, values: bytes) -> int:
        drawn = edge(self, root, place, target, values)
        assert drawn != 0
        assert drawn not in seen
        seen.add(drawn)
        return drawn

    monkeypatch.setattr(CallEdges, "edge", watched)
    if not content:
        monkeypatch.setattr(collectors, "content_of", lambda values: b"")
    for seed in range(30, 38):
        play(seed)
    assert len(seen) > 200


@pytest.mark.parametrize("seed", range(4000, 4012))
def test_trees_are_right_if_all_values_are_equal(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors, "content_of", lambda values: b"")
    play(seed)
