"""Bolts with state for topologies on Spark. Workers import them from here."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acker_redis import TurnOverError
from acker_redis.client.client import Client
from acker_redis.store.topology_state import StateTurn, Status, TopologyState
from acker_redis.storm import Bolt, Grouping, Spout, StatefulBolt, Topology, TopologyBuilder, Tuple
from tests.storm.turns.cluster_parts import FAULTS
from tests.storm.turns.parts import Split
from tests.storm.turns.tick_parts import TICKS
from tests.support.spark.faults import kill_self, once, wait_for


class Count(StatefulBolt):
    """Counts words, in a value that changes in place, too."""

    outputs = ["word string", "n bigint"]

    def process(self, tup: Tuple) -> None:
        word = tup.values[0]
        if word == "kills":
            kill_self()
        if word == "kills-once":
            once(Path(self.storm_conf["folder"]) / "killed", kill_self)
        n = self.state.get(word, 0) + 1
        self.state[word] = n
        self.state.setdefault(("seen", word), []).append(word)
        if word == "gone":
            del self.state["gone"]
        self.emit([word, n])


class CountsFromInitialize(StatefulBolt):
    """Sets its state in `initialize`, as Storm's bolts do."""

    outputs = ["word string", "n bigint"]

    def initialize(self, conf: Any, context: Any) -> None:
        self.key = f"words of task {context.task_index}"
        self.state.setdefault(self.key, 0)

    def process(self, tup: Tuple) -> None:
        self.state[self.key] += 1
        self.emit([tup.values[0], self.state[self.key]])


class CountsNumbers(Count):
    outputs = ["v bigint", "n bigint"]


def counting(
    spout: Spout | type[Spout],
    name: str = "words",
    *,
    par: int = 2,
    config: Any = None,
    behind: Any = None,
    count: type[Bolt] = Count,
) -> Topology:
    """A spout of lines, a split, counts of their words, and a bolt behind them."""
    builder = TopologyBuilder()
    builder.set_spout("lines", spout)
    builder.set_bolt("split", Split, par=2).shuffle_grouping("lines")
    builder.set_bolt("count", count, par=par).grouping("split", Grouping.fields("word"))
    if behind is not None:
        builder.set_bolt("behind", behind, par=2).shuffle_grouping("count")
    return builder.create_topology(name, config)


class CountsTicks(StatefulBolt):
    """Counts tuples and ticks, and emits both numbers at a tick. Its worker dies at the first ticks."""

    outputs = ["n bigint", "ticks bigint"]
    config = TICKS

    def process(self, tup: Tuple) -> None:
        self.state["n"] = self.state.get("n", 0) + 1

    def process_tick(self, tup: Tuple) -> None:
        ticks = self.state.setdefault("ticks", [])
        ticks.append(tup.id)
        self.emit([self.state.get("n", 0), len(ticks)])
        for number in range(self.storm_conf["deaths"]):
            once(Path(self.storm_conf["folder"], f"died-{number}"), kill_self)


class LosesShuffleFiles(Bolt):
    """Kills its worker once, and takes away what the tasks before it have written."""

    def process(self, tup: Tuple) -> None:
        once(Path(self.storm_conf["folder"], "lost"), self._lose)

    def _lose(self) -> None:
        for path in Path(self.storm_conf["local"]).rglob("shuffle_*"):
            path.unlink(missing_ok=True)
        kill_self()


class Keeps(StatefulBolt):
    """Keeps a value that `make` makes of the tuple."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def process(self, tup: Tuple) -> None:
        self.state["kept"] = self.make(tup)


def a_function(tup: Tuple) -> Any:
    return lambda: None


def two_megabytes(tup: Tuple) -> Any:
    return b"x" * (2 << 20)


class LeavesAZombie(Count):
    """Its first execution leaves a process behind, which goes on once the turn is over, and notes the answers of Redis."""

    def process(self, tup: Tuple) -> None:
        once(Path(self.storm_conf["folder"], "zombie"), self._leave)
        super().process(tup)

    def _leave(self) -> None:
        state: Any = self.state
        turn = state._turn
        if not os.fork():
            os.closerange(3, 4096)  # Spark waits for the ends of this worker's connections
            folder = Path(self.storm_conf["folder"])
            try:
                answers = zombie_answers(self.storm_conf, state._task, turn.epoch, turn.number)
                (folder / "part").write_text("\n".join(answers))
                (folder / "part").rename(folder / "answers")
            finally:
                os._exit(0)
        kill_self()


def zombie_answers(conf: Any, task: str, epoch: int, number: int) -> list[str]:
    """What Redis answers to each call of an execution that is too late: in its turn's epoch, and in the next one."""
    answers = []
    client = Client(conf["url"])
    turn = TopologyState(client, "turns", "words").turn(epoch, number)
    attempt = turn.write(task, "zombie", {b"sa": b"wrong", b"swrong": b"wrong"})
    for mark in ("committed", "ended"):
        wait_for(Path(conf["folder"], mark))
        calls: list[Callable[[], Any]] = [
            lambda: turn.load(task),
            lambda: turn.read(task, [b"sa"]),
            lambda: turn.write(task, "late", {b"sa": b"wrong"}),
            lambda: turn.commit([attempt]).name,
            lambda: list(turn.fold(task, attempt.attempt_id)),
            lambda: turn.close(),
        ]
        for call in calls:
            try:
                answers.append(repr(call()))
            except TurnOverError as exc:
                answers.append("newer run" if "newer run" in str(exc) else "turn over")
        Path(conf["folder"], f"answered-{mark}").touch()
    client.close()
    return answers


class DiesAtRandom(Count):
    """Its worker dies at random, up to so many times: at a tuple, or around a call that writes or folds the state."""

    def process(self, tup: Tuple) -> None:
        die_somewhere(self.storm_conf["folder"], self.storm_conf["deaths"])
        super().process(tup)


def die_somewhere(folder: str, deaths: int) -> None:
    """Die here at random, up to so many times, or later around a call that writes or folds the state."""
    for name in ("write", "fold", "load"):
        _die_around(name, folder, deaths)
    die_at_random(folder, deaths, 0.02)


def spare_workers(folder: Path, deaths: int) -> None:
    """Let nothing die any more. Spark's workers go on with other tests, and their calls stay wrapped."""
    for number in range(deaths):
        Path(folder, f"death-{number}").touch()


def die_at_random(folder: str, deaths: int, chance: float) -> None:
    drawn = random.SystemRandom()
    if drawn.random() < chance:
        once(Path(folder, f"death-{drawn.randrange(deaths)}"), kill_self)


def _die_around(name: str, folder: str, deaths: int) -> None:
    """Wrap a call of the state in this worker, once."""
    call = getattr(StateTurn, name)
    if hasattr(call, "wrapped"):
        return

    def dying(*arguments: Any, **options: Any) -> Any:
        die_at_random(folder, deaths, 0.1)
        found = call(*arguments, **options)
        die_at_random(folder, deaths, 0.1)
        return found

    dying.wrapped = True  # type: ignore[attr-defined]
    setattr(StateTurn, name, dying)


class CountsWithFault(Count):
    """Counts, with a fault of its executor or of its attempt at a word."""

    def process(self, tup: Tuple) -> None:
        if tup.values[0] == "victim":
            with_fault(self, "count")
        super().process(tup)


class BehindWithFault(Bolt):
    outputs = ["word"]

    def process(self, tup: Tuple) -> None:
        if tup.values[0] == "victim":
            with_fault(self, "behind")
        self.emit([tup.values[0]])


def with_fault(bolt: Bolt, where: str) -> None:
    """Let the fault happen that the topology names, if it names this bolt."""
    conf = bolt.storm_conf
    if conf["where"] == where:
        FAULTS[conf["fault"]](Path(conf["folder"]), lambda: None)


def commit_twice(monkeypatch: pytest.MonkeyPatch) -> list[Status]:
    """Let each turn commit its state twice, as after a lost reply. Returns the statuses, which come later."""
    commit, statuses = StateTurn.commit, list[Status]()

    def twice(self: StateTurn, attempts: Any) -> Status:
        statuses.extend(commit(self, attempts) for _ in range(2))
        return statuses[-1]

    monkeypatch.setattr(StateTurn, "commit", twice)
    return statuses
