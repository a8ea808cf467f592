"""Batching bolts: groups, ticks, numbers, exceptions, anchors."""

from typing import Any

import pytest

from acker_redis.storm import BatchingBolt, RowFailedError, TicklessBatchingBolt, Tuple
from tests.storm.contract.parts import Keeps, Sink, fed, rows

EACH_SECOND = {"topology.tick.tuple.freq.secs": 1}


class Sums(BatchingBolt):
    """Emits the key and the size of each batch. A batch that has the value `dies` raises."""

    outputs = ["key", "n"]

    def group_key(self, tup: Tuple) -> Any:
        return str(tup.values.v)[0]

    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        self.emit([key, len(tups)])
        if any(str(tup.values.v).endswith("dies") for tup in tups):
            raise RowFailedError(f"batch {key}")


def feed(run: Any, *values: str) -> None:
    for value in values:
        run.feed("spout", [value], tup_id=value)
    run.settle()


def test_a_tick_processes_all_batches_by_key() -> None:
    with fed(Sums, Sink, config=EACH_SECOND).local() as run:
        feed(run, "a1", "b1", "a2")
        assert rows(run, "b0") == []
        assert run.acked("spout") == []
        run.advance(1)
        assert sorted(rows(run, "b0")) == [("a", 2), ("b", 1)]
        assert sorted(run.acked("spout")) == ["a1", "a2", "b1"]


def test_an_idle_tick_makes_no_batch() -> None:
    with fed(Sums, Sink, config=EACH_SECOND).local() as run:
        feed(run, "a1")
        run.advance(5)
        assert rows(run, "b0") == [("a", 1)]


@pytest.mark.parametrize("between", [1, 2, 3])
def test_ticks_between_batches_counts_ticks(between: int) -> None:
    bolt = type("Rare", (Sums,), {"ticks_between_batches": between})
    with fed(bolt, Sink, config=EACH_SECOND).local() as run:
        for number in range(1, 4):
            feed(run, f"a{number}")
            run.advance(between - 1)
            assert len(rows(run, "b0")) == number - 1
            run.advance(1)
            assert len(rows(run, "b0")) == number


def test_without_group_key_all_tuples_are_one_batch() -> None:
    class One(BatchingBolt):
        outputs = ["key", "n"]

        def process_batch(self, key: Any, tups: list[Tuple]) -> None:
            self.emit([key, len(tups)])

    with fed(One, Sink, config=EACH_SECOND).local() as run:
        feed(run, "a1", "b1")
        run.advance(1)
        assert rows(run, "b0") == [(None, 2)]


def test_batch_size_processes_by_number_without_ticks() -> None:
    bolt = type("Two", (Sums,), {"batch_size": 2})
    with fed(bolt, Sink).local() as run:
        feed(run, "a1", "a2", "a3")
        assert rows(run, "b0") == [("a", 2)]
        assert sorted(run.acked("spout")) == ["a1", "a2"]
        assert run.pending("spout") == ["a3"]


def test_a_batch_is_anchored_to_all_of_its_tuples_and_to_no_other() -> None:
    with fed(Sums, Keeps, config=EACH_SECOND).local() as run:
        feed(run, "a1", "b1", "a2")
        run.advance(1)
        [keeper] = run.tasks("b1")
        assert run.acked("spout") == []
        for tup in keeper.held:
            if tup.values.key == "a":
                keeper.fail(tup, "no a")
            else:
                keeper.ack(tup)
        run.settle()
        assert run.acked("spout") == ["b1"]
        assert sorted(run.failed("spout")) == [("a1", "no a"), ("a2", "no a")]


def test_an_exception_fails_the_current_batch_only() -> None:
    with fed(Sums, Sink, config=EACH_SECOND).local() as run:
        feed(run, "a1", "b1", "b dies", "c1")
        run.advance(1)
        assert sorted(run.acked("spout")) == ["a1", "c1"]
        assert sorted(run.failed("spout")) == [("b dies", "batch b"), ("b1", "batch b")]
        feed(run, "b2")
        run.advance(1)
        assert "b2" in run.acked("spout")


def test_a_failed_batch_by_number_leaves_the_others() -> None:
    bolt = type("Two", (Sums,), {"batch_size": 2})
    with fed(bolt, Sink).local() as run:
        feed(run, "a1", "b1", "b dies", "a2")
        assert sorted(run.acked("spout")) == ["a1", "a2"]
        assert sorted(tup_id for tup_id, _ in run.failed("spout")) == ["b dies", "b1"]


def test_process_batches_processes_what_is_held() -> None:
    class Flushes(Sums):
        def process(self, tup: Tuple) -> None:
            super().process(tup)
            if tup.values.v == "flush":
                self.process_batches()

    with fed(Flushes, Sink).local() as run:
        feed(run, "a1", "b1", "flush")
        assert sorted(rows(run, "b0")) == [("a", 1), ("b", 1), ("f", 1)]
        assert sorted(run.acked("spout")) == ["a1", "b1", "flush"]


def test_keys_may_be_unhashable_or_mixed() -> None:
    class Mixed(Sums):
        def group_key(self, tup: Tuple) -> Any:
            return (1, tup.values.v) if tup.values.v == "a1" else None

    with fed(Mixed, Sink, config=EACH_SECOND).local() as run:
        feed(run, "a1", "b1")
        run.advance(1)
        assert sorted(n for _, n in rows(run, "b0")) == [1, 1]


def test_tickless_batches_come_without_a_setting() -> None:
    class Tickless(TicklessBatchingBolt):
        outputs = ["key", "n"]
        secs_between_batches = 3

        def process_batch(self, key: Any, tups: list[Tuple]) -> None:
            self.emit([key, len(tups)])

    with fed(Tickless, Sink).local() as run:
        feed(run, "a1", "b1")
        run.advance(2)
        assert rows(run, "b0") == []
        run.advance(1)
        assert rows(run, "b0") == [(None, 2)]
        assert sorted(run.acked("spout")) == ["a1", "b1"]


def test_an_exception_in_group_key_fails_its_tuple_only() -> None:
    class Picky(Sums):
        def group_key(self, tup: Tuple) -> Any:
            if tup.values.v == "x":
                raise ValueError("no key")
            return super().group_key(tup)

    with fed(Picky, Sink, config=EACH_SECOND).local() as run:
        feed(run, "a1", "x")
        assert run.failed("spout") == [("x", "ValueError: no key")]
        run.advance(1)
        assert run.acked("spout") == ["a1"]


def test_a_batch_that_is_held_too_long_times_out_and_is_processed_all_the_same() -> None:
    bolt = type("Rare", (Sums,), {"ticks_between_batches": 10})
    with fed(bolt, Sink, config=EACH_SECOND).local({"topology.message.timeout.secs": 2}) as run:
        feed(run, "a1")
        run.advance(10)
        assert run.failed("spout") == [("a1", "timeout")]
        assert rows(run, "b0") == [("a", 1)]
        assert run.acked("spout") == []


def test_without_auto_fail_a_batch_that_raises_stays_pending() -> None:
    bolt = type("Keeps", (Sums,), {"auto_fail": False})
    with fed(bolt, Sink, config=EACH_SECOND).local({"topology.message.timeout.secs": 5}) as run:
        feed(run, "a dies", "b1")
        run.advance(1)
        assert (run.acked("spout"), run.failed("spout"), run.pending("spout")) == (["b1"], [], ["a dies"])
        run.advance(10)
        assert run.failed("spout") == [("a dies", "timeout")]


def test_untracked_tuples_are_batched_with_the_others() -> None:
    with fed(Sums, Sink, config=EACH_SECOND).local() as run:
        run.feed("spout", ["a1"])
        feed(run, "a2")
        run.advance(1)
        assert rows(run, "b0") == [("a", 2)]
        assert run.acked("spout") == ["a2"]
