"""What batches and windows hold over turns, each of which may be in another worker."""

import logging
import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import fakeredis
import pytest

from acker_redis import InvalidTopologyError
from acker_redis.client.client import Client
from acker_redis.store.topology_state import TopologyState
from acker_redis.storm import BatchingBolt, StatefulBolt, Tuple, WindowedBolt
from acker_redis.storm.components.windowed import begin_windows
from acker_redis.storm.core.tuples import ACKED
from acker_redis.storm.state.codec import encode_value
from acker_redis.storm.state.held import Moment
from acker_redis.storm.state.holdings import KeptStates
from acker_redis.storm.state.shapes import states_of_task
from tests.storm.state.test_held import Keeps, graph_of, tuple_of


class Batches(BatchingBolt):
    batch_size = 100

    def group_key(self, tup: Tuple) -> Any:
        return tup.values.v % 2

    def process_batch(self, key: Any, tups: list[Tuple]) -> None: ...


class Windows(WindowedBolt):
    window, slide = 3, 2

    def process_window(self, window: Any) -> None: ...


class Run:
    """Turns of one task. Each is committed, and may be in another worker."""

    def __init__(self, bolt: type[Any]) -> None:
        self.bolt, self.graph = bolt, graph_of(bolt)
        self.stored = TopologyState(Client(fakeredis.FakeRedis()), "app", "held")
        self.epoch, self.number = self.stored.open({})[0], 0
        (self.task,) = self.graph.components["bolt"].task_ids
        self.states = KeptStates(self.graph, self.task)
        self.live = self.instance()
        self.happened: list[Any] = []

    def instance(self) -> Any:
        live = self.bolt()
        live._acker_collector, live._acker_logger = self, logging.getLogger("acker_redis.storm")
        live._acker_place = Mock(component="bolt", task_id=self.task)
        begin_windows(live, self.graph, 30, lambda: self.now_ms)
        return live

    open_tuples: dict[str, Tuple]
    now_ms = 0

    def ack(self, tup: Tuple) -> None:
        """The collector's call."""
        tup.state = ACKED
        self.happened.append(("acked", tup.values.v))

    def turn(self, *values: int, moves: bool = False, commits: bool = True) -> int:
        """A turn with tuples. Returns how many are held, and commits it."""

        def process(live: Any) -> None:
            for value in values:
                live.process(tuple_of(self.number, value))

        return self.turn_of(process, moves=moves, commits=commits)

    def turn_of(self, act: Callable[[Any], object], *, moves: bool, commits: bool = True) -> int:
        """A turn in which the bolt does something, in this or in another worker."""
        self.open_tuples = {}
        self.number += 1
        if moves:
            self.states, self.live = KeptStates(self.graph, self.task), self.instance()
        turn = self.stored.turn(self.epoch, self.number)
        (state,), holdings = self.states.all(), self.states.holdings
        assert holdings is not None
        state.begin(turn)
        moment = Moment(self.epoch, self.number)
        self.states.held.begin(moment, self)  # type: ignore[arg-type]
        holdings.begin(self.live, moment)
        act(self.live)
        count = holdings.end(self.live)
        attempt = state.end(f"x{self.number}")
        if commits:
            turn.commit([attempt] if attempt else [])
        else:
            assert turn.close()
        return count

    def held(self) -> list[tuple[int, Any]]:
        return [(tup.values.v, place) for tup, place in self.live._acker_held_places()]


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("bolt", [Batches, Windows])
def test_a_task_goes_on_with_what_it_held_in_any_worker(bolt: type[Any], moves: bool) -> None:
    run, whole = Run(bolt), Run(bolt)
    turns: Iterator[tuple[int, ...]] = iter([(1, 2), (), (3,), (4, 5, 6), ()])
    for values in turns:
        run.turn(*values, moves=moves)
    whole.turn(1, 2, 3, 4, 5, 6)
    assert run.held() == whole.held() and run.held()
    assert run.live._acker_held_progress() == whole.live._acker_held_progress()


def test_tuples_of_a_turn_that_was_closed_are_not_held() -> None:
    run = Run(Batches)
    run.turn(1)
    run.turn(2, commits=False)
    assert run.turn(3) == 2 and [value for value, _ in run.held()] == [1, 3]


class AcksExpired(WindowedBolt):
    window = 1
    auto_ack = False

    def process_window(self, window: Any) -> None: ...


@pytest.mark.parametrize("moves", [False, True])
def test_a_tuple_that_left_its_last_window_unacked_is_open_until_the_next_window_has_it_as_expired(moves: bool) -> None:
    run = Run(AcksExpired)
    assert run.turn(1) == 0
    run.turn(moves=moves)
    assert run.open_tuples.keys() == {"1:1:1"}


def test_a_new_run_holds_nothing() -> None:
    run = Run(Windows)
    run.turn(1, 2, 3)
    run.epoch, run.number = run.stored.open({})[0], 0
    assert run.turn(4, moves=True) == 1
    assert run.turn(moves=True) == 1 and [value for value, _ in run.held()] == [4]


def test_only_what_changed_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(Batches)
    run.turn(*range(20))
    state = run.states.all()[0]
    written: list[Any] = []
    write = type(state).__setitem__

    def note(state: Any, key: Any, value: Any) -> None:
        written.append(key)
        write(state, key, value)

    monkeypatch.setattr(type(state), "__setitem__", note)
    run.turn(20)
    assert written == ["2:1:20"]


def test_a_tuple_of_a_window_may_not_be_in_the_state_too_although_its_window_did_not_change() -> None:
    """Otherwise the window acks it, and the other value has it as pending, with its edges."""
    run = Run(Windows)
    run.turn(1)
    run.turn()
    (tup,) = run.live._acker_held_tuples()
    for key in ("oldest", tup.id):
        with pytest.raises(InvalidTopologyError, match=f"tuple '1:1:1' for 'its batches or windows' and '{key}'"):
            encode_value({"tup": tup}, key, "bolt", run.states.held)
    run.ack(tup)
    encode_value(tup, "oldest", "bolt", run.states.held)


class BatchesWithState(Batches, StatefulBolt):
    pass


def test_a_bolt_with_batches_and_a_state_keeps_them_apart() -> None:
    graph = graph_of(BatchesWithState)
    own, holdings = KeptStates(graph, 1).all()
    assert repr(own) == "<state of bolt:0>" and repr(holdings) == "<state of __held%3Abolt:0>"
    assert KeptStates(graph_of(Keeps), 1).holdings is None
    assert states_of_task(graph.components["bolt"]) == 2


class Shows(WindowedBolt):
    def process_window(self, window: Any) -> None:
        tuples, new, expired = ([tup.values.v for tup in of] for of in (window.tuples, window.new, window.expired))
        self._acker_collector.happened.append((tuples, new, sorted(expired), window.start, window.end))


def extent(chance: random.Random) -> Any:
    return chance.choice([1, 2, 3, 5, *(timedelta(milliseconds=ms) for ms in (20, 30, 50, 100))])


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.chaos) for seed in range(100, 200))]
)
def test_windows_over_turns_are_those_of_one_process(seed: int) -> None:
    """Turns end anywhere, are in any worker, and may break and come again."""
    chance = random.Random(seed)
    own = {"window": extent(chance), "slide": extent(chance)}
    if seed % 3 == 0:
        own |= {"timestamp_field": "v", "lag": timedelta(milliseconds=chance.choice((0, 20)))}
    bolt = type("Shows", (Shows,), own)
    over_turns, whole = Run(bolt), Run(bolt)
    numbers = list(range(1, 100))
    chance.shuffle(numbers) if seed % 2 else None
    times = sorted(chance.randrange(300) for _ in range(60))
    calls = [(ms, None if chance.random() < 0.3 else numbers.pop(0)) for ms in times]
    calls.append((301, None))

    def does(run: Run, some: list[tuple[int, int | None]]) -> Callable[[Any], None]:
        def act(live: Any) -> None:
            for ms, value in some:
                run.now_ms = ms
                if value is None:
                    live._acker_on_time(ms)
                else:
                    live.process(tuple_of(run.number, value))
            if some[-1] == calls[-1]:
                live._acker_flush()

        return act

    whole.turn_of(does(whole, calls), moves=False)
    at = 0
    while at < len(calls):
        size = chance.randint(1, 9)
        some, at = calls[at : at + size], at + size
        before = list(over_turns.happened)
        while chance.random() < 0.2:
            over_turns.turn_of(does(over_turns, some), moves=chance.random() < 0.5, commits=False)
            over_turns.happened = list(before)
        over_turns.turn_of(does(over_turns, some), moves=chance.random() < 0.5)
    assert over_turns.happened == whole.happened and len(whole.happened) > 30
