"""Topologies on Spark: turns, outcomes, and what a turn can't do."""

import threading
from typing import Any

import pytest

from acker_redis import Acker
from acker_redis.errors import (
    BadConfigError,
    InvalidTopologyError,
    JobFailedError,
    OperatorBrokenError,
    PipelineError,
)
from acker_redis.storm import (
    FeederSpout,
    Grouping,
    ReliableSpout,
    Spout,
    TopologyBuilder,
)
from tests.storm.turns import parts
from tests.storm.turns.parts import Does, Heard, Passing, chain, numbered, spout_of


def test_messages_are_acked_at_the_spout_with_their_ids(run: Any) -> None:
    heard = Heard()
    messages = [(f"A b{number} C", ("id", number)) for number in range(300)]
    result = run(chain(spout_of(messages, heard, ["line"]), parts.Split, parts.Lower, par=3))
    assert sorted(heard.acked) == [("id", number) for number in range(300)]
    assert (result.acked, result.failed, result.timed_out, result.unfinished) == (300, 0, 0, 0)
    metrics = result.metrics
    assert metrics["a"].executed == {"spout:default": 300} and metrics["a"].emitted == {"default": 900}
    assert metrics["b"].acked == {"a:default": 900} and metrics["spout"].complete_latency["default"].count == 300


def test_a_failed_tuple_fails_its_message_with_reason_and_component(run: Any) -> None:
    heard = Heard()
    result = run(chain(spout_of(numbered(["a b", "a bad", "c"]), heard, ["line"]), parts.Split, parts.Lower))
    assert sorted(heard.acked) == [0, 2] and heard.failed == {1: "bad word"}
    (tree,) = result.failed_trees
    assert (tree.spout, tree.tup_id, tree.reason, tree.last_component) == ("spout", 1, "bad word", "b")


def test_a_reliable_spout_replays_and_dead_letters(run: Any, acker: Acker) -> None:
    heard = Heard()
    spout = spout_of(numbered(["a", "bad", "bad-for-ever"]), heard, ["line"], ReliableSpout)
    result = run(chain(spout, parts.Split, parts.Lower))
    assert heard.acked == [0]
    assert sorted(call[1] for call in heard if call[0] == "fail") == [1, 1, 2], "retry=False is not replayed"
    assert result.dead_letters == 2
    assert {letter.attempts for letter in acker.dead_letters.read()} == {1, 2}


def test_outcomes_reach_the_task_that_emitted(run: Any) -> None:
    heard: list[tuple[int, int]] = []

    class Numbers(Spout):
        outputs = ["v"]

        def initialize(self, conf: Any, context: Any) -> None:
            self.left = 5

        def next_tuple(self) -> None:
            if self.left:
                self.left -= 1
                self.emit([self.left], tup_id=self.task_id)

        def ack(self, tup_id: int) -> None:
            heard.append((self.task_id, tup_id))

    builder = TopologyBuilder()
    builder.set_spout("one", Numbers, par=2)
    builder.set_spout("two", Numbers)
    builder.set_bolt("bolt", Passing, par=2).shuffle_grouping("one").shuffle_grouping("two")
    run(builder.create_topology())
    assert len(heard) == 15 and len({task for task, _ in heard}) == 3
    assert all(task == tup_id for task, tup_id in heard)


def test_forgotten_tuples_time_out_at_a_bound_of_one(run: Any) -> None:
    heard = Heard()
    config = {"topology.message.timeout.secs": 1, "topology.max.spout.pending": 1}
    bolt = Does("forget_odd", auto_ack=False)
    result = run(chain(spout_of([(1, "odd"), (2, "even"), (4, "more")], heard), bolt, config=config))
    assert heard.failed == {"odd": "timeout"} and heard.acked == ["even", "more"]
    assert result.timed_out == 1 and result.failed_trees[0].last_component == "spout"


def test_untracked_and_tracked_tuples_mix(run: Any) -> None:
    heard = Heard()
    messages = [(number, number if number % 3 else None) for number in range(30)]
    result = run(chain(spout_of(messages, heard), Does("branch"), Passing))
    assert sorted(heard.acked) == [number for number in range(30) if number % 3]
    assert result.metrics["b"].executed == {"a:default": 90}


def test_without_ackers_messages_are_acked_at_their_emit(run: Any, acker: Acker) -> None:
    heard = Heard()
    result = run(chain(spout_of(numbered(range(10)), heard), Passing, config={"topology.acker.executors": 0}))
    assert heard.acked == list(range(10)) and result.metrics["a"].executed == {"spout:default": 10}
    assert acker.stats().inits == 0


def test_a_message_that_nobody_receives_is_acked(run: Any) -> None:
    heard = Heard()
    builder = TopologyBuilder()
    builder.set_spout("spout", spout_of(numbered([1, 2]), heard))
    run(builder.create_topology())
    assert sorted(heard.acked) == [0, 1]


@pytest.mark.parametrize(
    ("grouping", "tasks"),
    [(Grouping.ALL, 3), (Grouping.GLOBAL, 1), (Grouping.LOCAL_OR_SHUFFLE, 3), (Grouping.partial_key("v"), 2)],
    ids=str,
)
def test_groupings_choose_tasks(run: Any, grouping: Grouping, tasks: int) -> None:
    heard = Heard()
    result = run(chain(spout_of(numbered(["same"] * 40), heard), parts.Reports, par=3, grouping=grouping))
    assert len(heard.acked) == 40
    assert result.metrics["a"].executed == {"spout:default": 120 if grouping is Grouping.ALL else 40}
    assert len(result.metrics["a"].custom.keys() - {"hooked"}) == tasks


def test_a_turn_ends_at_its_number_of_tuples(run: Any) -> None:
    heard = Heard()
    result = run(chain(spout_of(numbered(range(25)), heard), Passing), turn_tuples=10)
    assert len(heard.acked) == 25 and result.acked == 25


def test_values_of_up_to_32_mib_pass_and_longer_ones_are_refused_at_the_emit(run: Any) -> None:
    heard = Heard()
    sizes = {"fits": (32 << 20) - 100, "too long": (32 << 20) + 1}
    run(chain(spout_of([("fits", 1), ("too long", 2)], heard), Does("emit_large", sizes), Passing))
    assert heard.acked == [1] and heard.failed.keys() == {2}
    assert heard.failed[2].startswith("BadTupleError: The values of an emit of 'a' have 33,554,")


def test_values_that_cant_be_serialised_are_refused_at_the_emit(run: Any) -> None:
    heard = Heard()
    run(chain(spout_of([("x", 1)], heard), Does("emit_unpicklable"), Passing))
    assert "can't be serialised" in heard.failed[1]


def test_a_spout_that_raises_ends_the_run(run: Any) -> None:
    class Raises(Spout):
        outputs = ["v"]

        def next_tuple(self) -> None:
            raise KeyError("source")

    with pytest.raises(KeyError, match="source"):
        run(chain(Raises, Passing))


def test_a_bolt_that_counts_in_itself_is_refused_before_anything_is_acked(run: Any) -> None:
    heard = Heard()
    with pytest.raises(InvalidTopologyError, match=r"attribute 'counts' of the bolt 'a' changed.*cache = True"):
        run(chain(spout_of(numbered("abc"), heard), parts.CountsInSelf))
    assert not heard.acked


def test_a_bolt_may_say_that_its_attributes_are_a_cache(run: Any) -> None:
    heard = Heard()
    run(chain(spout_of(numbered("abc"), heard), parts.Caches))
    assert sorted(heard.acked) == [0, 1, 2]


def test_tuples_held_over_turns_are_refused(run: Any) -> None:
    with pytest.raises(InvalidTopologyError, match="ack a tuple of an earlier turn"):
        run(chain(spout_of(numbered("abcdef"), Heard()), parts.HoldsForEver, par=1), turn_tuples=1)


def test_an_initialize_that_raises_ends_the_run(run: Any) -> None:
    with pytest.raises(PipelineError, match=r"initialize\(\) of the bolt 'a' raised KeyError: 'no such setting'"):
        run(chain(spout_of(numbered("abc"), Heard()), parts.BrokenInitialize))


def test_cycles_are_refused_with_their_path(run: Any) -> None:
    builder = TopologyBuilder()
    builder.set_spout("spout", spout_of([], Heard()))
    builder.set_bolt("a", Passing).shuffle_grouping("spout").shuffle_grouping("b")
    builder.set_bolt("b", Passing).shuffle_grouping("a")
    with pytest.raises(InvalidTopologyError, match="cycle a -> b -> a"):
        run(builder.create_topology())


def test_feeder_spouts_and_bad_arguments_are_refused(run: Any, spark: Any, acker: Acker) -> None:
    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["v"]))
    with pytest.raises(InvalidTopologyError, match="FeederSpout"):
        run(builder.create_topology())
    topology = chain(spout_of([], Heard()), Passing)
    with pytest.raises(BadConfigError, match="not a SparkSession"):
        topology.run("local", acker=acker)  # type: ignore[arg-type]
    with pytest.raises(BadConfigError, match=r"turn_tuples=0.* Use an integer of 1 or more\.$"):
        run(topology, turn_tuples=0)
    with pytest.raises(BadConfigError, match=r"turn_tuples=None is no limit"):
        run(topology, turn_tuples=None)
    with pytest.raises(BadConfigError, match=r"stop=True is not an event"):
        run(topology, stop=True)
    with pytest.raises(BadConfigError, match="not a dict"):
        run(topology, sinks=["a"])


def test_twenty_unexpected_failures_in_a_bolt_that_never_worked_end_the_run(run: Any) -> None:
    heard = Heard()
    with pytest.raises(OperatorBrokenError, match="failed in 'a', which has not processed any message"):
        run(chain(spout_of(numbered(range(30)), heard), Does("raise_always")))
    assert not heard


def test_few_unexpected_failures_count_once_no_other_message_can_arrive(run: Any) -> None:
    heard = Heard()
    run(chain(spout_of(numbered(range(3)), heard), Does("raise_always")))
    assert heard.failed == {number: f"KeyError: {number}" for number in range(3)}


def test_stop_drains_the_run(run: Any) -> None:
    stop, heard = threading.Event(), Heard()

    class Endless(Spout):
        outputs = ["v"]

        def initialize(self, conf: Any, context: Any) -> None:
            self.n = 0

        def next_tuple(self) -> None:
            self.n += 1
            self.emit([self.n], tup_id=self.n)

        def ack(self, tup_id: int) -> None:
            heard.append(("ack", tup_id))
            stop.set()

    result = run(chain(Endless, Passing), stop=stop, turn_tuples=20)
    assert result.unfinished == 0 and result.acked == len(heard) >= 20


def test_a_paused_app_emits_nothing_until_it_is_resumed(run: Any, acker: Acker) -> None:
    heard = Heard()
    acker.admin.pause(reason="maintenance")

    class Resumes(spout_of(numbered("abc"), heard)):  # type: ignore[misc]
        def activate(self) -> None:
            self.timer = threading.Timer(0.5, acker.admin.resume)
            self.timer.start()

        def next_tuple(self) -> None:
            assert acker.admin.paused() is None
            super().next_tuple()

        def close(self) -> None:
            self.timer.join()

    run(chain(Resumes, Passing))
    assert sorted(heard.acked) == [0, 1, 2]


def test_a_pause_lets_a_turn_that_has_begun_end_and_its_outcomes_arrive(run: Any, acker: Acker) -> None:
    """The spout pauses the app when it has emitted, and resumes it when it has heard of the outcomes."""
    heard, stop = Heard(), threading.Event()

    class Pauses(spout_of(numbered(range(6)), heard)):  # type: ignore[misc]
        def next_tuple(self) -> None:
            super().next_tuple()
            acker.admin.pause(reason="maintenance")

        def ack(self, tup_id: int) -> None:
            super().ack(tup_id)
            acker.admin.resume()
            if len(heard) == 6:
                stop.set()

    result = run(chain(Pauses, Passing), turn_tuples=1, stop=stop)
    assert heard.acked == list(range(6)) and result.unfinished == 0


def test_a_paused_run_can_be_stopped(run: Any, acker: Acker) -> None:
    stop, heard = threading.Event(), Heard()
    acker.admin.pause(reason="maintenance")

    class Stops(spout_of(numbered([1]), heard)):  # type: ignore[misc]
        def activate(self) -> None:
            self.timer = threading.Timer(0.5, stop.set)
            self.timer.start()

    result = run(chain(Stops, Passing), stop=stop)
    assert (result.acked, result.unfinished, heard) == (0, 0, [])


def test_a_topology_is_activated_before_its_first_emit_and_deactivated_before_it_is_drained(run: Any) -> None:
    calls: list[str] = []

    def noted(name: str) -> Any:
        return lambda self, *arguments: calls.append(name)

    names = ("activate", "deactivate", "ack", "close")
    stop = threading.Event()

    class Stops(spout_of(numbered([1]), Heard(), **{name: noted(name) for name in names})):  # type: ignore[misc]
        def next_tuple(self) -> None:
            super().next_tuple()
            stop.set()

    run(chain(Stops, Passing), stop=stop)
    assert calls == ["activate", "deactivate", "ack", "close"]


@pytest.mark.usefixtures("one_attempt")
def test_turns_that_all_break_blame_no_message(run: Any) -> None:
    with pytest.raises(JobFailedError, match="no message is to blame"):
        run(chain(spout_of(numbered(["x"] * 64), Heard()), Does("kill_at", "x")))


def test_events_hooks_and_metrics_of_workers_reach_the_result(run: Any) -> None:
    config = {"topology.debug": True, "topology.auto.task.hooks": ["tests.storm.turns.parts.CountsExecutions"]}
    result = run(
        chain(spout_of(numbered(["a b"]), Heard(), ["line"]), parts.Split, parts.Reports, par=1, config=config)
    )
    assert [(event.component, event.tup_id, tuple(event.values)) for event in result.events] == [
        ("spout", 0, ("a b",)),
        ("a", None, ("a",)),
        ("a", None, ("b",)),
    ]
    assert result.events[1].values.word == "a"
    assert result.metrics["b"].custom["hooked"].last >= 1, "hooks run in the workers"
