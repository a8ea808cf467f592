"""Held tuples that are too long: their messages fail once their bolt is known to work."""

from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import MagicMock, Mock

import pyarrow as pa
import pytest

from acker_redis import Acker
from acker_redis.errors import OperatorBrokenError
from acker_redis.storm.core.values import load_values
from acker_redis.storm.local.pending import History
from acker_redis.storm.local.service import RunResult
from acker_redis.storm.turns.checks import TurnSettings
from acker_redis.storm.turns.commit import HeldTooLongError
from acker_redis.storm.turns.engine import TurnEngine
from acker_redis.storm.turns.job import TurnReport
from acker_redis.storm.turns.pauses import Pauses
from acker_redis.storm.turns.plan import make_plan
from acker_redis.storm.turns.refusals import Refusals
from acker_redis.storm.turns.rows import LAST_CALLER, edges_of_tuples, unpack
from acker_redis.storm.turns.run import TurnService
from acker_redis.storm.turns.search import BoltHealth
from acker_redis.storm.turns.steps import LevelReport
from acker_redis.testing import fake_acker
from tests.storm.turns.batch_parts import Sums
from tests.storm.turns.parts import Heard, chain, numbered, spout_of
from tests.storm.turns.test_engine import engine_of


@pytest.fixture
def engine() -> Iterator[TurnEngine]:
    with fake_acker() as acker:
        yield engine_of(acker)


class Turns:
    """Turns of an engine whose tuples are held by the bolt `a`."""

    def __init__(self, engine: TurnEngine, *, stop_if_broken: bool = True) -> None:
        self.engine, self.health = engine, BoltHealth(everything_counts=not stop_if_broken)
        self.held = set[str]()
        self.refusals = Refusals(engine, self.health, self.held.__contains__)

    def emit(self, count: int, history: History | None = None) -> list[int]:
        """Emit messages, or one of them again. Returns their roots."""
        ((number, task),) = self.engine.spout_tasks.items()
        task.history = history
        roots = [self.engine.new_root() for _ in range(count)]
        for root in roots:
            self.engine.init(number, root, 1, Mock())
        return roots

    def break_at(self, roots: list[int], *, is_last: bool = False) -> None:
        refused = dict.fromkeys(roots, ("a", "too long"))
        self.refusals.note(self.refusals.pending_of(refused), is_last=is_last)

    def show_that_it_works(self) -> None:
        self.health.judge([], {}, {"a": {0}}, self.engine.message_of, is_last=False)

    def failed(self, roots: list[int]) -> list[bool]:
        """Whether each message has failed for good."""
        messages = map(self.engine.message_of, roots)
        return [message is not None and (message.reason, message.retry) == ("too long", False) for message in messages]


def test_other_messages_of_the_turn_go_out_first_and_alone(engine: TurnEngine) -> None:
    turns = Turns(engine)
    roots = turns.emit(3)
    turns.break_at(roots[1:2])
    assert len(turns.refusals.take_others()) == 2 and turns.refusals.take_others() == [] and not engine.messages
    assert [engine.message_of(root) is not None for root in roots] == [False, True, False]


def test_messages_fail_at_once_if_the_bolt_works(engine: TurnEngine) -> None:
    turns = Turns(engine)
    roots = turns.emit(3)
    turns.show_that_it_works()
    turns.break_at(roots)
    assert turns.refusals.judge() == [] and turns.failed(roots) == [True] * 3
    assert turns.refusals.judge() == [], "they are judged once"


def test_messages_fail_at_once_if_batches_or_windows_of_the_bolt_have_held_others(engine: TurnEngine) -> None:
    """These wait for their batch, so the bolt has processed none yet."""
    turns = Turns(engine)
    roots = turns.emit(25)
    turns.break_at(roots)
    turns.held.add("a")
    assert turns.refusals.judge() == [] and turns.failed(roots) == [True] * 25


def test_messages_that_wait_for_their_judgement_dont_time_out(engine: TurnEngine) -> None:
    turns = Turns(engine)
    roots = turns.emit(2)
    turns.break_at(roots[:1])
    turns.refusals.take_others()
    other = turns.emit(1)
    for _ in range(3):
        engine._rotates_at = 0.0
        assert engine.time_out_if_due(turns.refusals.unjudged)
    assert engine.message_of(roots[0]) is not None and engine.message_of(other[0]) is None
    turns.show_that_it_works()
    assert turns.refusals.judge() == [] and turns.failed(roots[:1]) == [True] and not turns.refusals.unjudged


def test_messages_go_out_again_until_the_bolt_has_processed_another_one(engine: TurnEngine) -> None:
    turns = Turns(engine)
    roots = turns.emit(2)
    for _ in range(30):  # a message counts once
        turns.break_at(roots)
        withdrawn = turns.refusals.judge()
        assert len(withdrawn) == 2 and not turns.refusals.has_others and not any(map(engine.message_of, roots))
        roots = [root for one in withdrawn for root in turns.emit(1, one.history)]
    turns.show_that_it_works()
    turns.break_at(roots)
    assert turns.refusals.judge() == [] and turns.failed(roots) == [True] * 2


@pytest.mark.parametrize("of_few", [True, False])
def test_messages_fail_if_no_other_can_come_or_the_caller_wants_it(engine: TurnEngine, of_few: bool) -> None:
    turns = Turns(engine, stop_if_broken=of_few)
    roots = turns.emit(19 if of_few else 40)
    turns.break_at(roots, is_last=of_few)
    assert turns.refusals.judge() == [] and all(turns.failed(roots))


def test_many_messages_of_a_bolt_that_has_processed_none_end_the_run(engine: TurnEngine) -> None:
    turns = Turns(engine)
    roots = turns.emit(20)
    turns.break_at(roots, is_last=True)
    with pytest.raises(OperatorBrokenError, match=r"20 messages failed in 'a'.*too long.*stop_if_broken=False"):
        turns.refusals.judge()
    assert not any(map(engine.message_of, roots)), "none is left pending"


def test_messages_that_have_ended_meanwhile_are_not_judged(engine: TurnEngine) -> None:
    turns = Turns(engine)
    roots = turns.emit(25)
    turns.break_at(roots)
    engine.take_back([message for root in roots[:24] if (message := engine.message_of(root)) is not None])
    assert len(turns.refusals.judge()) == 1


# -- runs, whose jobs are played


class Batches:
    """Jobs of a bolt `a` that holds each tuple until its last call, and can't keep long ones.

    The first two take longer than the message timeout.
    """

    def __init__(self, acker: Acker) -> None:
        self.acker = acker
        self.engine: Any = None
        self.held: dict[int, int] = {}

    def tag(self, number: int) -> str:
        return f"turn {number}"

    def run(self, number: int, rows: Sequence[pa.RecordBatch], *of_turn: Any) -> TurnReport:
        if number <= 2:
            self.engine._rotates_at = 0.0
        came: dict[int, int] = {}
        refused: dict[int, tuple[str, str]] = {}
        is_last_call = False
        for row in [row for batch in rows for row in batch.to_pylist()]:
            tuples = unpack(row["data"])
            is_last_call |= row["frm"] == LAST_CALLER
            for values, edges in zip(tuples.values, edges_of_tuples(tuples, row["edges"]), strict=True):
                came |= edges
                if load_values(values) == ("long",):
                    refused |= dict.fromkeys(edges, ("a", "too long"))
        if refused:
            raise HeldTooLongError(refused)
        self.held |= came
        acked = self.held if is_last_call else {}
        if acked:
            self.acker.ack_many(list(acked), list(acked.values()))
            self.held = {}
        return TurnReport([LevelReport({}, [], {"a": {0}} if acked else {}, holds={1: len(self.held)})], [])


def play(values: Sequence[str], heard: Heard, turn_tuples: int) -> RunResult:
    """Run a topology to its end."""
    with fake_acker() as acker:
        jobs = Batches(acker)
        plan = make_plan(chain(spout_of(numbered(values), heard), Sums, par=1)._checked_graph(), {}, {}, 1)
        checked = TurnSettings(turn_tuples, 60.0, None, True)
        service = TurnService(plan, acker, None, lambda run_id: jobs, MagicMock(), {}, checked)  # type: ignore[arg-type, return-value]
        jobs.engine = service._engine
        return service.run()


@pytest.mark.parametrize("turn_tuples", [1000, 5])
def test_many_tuples_that_are_too_long_for_batches_fail_before_the_first_batch_is_processed(turn_tuples: int) -> None:
    """Each fails with its reason, although the turn of the others takes longer than the message timeout."""
    heard, values = Heard(), ["short", *["long"] * 30, "short"]
    result = play(values, heard, turn_tuples)
    assert heard.failed == dict.fromkeys(range(1, 31), "too long") and sorted(heard.acked) == [0, 31]
    assert (result.failed, result.timed_out, result.unfinished) == (30, 0, 0)


def test_a_run_whose_tuples_are_all_too_long_for_its_batches_ends_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before they go out again, the run pauses."""
    heard, pauses = Heard(), list[int]()
    monkeypatch.setattr(Pauses, "pause", lambda self, breaks: pauses.append(breaks))
    with pytest.raises(OperatorBrokenError, match=r"20 messages failed in 'a', which has not processed.*\(too long\)"):
        play(["long"] * 40, heard, 18)
    assert heard == [] and pauses == [1, 1]
