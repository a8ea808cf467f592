"""Edges of one run never repeat. Each of these caused a false ack in an earlier form of the design."""

from typing import Any

import pytest

from acker_redis.storm import (
    BatchingBolt,
    Bolt,
    FeederSpout,
    StatefulBolt,
    TicklessBatchingBolt,
    TopologyBuilder,
    Tuple,
)
from tests.storm.contract.parts import Keeps, fed

EACH_SECOND = {"topology.tick.tuple.freq.secs": 1}


def settle_one_by_one(run: Any, bolt: str, expected: list[Any]) -> None:
    """No ack comes before the last tuple of the keepers is acked."""
    open_tuples = [(task, tup) for task in run.tasks(bolt) for tup in task.held]
    assert open_tuples
    for task, tup in open_tuples:
        assert run.acked("spout") == []
        task.ack(tup)
        run.settle()
    assert run.acked("spout") == expected


@pytest.mark.parametrize("ticks", [1, 2, 3, 4])
@pytest.mark.parametrize("emits", [1, 2])
def test_ticks_with_the_same_held_anchor(ticks: int, emits: int) -> None:
    class Repeats(Keeps):
        outputs = ["v"]

        def process_tick(self, tup: Tuple) -> None:
            for _ in range(emits):
                self.emit(["same"], anchors=self.held)

    with fed(Repeats, Keeps, config=EACH_SECOND).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        run.advance(ticks)
        [repeats] = run.tasks("b0")
        repeats.ack(repeats.held[0])
        repeats.held = []
        run.settle()
        settle_one_by_one(run, "b1", [1])


@pytest.mark.parametrize("flushes", [1, 2, 3])
def test_flushes_with_the_same_held_anchor(flushes: int) -> None:
    """A batch's bolt holds a tuple beside its batches, and anchors to it at each flush."""

    class Flushes(BatchingBolt):
        outputs = ["v"]
        auto_ack = False

        def initialize(self, conf: Any, context: Any) -> None:
            self.held: Tuple | None = None

        def process(self, tup: Tuple) -> None:
            if self.held is None:
                self.held = tup
            else:
                super().process(tup)

        def process_batch(self, key: Any, tups: list[Tuple]) -> None:
            assert self.held is not None
            self.emit(["same"], anchors=[self.held])
            for tup in tups:
                self.ack(tup)

    with fed(Flushes, Keeps, config=EACH_SECOND).local() as run:
        run.feed("spout", ["held"], tup_id="held")
        run.settle()
        for _ in range(flushes):
            run.feed("spout", ["batch"])
            run.settle()
            run.advance(1)
        [bolt] = run.tasks("b0")
        assert bolt.held is not None
        bolt.ack(bolt.held)
        run.settle()
        settle_one_by_one(run, "b1", ["held"])


@pytest.mark.parametrize("flushes", [1, 2, 3])
def test_flushes_by_time_with_the_same_held_anchor(flushes: int) -> None:
    """A flush without a tick has no tuple that tells it from the next one."""

    class Flushes(TicklessBatchingBolt):
        outputs = ["v"]
        auto_ack = False
        secs_between_batches = 1

        def initialize(self, conf: Any, context: Any) -> None:
            self.held: Tuple | None = None

        def process(self, tup: Tuple) -> None:
            if self.held is None:
                self.held = tup
            else:
                super().process(tup)

        def process_batch(self, key: Any, tups: list[Tuple]) -> None:
            assert self.held is not None
            self.emit(["same"], anchors=[self.held])

    with fed(Flushes, Keeps).local() as run:
        run.feed("spout", ["held"], tup_id="held")
        run.settle()
        for _ in range(flushes):
            run.feed("spout", ["batch"])
            run.settle()
            run.advance(1)
        [bolt] = run.tasks("b0")
        assert bolt.held is not None
        bolt.ack(bolt.held)
        run.settle()
        settle_one_by_one(run, "b1", ["held"])


def test_emits_from_outside_of_a_call_with_the_same_anchor() -> None:
    class Emits(Keeps):
        outputs = ["v"]

    with fed(Emits, Keeps).local() as run:
        run.feed("spout", ["held"], tup_id="held")
        run.settle()
        [bolt] = run.tasks("b0")
        for _ in range(3):
            bolt.emit(["same"], anchors=bolt.held)
            run.settle()
        bolt.ack(bolt.held[0])
        bolt.held = []
        run.settle()
        settle_one_by_one(run, "b1", ["held"])


@pytest.mark.parametrize("seed", range(3))
def test_a_fresh_copy_does_not_repeat_the_edges_of_the_old_one(seed: int) -> None:
    """The state's held tuple is the anchor of the same emit before and after the exception."""

    class Dies(StatefulBolt):
        outputs = ["v"]
        auto_ack = False
        exit_on_exception = True

        def process(self, tup: Tuple) -> None:
            first = self.state.setdefault("first", tup)
            self.emit(["same"], anchors=[first])
            if tup is not first:
                raise ValueError("dies")

    with fed(Dies, Keeps).local(seed=seed) as run:
        run.feed("spout", [0], tup_id="first")
        for number in range(3):
            run.feed("spout", [number])
        run.settle()
        [dies] = run.tasks("b0")
        dies.ack(dies.state["first"])
        run.settle()
        settle_one_by_one(run, "b1", ["first"])


@pytest.mark.parametrize("emits", [1, 2, 3, 4])
def test_equal_emits_of_one_call(emits: int) -> None:
    class Repeats(Bolt):
        outputs = ["v"]

        def process(self, tup: Tuple) -> None:
            for _ in range(emits):
                self.emit(["same"])

    with fed(Repeats, Keeps).local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        settle_one_by_one(run, "b1", [1])


class Twice:
    def prepare(self, context: Any, stream: Any, tasks: Any) -> None:
        self.tasks = list(tasks)

    def choose_tasks(self, task: int, values: Any) -> list[int]:
        return [self.tasks[0], self.tasks[0]]


@pytest.mark.parametrize("from_spout", [True, False])
def test_a_custom_grouping_that_names_a_task_twice(from_spout: bool) -> None:
    class Pass(Bolt):
        outputs = ["v"]

        def process(self, tup: Tuple) -> None:
            self.emit(["same"])

    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["v"]))
    if not from_spout:
        builder.set_bolt("between", Pass).shuffle_grouping("spout")
    builder.set_bolt("keeps", Keeps).custom_grouping("spout" if from_spout else "between", Twice())
    with builder.create_topology().local() as run:
        run.feed("spout", [1], tup_id=1)
        run.settle()
        assert len(run.tasks("keeps")[0].held) == 2
        settle_one_by_one(run, "keeps", [1])


@pytest.mark.parametrize("copies", [2, 3, 4])
def test_one_id_pending_several_times_with_equal_values(copies: int) -> None:
    with fed(Keeps).local() as run:
        for _ in range(copies):
            run.feed("spout", ["same"], tup_id="id")
        run.settle()
        [keeper] = run.tasks("b0")
        for done in range(copies):
            assert run.acked("spout") == ["id"] * done
            assert len(run.pending("spout")) == copies - done
            keeper.ack(keeper.held[done])
            run.settle()
        assert run.acked("spout") == ["id"] * copies


def test_one_id_pending_twice_of_which_one_fails() -> None:
    with fed(Keeps).local() as run:
        for _ in range(2):
            run.feed("spout", ["same"], tup_id="id")
        run.settle()
        [keeper] = run.tasks("b0")
        keeper.fail(keeper.held[1], "second")
        run.settle()
        assert (run.acked("spout"), run.failed("spout"), run.pending("spout")) == ([], [("id", "second")], ["id"])
        keeper.ack(keeper.held[0])
        run.settle()
        assert (run.acked("spout"), run.pending("spout")) == (["id"], [])


def test_one_id_pending_twice_joined_into_one_tuple() -> None:
    class Joins(Keeps):
        outputs = ["v"]

        def process(self, tup: Tuple) -> None:
            super().process(tup)
            if len(self.held) == 2:
                self.emit(["joined"], anchors=self.held)
                for one in self.held:
                    self.ack(one)

    with fed(Joins, Keeps).local() as run:
        for _ in range(2):
            run.feed("spout", ["same"], tup_id="id")
        run.settle()
        assert run.acked("spout") == []
        [keeper] = run.tasks("b1")
        keeper.ack(keeper.held[0])
        run.settle()
        assert run.acked("spout") == ["id", "id"]


@pytest.mark.parametrize("seed", range(4))
def test_a_tuple_kept_in_state_as_anchor_of_later_calls(seed: int) -> None:
    class Anchors(StatefulBolt):
        outputs = ["v"]
        auto_ack = False

        def process(self, tup: Tuple) -> None:
            first = self.state.setdefault("first", tup)
            self.emit(["same"], anchors=[first])
            if tup is not first:
                self.ack(tup)

    with fed(Anchors, Keeps).local(seed=seed) as run:
        run.feed("spout", [0], tup_id="first")
        for number in range(3):
            run.feed("spout", [number])
        run.settle()
        [anchors], [keeper] = run.tasks("b0"), run.tasks("b1")
        anchors.ack(anchors.state["first"])
        run.settle()
        assert len(keeper.held) == 4
        settle_one_by_one(run, "b1", ["first"])


def test_two_runs_over_one_acker_draw_other_edges() -> None:
    """The second run's first messages must not cancel those that the first run left."""
    from acker_redis.testing import fake_acker

    with fake_acker() as acker:
        for _ in range(3):
            with fed(Keeps).local(acker=acker) as run:
                run.feed("spout", ["same"], tup_id="id")
                run.settle()
                assert run.acked("spout") == []
                assert run.pending("spout") == ["id"]
