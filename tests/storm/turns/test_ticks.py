"""Ticks of bolts on Spark: when they come, what they emit, and what a tick that kills its worker costs."""

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from acker_redis import Acker
from acker_redis.acker import app_of
from acker_redis.errors import JobFailedError, LedgerLostError
from acker_redis.store import pause
from acker_redis.storm import BatchingBolt, StatefulBolt, Topology, TopologyBuilder, WindowedBolt
from acker_redis.storm.core.values import load_values
from acker_redis.storm.turns.job import TurnReport
from acker_redis.storm.turns.plan import make_plan
from acker_redis.storm.turns.rows import RowBuffer, unpack
from acker_redis.storm.turns.run import TurnService
from acker_redis.storm.turns.search import MOST_LOSSES
from acker_redis.storm.turns.ticks import Ticks
from acker_redis.testing import wait_until
from tests.storm.parts import Do, chain, sink
from tests.storm.turns.tick_parts import (
    TICKS,
    Counting,
    DiesAtTicks,
    DiesAtTuple,
    Ending,
    Noting,
    Raises,
    noted,
    source,
)
from tests.support.spark import parquet


class Clocked:
    """A spout, a bolt `a` with ticks and a bolt `b`, stopped when the notes in a folder say so."""

    def __init__(
        self,
        folder: Path,
        *values: str | None,
        a: Any,
        until: Callable[[Callable[[str], list[str]]], bool],
        par: int = 2,
    ) -> None:
        self.folder, self.stop, self.heard = folder, threading.Event(), list[Any]()
        self.until = until
        builder = TopologyBuilder()
        builder.set_spout("spout", source(values, self.heard, lambda: until(self.noted), self.stop))
        builder.set_bolt("a", a, par=par).shuffle_grouping("spout")
        builder.set_bolt("b", Ending(folder)).shuffle_grouping("a")
        self.topology: Topology = builder.create_topology()

    def noted(self, component: str) -> list[str]:
        return noted(self.folder, component)


def each_task_has(ticks: int) -> Callable[[Callable[[str], list[str]]], bool]:
    """Both tasks of `a` have the ticks of a turn. Each turn's have another number; Spark may run a task twice."""
    return lambda noted: len({line for line in noted("a") if line.startswith("tick")}) >= ticks


# -- without Spark


def due(ticks: Ticks, now: float) -> list[tuple[int, int, Any]]:
    """Ticks of a turn: task, number, values."""
    rows = RowBuffer()
    ticks.add(rows, now)
    tuples = [(row["to"], unpack(row["data"])) for batch in rows.take() for row in batch.to_pylist()]
    return [
        (task, number, load_values(values))
        for task, of in tuples
        for number, values in zip(of.seqs, of.values, strict=True)
    ]


def ticks_of(**secs: float) -> Ticks:
    builder = TopologyBuilder()
    builder.set_spout("spout", source([], [], lambda: False, None))
    for name, of in secs.items():
        config = {"topology.tick.tuple.freq.secs": of}
        builder.set_bolt(name, Do(lambda bolt, tup: None), config=config).shuffle_grouping("spout")
    graph = builder.create_topology(config={"topology.tick.tuple.freq.secs": 50})._checked_graph()
    return Ticks(make_plan(graph, {}, {}, 2))


def test_the_first_tick_comes_one_period_after_the_begin_and_missed_ones_are_one() -> None:
    ticks = ticks_of(a=1, b=2.5)
    assert due(ticks, 100) == due(ticks, 100.9) == []
    assert due(ticks, 101) == [(1, 1, (1,))]
    assert due(ticks, 101.9) == []
    assert due(ticks, 107.4) == [(1, 7, (1,)), (2, 2, (2.5,))]
    assert due(ticks, 108) == [(1, 8, (1,)), (2, 3, (2.5,))]


def test_the_setting_of_the_topology_is_for_all_bolts_without_their_own() -> None:
    builder = TopologyBuilder()
    builder.set_spout("spout", source([], [], lambda: False, None))
    builder.set_bolt("a", Do(lambda bolt, tup: None), par=2).shuffle_grouping("spout")
    ticks = Ticks(
        make_plan(builder.create_topology(config={"topology.tick.tuple.freq.secs": 1})._checked_graph(), {}, {}, 2)
    )
    due(ticks, 0)
    assert due(ticks, 1) == [(1, 1, (1,)), (2, 1, (1,))]
    plain = Ticks(make_plan(chain(sink())._checked_graph(), {}, {}, 2))
    assert due(plain, 0) == due(plain, 1000) == []


def test_ticks_of_a_turn_that_was_not_processed_are_due_again() -> None:
    ticks = ticks_of(a=1)
    due(ticks, 0)
    assert due(ticks, 1) == [(1, 1, (1,))]
    ticks.repeat()
    assert due(ticks, 1.5) == [(1, 1, (1,))]
    ticks.succeeded()
    ticks.repeat()
    assert due(ticks, 1.5) == [] and not ticks.is_suspect


def test_ticks_that_break_their_turn_are_suspect_until_one_succeeds() -> None:
    ticks, error = ticks_of(a=1), OSError("worker died")
    due(ticks, 0)
    assert not ticks.broke(error, is_alone=True)
    for _ in range(2):
        due(ticks, 1)
        assert ticks.broke(error, is_alone=True) and ticks.is_suspect
    due(ticks, 1)
    ticks.succeeded()
    assert not ticks.is_suspect
    for _ in range(5):
        due(ticks, 2)
        assert ticks.broke(error, is_alone=False)
    for _ in range(2):
        due(ticks, 2)
        assert ticks.broke(error, is_alone=True)
    due(ticks, 2)
    with pytest.raises(JobFailedError, match=r"3 turns with nothing but ticks of the bolts \['a'\] broke in a row"):
        ticks.broke(error, is_alone=True)


class Keeps(StatefulBolt):
    config = TICKS

    def process(self, tup: Any) -> None: ...


class Batches(BatchingBolt):
    batch_size = 3

    def process_batch(self, key: Any, tups: Any) -> None: ...


class Slides(WindowedBolt):
    window = slide = timedelta(seconds=2)

    def process_window(self, window: Any) -> None: ...


def calls_of(**bolts: Any) -> Ticks:
    """Calls of bolts `a`, `b` ... with two tasks each, from 1 on."""
    builder = TopologyBuilder()
    builder.set_spout("spout", source([], [], lambda: False, None))
    for name, bolt in bolts.items():
        builder.set_bolt(name, bolt, par=2).shuffle_grouping("spout")
    return Ticks(make_plan(builder.create_topology()._checked_graph(), {}, {}, 2))


def called(ticks: Ticks, now: float) -> list[int]:
    return sorted({task for task, _, _ in due(ticks, now)})


def test_calls_that_break_go_in_halves_until_a_task_is_alone_and_its_tuples_fail() -> None:
    ticks, error = calls_of(a=Keeps, b=Keeps), OSError("worker died")
    assert called(ticks, 0) == []
    assert called(ticks, 1) == [1, 2, 3, 4] and ticks.broke(error, is_alone=False)
    assert called(ticks, 1) == [1, 2, 3, 4] and ticks.broke(error, is_alone=True)
    assert called(ticks, 1) == [1, 2] and ticks.broke(error, is_alone=True)
    assert called(ticks, 1) == [1]
    ticks.succeeded()
    for _ in range(3):
        assert called(ticks, 1) == [2] and ticks.broke(error, is_alone=True)
    assert due(ticks, 1) == [(2, 1, ("JobFailedError: OSError: worker died",))]
    ticks.succeeded(released=4)
    assert called(ticks, 1) == [2] and ticks.is_suspect
    ticks.succeeded()
    assert called(ticks, 1) == [3, 4] and ticks.is_suspect
    ticks.succeeded()
    assert called(ticks, 1) == [] and not ticks.is_suspect


def test_rows_that_are_lost_are_no_attempt_of_calls_unless_that_happens_again_and_again() -> None:
    ticks, error = calls_of(a=Keeps), OSError("lost")
    assert called(ticks, 0) == []
    for now in (1, 2):  # a success begins the count again
        for _ in range(MOST_LOSSES):
            assert called(ticks, now) == [1, 2] and ticks.broke(error, is_alone=True, by_loss=True)
        assert ticks.is_suspect
        assert called(ticks, now) == [1, 2]
        ticks.succeeded()
        assert not ticks.is_suspect
    for _ in range(MOST_LOSSES):
        assert called(ticks, 3) == [1, 2] and ticks.broke(error, is_alone=True, by_loss=True)
    assert called(ticks, 3) == [1, 2] and ticks.broke(error, is_alone=True, by_loss=True)
    assert called(ticks, 3) == [1], "one of the calls may kill its executor"


def test_calls_that_broke_and_are_no_longer_due_hold_up_nothing() -> None:
    """Messages went out again without them, and completed the windows. A run that waits for such calls never ends."""
    ticks, error = calls_of(a=Slides), OSError("worker died")
    ticks.add(RowBuffer(), 0)
    ticks.note_held({1: 2, 2: 2})
    assert called(ticks, 2) == [1, 2] and ticks.broke(error, is_alone=False)
    ticks.note_held({1: 0, 2: 0})
    assert called(ticks, 2) == [] and not ticks.is_suspect


def test_the_other_half_is_called_although_the_task_to_blame_holds_nothing_any_more() -> None:
    ticks, error = calls_of(a=Slides), OSError("worker died")
    ticks.add(RowBuffer(), 0)
    ticks.note_held({1: 2, 2: 2})
    assert called(ticks, 2) == [1, 2] and ticks.broke(error, is_alone=True)
    for _ in range(3):
        assert called(ticks, 2) == [1] and ticks.broke(error, is_alone=True)
    assert [(task, number) for task, number, _ in due(ticks, 2)] == [(1, 1)]
    ticks.note_held({1: 0})
    ticks.succeeded(released=2)
    assert called(ticks, 2) == [2] and ticks.is_suspect
    ticks.succeeded()
    assert called(ticks, 3) == [] and not ticks.is_suspect


@pytest.mark.parametrize("released", [0, None])
def test_a_task_that_held_nothing_ends_the_run(released: int | None) -> None:
    """None: the turn that failed its tuples was committed, and its reports are lost."""
    ticks, error = calls_of(a=Keeps), OSError("worker died")
    called(ticks, 0)
    while len(called(ticks, 1)) > 1:
        ticks.broke(error, is_alone=True)
    for _ in range(3):
        assert ticks.broke(error, is_alone=True)
        called(ticks, 1)
    if released is None:
        ticks.succeeded_unseen()
        assert called(ticks, 1) == [1]
    else:
        with pytest.raises(JobFailedError, match=r"nothing but ticks of the bolts \['a'\]"):
            ticks.succeeded(released)


def test_held_tuples_that_cant_be_failed_end_the_run() -> None:
    ticks, error = calls_of(a=Keeps), OSError("worker died")
    called(ticks, 0)
    with pytest.raises(JobFailedError, match="no message is to blame"):
        for _ in range(9):
            called(ticks, 1)
            ticks.broke(error, is_alone=True)


def test_batches_and_windows_are_called_while_they_hold_tuples() -> None:
    ticks = calls_of(a=Batches, b=Slides)
    ticks.add(RowBuffer(), 100, 5000)
    assert due(ticks, 103) == [] and not ticks.flush(), "the windows of the first 2 s are empty"
    ticks.note_held({1: 2, 2: 0, 3: 1})
    assert due(ticks, 107) == [(3, 3, (5000, 2000.0, 2, 3))], "two windows have ended"
    ticks.repeat()
    assert ticks.flush(timed=False, windows=False)
    assert due(ticks, 108.5) == [(3, 4, (5000, 2000.0, 2, 4)), (1, 1, ())]
    ticks.succeeded()
    ticks.note_held({1: 0, 3: 0})
    assert due(ticks, 120) == [] and not ticks.flush(timed=False)
    ticks.succeeded_unseen()
    assert ticks.flush() and called(ticks, 121) == [1, 2, 3, 4]


def test_a_bolt_that_keeps_its_batches_at_a_flush_is_asked_again_only_once_they_change() -> None:
    """It may override `process_batches`. The end of the run would ask it for ever."""
    ticks = calls_of(a=Batches)
    called(ticks, 0)
    ticks.note_held({1: 2, 2: 1})
    assert ticks.flush() and called(ticks, 1) == [1, 2]
    ticks.note_held({1: 2, 2: 0})
    ticks.succeeded()
    assert not ticks.flush() and called(ticks, 2) == []
    ticks.note_held({1: 3})
    assert ticks.flush() and called(ticks, 3) == [1]


@pytest.mark.parametrize(("is_closed", "again"), [(None, []), (False, []), (True, [(1, 1, (1,))])])
def test_ticks_are_repeated_after_a_lost_ledger_only_if_they_changed_nothing(
    is_closed: bool | None, again: Any
) -> None:
    """The state of the turn may be committed, and is kept elsewhere. None: the job succeeded."""
    ticks, error = ticks_of(a=1), LedgerLostError("lost")
    service = TurnService.__new__(TurnService)
    service._ticks, service._keeper = ticks, Mock(lost=error)
    service._acker, service._engine = Mock(), Mock(pending_roots_count=0)
    due(ticks, 0)
    due(ticks, 1)
    if is_closed is None:
        assert service._found_lost(TurnReport([], []))
    else:
        service._broke(Mock(close=lambda: is_closed), error)
    assert due(ticks, 1.5) == again


@pytest.mark.parametrize("outcomes", [0, 1])
def test_a_run_that_drains_flushes_in_a_round_without_outcomes(outcomes: int) -> None:
    """Its own timers may fire in each round, because a job takes longer than their periods."""
    ticks, service = calls_of(a=Batches), TurnService.__new__(TurnService)
    ticks.note_held({1: 2})
    service._ticks, service._pauses = ticks, Mock(is_over=False)
    service._is_away, service._drains_until, service._refusals = False, 1.0, Mock()
    service._engine = Mock(executors=[], time_out_if_due=lambda but: False, settle_frames=lambda: 0)
    service._fire_timers, service._exchange = lambda: 1, lambda **_: outcomes  # type: ignore[method-assign]
    assert service._round() == 1 + outcomes
    assert called(ticks, 1) == ([] if outcomes else [1])


# -- on Spark


def test_each_task_gets_its_ticks_and_their_emits_go_to_bolts_and_sinks(run: Any, spark: Any, tmp_path: Path) -> None:
    case = Clocked(tmp_path, "m", a=Noting(tmp_path), until=each_task_has(2))
    table = str(tmp_path / "table")
    result = run(case.topology, stop=case.stop, sinks={"b": lambda writer: writer.mode("append").parquet(table)})
    assert case.heard == [("ack", "m")]
    assert result.failed == result.unfinished == 0
    ticks = [line for line in case.noted("a") if line.startswith("tick")]
    assert {line.split()[2] for line in ticks} == {"0.2"}
    assert result.metrics["a"].executed["__system:__tick"] >= 4
    written = [v for (v,) in parquet.rows(table, "v")]
    assert written.count("tick") >= 4
    assert "m" in written
    for path in tmp_path.glob("a-*"):  # the numbers of a task's ticks rise; Spark may run a task twice
        numbers = [int(line.split()[1].partition(":")[2]) for line in path.read_text().splitlines() if "tick" in line]
        assert numbers == sorted(numbers)
        assert len(set(numbers)) >= 2


def test_a_tick_comes_before_the_tuples_of_its_turn(run: Any, tmp_path: Path) -> None:
    values = ["m1", None, "m2"]
    case = Clocked(tmp_path, *values, a=Noting(tmp_path), par=1, until=lambda noted: "tuple m2" in noted("a"))
    run(case.topology, stop=case.stop)
    lines = case.noted("a")
    assert lines[0] == "tuple m1" and lines[lines.index("tuple m2") - 1].startswith("tick -1:")


def test_a_tick_sees_the_state_of_its_task(run: Any, spark: Any, tmp_path: Path) -> None:
    """The notes of `b` end the run, and the table counts: Spark may run a task twice."""
    case = Clocked(tmp_path, "m1", "m2", a=Counting(tmp_path), par=1, until=lambda noted: "tuple 2" in noted("b"))
    table = str(tmp_path / "table")
    run(case.topology, stop=case.stop, sinks={"a": lambda writer: writer.mode("append").parquet(table)})
    assert sum(int(v) for (v,) in parquet.rows(table, "v")) == 2


def test_ticks_go_on_while_the_app_is_paused(run: Any, acker: Acker, tmp_path: Path) -> None:
    """And nothing else does."""
    client, app = app_of(acker).client, acker.config.app
    case = Clocked(tmp_path, "m", a=Noting(tmp_path), par=1, until=lambda noted: "tuple m" in noted("b"))
    acker.admin.pause(reason="maintenance")
    seen: list[int] = []

    def resume() -> None:
        wait_until(lambda: case.noted("b").count("tuple tick") >= 2, "two ticks", 120)
        seen.append(case.noted("b").count("tuple m"))
        acker.admin.resume()

    thread = threading.Thread(target=resume)
    thread.start()
    run(case.topology, stop=case.stop)
    thread.join()
    assert seen == [0] and case.heard == [("ack", "m")] and pause.paused(client, app) is None


def test_an_exception_at_a_tick_is_counted_and_fails_nothing(run: Any, tmp_path: Path) -> None:
    case = Clocked(tmp_path, "m", a=Raises(tmp_path), par=1, until=lambda noted: noted("a").count("tick") >= 2)
    result = run(case.topology, stop=case.stop)
    assert case.heard == [("ack", "m")] and result.metrics["a"].errors >= 1


@pytest.mark.usefixtures("one_attempt")
def test_a_tick_that_kills_its_worker_each_time_ends_the_run_and_no_message_is_to_blame(
    run: Any, tmp_path: Path
) -> None:
    """The second turn has both, and breaks. Its message goes out again alone, and then the ticks do."""
    case = Clocked(tmp_path, "m1", None, "m2", a=DiesAtTicks(tmp_path, 10**6), par=1, until=lambda noted: False)
    with pytest.raises(JobFailedError, match="nothing but ticks of the bolts"):
        run(case.topology, stop=case.stop)
    assert sorted(case.heard) == [("ack", "m1"), ("ack", "m2")]
    lines = case.noted("a")
    assert lines[:2] == ["tuple m1", "tick"] and lines[-1] == "tick" and lines.count("tuple m2") == 1


@pytest.mark.chaos
def test_a_tick_that_kills_its_worker_for_a_while_comes_again(run: Any, tmp_path: Path) -> None:
    """Spark tries a task four times at most, so the first turn breaks."""
    case = Clocked(tmp_path, "m", a=DiesAtTicks(tmp_path, 5), par=1, until=lambda noted: noted("a").count("tick") >= 8)
    run(case.topology, stop=case.stop)
    assert case.heard == [("ack", "m")]


@pytest.mark.usefixtures("one_attempt")
def test_a_message_that_kills_its_worker_is_to_blame_beside_ticks(run: Any, tmp_path: Path) -> None:
    values = ["good", "bad", "fine"]
    case = Clocked(tmp_path, *values, a=DiesAtTuple(tmp_path), par=1, until=lambda noted: len(case.heard) == 3)
    run(case.topology, stop=case.stop)
    assert sorted(case.heard) == [("ack", "fine"), ("ack", "good"), ("fail", "bad", "JobFailedError")]
    assert case.noted("b").count("tuple tick") >= 1
