"""Batching bolts: by ticks, by number, by time."""

from typing import Any

import pytest

from acker_redis.storm import BatchingBolt, RowFailedError, TicklessBatchingBolt
from acker_redis.testing import fake_acker
from tests.storm.parts import SEEDS, Upto, chain, holding, sink

TICKS = {"topology.tick.tuple.freq.secs": 1, "topology.message.timeout.secs": 30}


class Even(BatchingBolt):
    outputs = ["even", "n"]

    def group_key(self, tup: Any) -> bool:
        return bool(tup.values.v % 2 == 0)

    def process_batch(self, key: Any, tups: list[Any]) -> None:
        self.emit([key, len(tups)])
        if getattr(self, "bad", None) == key:
            raise ValueError("bad")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ticks", [1, 3])
def test_batches_are_processed_at_every_nth_tick_and_acked(ticks: int, seed: int) -> None:
    bolt = Even()
    bolt.ticks_between_batches = ticks
    with chain(bolt, sink(), spout=Upto(5), config=TICKS).local(seed=seed) as run:
        run.settle()
        assert len(run.pending("spout")) == 5
        run.advance(ticks - 0.5)
        assert run.emitted("a") == []
        run.advance(0.5)
        assert sorted(run.emitted("a")) == [(False, 3), (True, 2)]
        assert len(run.acked("spout")) == 5


def test_emits_of_a_batch_are_anchored_to_all_of_its_tuples() -> None:
    with chain(Even(), holding(), spout=Upto(5), config=TICKS).local() as run:
        run.advance(1)
        assert run.acked("spout") == []
        held = {tuple(tup.values): tup for tup in run.tasks("b")[0].held if not tup.is_tick}
        run.tasks("b")[0].ack(held[True, 2])
        run.settle()
        assert sorted(run.acked("spout")) == ["m2", "m4"]


def test_exception_fails_the_current_batch_only() -> None:
    bolt = Even()
    bolt.bad = True  # type: ignore[attr-defined]
    with chain(bolt, sink(), spout=Upto(5), config=TICKS).local() as run:
        run.advance(1)
        assert sorted(run.acked("spout")) == ["m1", "m3", "m5"]
        assert sorted(run.failed("spout")) == [("m2", "ValueError: bad"), ("m4", "ValueError: bad")]


def test_fresh_copy_after_an_exception_fails_the_other_batches_that_were_held() -> None:
    class Fragile(Even):
        exit_on_exception = True
        batch_size = 2

        def process_batch(self, key: Any, tups: list[Any]) -> None:
            raise ValueError("bad")

    with chain(Fragile, sink(), spout=Upto(3)).local() as run:
        run.settle()
        assert len(run.failed("spout")) == 3 and run.pending("spout") == []


def test_batch_size_processes_a_full_batch_at_once() -> None:
    class Three(BatchingBolt):
        outputs = ["n"]
        batch_size = 3

        def process_batch(self, key: Any, tups: list[Any]) -> None:
            self.emit([len(tups)])

    with chain(Three(), spout=Upto(7)).local() as run:
        run.settle()
        assert run.emitted("a") == [(3,), (3,)]
        assert len(run.acked("spout")) == 6 and run.pending("spout") == ["m7"]


def test_group_key_that_raises_fails_its_tuple_only() -> None:
    class Picky(Even):
        def group_key(self, tup: Any) -> bool:
            if tup.values.v == 2:
                raise RowFailedError("no key")
            return True

    with chain(Picky(), sink(), spout=Upto(3), config=TICKS).local() as run:
        run.advance(1)
        assert sorted(run.acked("spout")) == ["m1", "m3"] and run.failed("spout") == [("m2", "no key")]


def test_tickless_bolt_processes_by_time() -> None:
    class Timed(TicklessBatchingBolt):
        outputs = ["n"]
        secs_between_batches = 2.5

        def process_batch(self, key: Any, tups: list[Any]) -> None:
            self.emit([len(tups)])

    with chain(Timed(), spout=Upto(5)).local() as run:
        run.advance(2.4)
        assert run.emitted("a") == []
        run.advance(0.1)
        assert run.emitted("a") == [(5,)] and len(run.acked("spout")) == 5
        run.advance(5)
        assert run.emitted("a") == [(5,)]


@pytest.mark.parametrize("own", [{"batch_size": 10}, {"config": {"topology.tick.tuple.freq.secs": 1}}])
def test_batches_of_untracked_tuples_are_processed_at_the_end_of_a_run_too(own: dict[str, Any]) -> None:
    """Upstream first, so that a bolt gets its tuples before its own batch is processed."""

    class Untracked(Upto):
        def next_tuple(self) -> None:
            if self.n < self.most:
                self.n += 1
                self.emit([self.n])

    class Counts(BatchingBolt):
        outputs = ["v"]

        def process_batch(self, key: Any, tups: list[Any]) -> None:
            self.emit([len(tups)])

    first, last = type("First", (Even,), {"outputs": ["v", "n"], **own}), type("Last", (Counts,), own)
    result = chain(first, last, spout=Untracked(5)).run_local(fake_acker())
    assert result.metrics["a"].emitted == {"default": 2} and result.metrics["b"].emitted == {"default": 1}


def test_a_bolt_that_emits_at_each_end_of_its_batches_doesnt_hold_up_the_end() -> None:
    class Summary(BatchingBolt):
        outputs = ["n"]

        def process_batch(self, key: Any, tups: list[Any]) -> None: ...

        def process_batches(self) -> None:
            super().process_batches()
            self.emit([0])

    result = chain(Summary, sink(), spout=Upto(2), config=TICKS).run_local(fake_acker())
    assert (result.acked, result.unfinished) == (2, 0) and result.metrics["b"].executed["a:default"] >= 2


def test_batches_that_nothing_would_process_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "acker_redis.storm"), chain(Even(), spout=Upto(1)).local():
        pass
    assert [record.getMessage() for record in caplog.records] == [
        "batches never processed, neither ticks nor batch_size are set component='a'"
    ]


class Logs(BatchingBolt):
    outputs = ["v"]
    batch_size = 2
    bad: int | None = None

    def process(self, tup: Any) -> None:
        super().process(tup)
        self.emit([tup.values.v])
        if tup.values.v == self.bad:
            raise ValueError("bad")

    def process_batch(self, key: Any, tups: list[Any]) -> None: ...


@pytest.mark.parametrize("seed", SEEDS)
def test_emit_for_the_tuple_that_completes_a_batch_is_anchored_to_it(seed: int) -> None:
    with chain(Logs(), holding(), spout=Upto(4)).local(seed=seed) as run:
        run.settle()
        assert sorted(run.emitted("a")) == [(1,), (2,), (3,), (4,)]
        assert run.acked("spout") == [], "what was emitted is held"
        run.tasks("b")[0].ack(run.tasks("b")[0].held[0])
        run.settle()
        assert len(run.acked("spout")) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_tuple_that_completes_a_batch_and_fails_is_not_in_it(seed: int) -> None:
    bolt = Logs()
    bolt.bad = 4
    with chain(bolt, sink(), spout=Upto(4)).local(seed=seed) as run:
        run.settle()
        assert [tup_id for tup_id, _ in run.failed("spout")] == ["m4"]
        assert sorted(run.acked("spout")) == ["m1", "m2", "m3"]
