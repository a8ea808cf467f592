"""Random topologies for Spark, and the oracle that says how each message ends and what each sink has.

What a bolt does with a tuple is a function of the tuple's path, so that a worker and the oracle draw the same, and a task that
runs again does, too.
"""

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from acker_redis.storm import (
    Bolt,
    DataFrameSpout,
    Grouping,
    RetryPolicy,
    RowFailedError,
    Spout,
    StatefulBolt,
    Stream,
    Topology,
    TopologyBuilder,
    Tuple,
)
from tests.storm.turns.parts import Heard, spout_of
from tests.support.spark.faults import once

GROUPINGS = {
    "shuffle": Grouping.SHUFFLE,
    "all": Grouping.ALL,
    "global": Grouping.GLOBAL,
    "fields": Grouping.fields("path"),
    "partial_key": Grouping.partial_key("path"),
}
STREAMS = [Stream(["path string"]), Stream(["path string"], name="left")]


class Act(NamedTuple):
    """What a bolt does with a tuple: its emits as (stream, whether it is anchored), and how it settles the tuple."""

    emits: list[tuple[str, bool]]
    ends: Literal["ack", "fail", "forget"]


@dataclass(frozen=True)
class BoltPlan:
    name: str
    par: int
    inputs: tuple[tuple[str, str, str], ...]
    fails: float
    forgets: float
    holds: bool = False


@dataclass(frozen=True)
class Plan:
    seed: int
    messages: dict[str, int]
    bolts: tuple[BoltPlan, ...]
    sinks: tuple[tuple[str, str], ...]

    def act(self, bolt: BoltPlan, path: str) -> Act:
        chance = random.Random(f"{self.seed} {bolt.name} {path}")
        emits = [
            (chance.choice(("default", "default", "left")), chance.random() < 0.9) for _ in range(chance.randint(0, 3))
        ]
        drawn = chance.random()
        ends: Any = "fail" if drawn < bolt.fails else "forget" if drawn < bolt.fails + bolt.forgets else "ack"
        return Act(emits, ends)


def draw(seed: int) -> Plan:
    chance = random.Random(seed)
    spouts = [f"s{number}" for number in range(chance.randint(1, 2))]
    bolts: list[BoltPlan] = []
    for number in range(chance.randint(1, 4)):
        sources = [*spouts, *(bolt.name for bolt in bolts)]
        chosen = chance.sample(sources, chance.randint(1, min(3, len(sources))))
        inputs = {(source, "default", chance.choice(list(GROUPINGS))) for source in chosen}
        inputs |= {(source, "left", "shuffle") for source in chosen if source[0] == "b" and chance.random() < 0.5}
        bolts.append(
            BoltPlan(
                f"b{number}", chance.randint(1, 3), tuple(sorted(inputs)), chance.choice((0.0, 0.1)),
                chance.choice((0.0, 0.05)),
            )
        )  # fmt: skip
    streams = [(bolt.name, stream) for bolt in bolts for stream in ("default", "left")]
    return Plan(
        seed, {spout: chance.randint(5, 60) for spout in spouts}, tuple(bolts),
        tuple(chance.sample(streams, chance.randint(0, min(3, len(streams))))),
    )  # fmt: skip


def draw_with_holders(seed: int) -> Plan:
    """A plan whose bolts hold tuples over turns, and end each in time."""
    plan, chance = draw(seed), random.Random(f"holders {seed}")
    holders = {chance.choice(plan.bolts), *(bolt for bolt in plan.bolts if chance.random() < 0.5)}
    return replace(plan, bolts=tuple(replace(bolt, forgets=0.0, holds=bolt in holders) for bolt in plan.bolts))


class DrawnBolt(Bolt):
    outputs: Any = STREAMS
    auto_ack = False
    auto_anchor = False

    def __init__(self, plan: Plan, mine: BoltPlan, mark: str | None, dies_at: str | None) -> None:
        self.plan, self.mine, self.mark, self.dies_at = plan, mine, mark, dies_at

    def process(self, tup: Tuple) -> None:
        path = tup.values.path
        if self.mark is not None and path == self.dies_at:
            once(Path(self.mark), lambda: os.kill(os.getpid(), signal.SIGKILL))
        self.act(tup)

    def act(self, tup: Tuple) -> None:
        path = tup.values.path
        act = self.plan.act(self.mine, path)
        for number, (stream, is_anchored) in enumerate(act.emits):
            self.emit([f"{path}/{self.mine.name}.{number}"], stream=stream, anchors=[tup] if is_anchored else [])
        if act.ends == "fail":
            self.reject(tup)
        if act.ends == "ack":
            self.ack(tup)

    def reject(self, tup: Tuple) -> None:
        raise RowFailedError("drawn")


class DrawnHolder(DrawnBolt, StatefulBolt):
    """Holds up to three tuples that are tracked until another one comes, and all until a tick, at which its worker may die."""

    config = {"topology.tick.tuple.freq.secs": 0.2}

    def act(self, tup: Tuple) -> None:
        if not tup.edges:
            super().act(tup)
            return
        held = self.state.setdefault("held", [])
        held.append(tup)
        if len(held) > 3:
            super().act(held.pop(0))

    def process_tick(self, tup: Tuple) -> None:
        held = self.state.pop("held", [])
        for one in held:
            super().act(one)
        if held and self.mark is not None:
            once(Path(f"{self.mark}-tick"), lambda: os.kill(os.getpid(), signal.SIGKILL))

    def reject(self, tup: Tuple) -> None:
        self.fail(tup, "drawn")


class Expected:
    """How each message ends, and the rows of each sink."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.ends: dict[str, str] = {}
        self.rows: dict[tuple[str, str], Counter[str]] = {sink: Counter() for sink in plan.sinks}
        for spout, count in plan.messages.items():
            for number in range(count):
                path = f"{spout}-{number}"
                found = set(self._settled(spout, "default", path, 1))
                self.ends[path] = "fail" if "fail" in found else "forget" if "forget" in found else "ack"

    def _settled(self, source: str, stream: str, path: str, copies: int) -> Iterator[str]:
        """The ends of all tuples of a tree, below a tuple that is emitted so many times."""
        if (source, stream) in self.rows:
            self.rows[source, stream][path] += copies
        for bolt in self._plan.bolts:
            for other, of, grouping in bolt.inputs:
                if (other, of) != (source, stream):
                    continue
                received = copies * (bolt.par if grouping == "all" else 1)
                act = self._plan.act(bolt, path)
                yield act.ends
                for number, (out, is_anchored) in enumerate(act.emits):
                    below = list(self._settled(bolt.name, out, f"{path}/{bolt.name}.{number}", received))
                    if is_anchored:
                        yield from below


def rows_of(frame: Any, heard: Heard) -> DataFrameSpout:
    """A spout of rows, each of which has one attempt. It names its messages as the other spouts do."""

    class Rows(DataFrameSpout):
        retry = RetryPolicy(max_attempts=1)

        def ack(self, tup_id: int) -> None:
            heard.append(("ack", f"{self.component_name}-{tup_id}"))

        def fail(self, tup_id: int, reason: str) -> None:
            heard.append(("fail", f"{self.component_name}-{tup_id}", reason))

    return Rows(frame, ids="id")


def build(plan: Plan, heard: Heard, mark: str | None = None, spark: Any = None) -> Topology:
    """The topology of a plan. A worker dies at its last message, once, if there is a mark.

    With a session, the messages of the first spout are rows.
    """
    builder = TopologyBuilder()
    for spout, count in plan.messages.items():
        if spark is not None and spout == "s0":
            frame = spark.range(count).repartition(3).selectExpr("concat('s0-', id) AS path", "id")
            builder.set_spout(spout, rows_of(frame, heard))
            continue
        paths = [f"{spout}-{number}" for number in range(count)]
        messages = [(path, path if number % 7 else None) for number, path in enumerate(paths)]
        spout_class: type[Spout] = spout_of(messages, heard, ["path"])
        builder.set_spout(spout, spout_class)
    dies_at = f"s0-{plan.messages['s0'] - 1}"
    for bolt in plan.bolts:
        kind = DrawnHolder if bolt.holds else DrawnBolt
        declared = builder.set_bolt(bolt.name, kind(plan, bolt, mark, dies_at), par=bolt.par)
        for source, stream, grouping in bolt.inputs:
            declared.grouping(source, GROUPINGS[grouping], stream)
    secs = 60 if any(bolt.holds for bolt in plan.bolts) else 1
    return builder.create_topology(f"drawn-{plan.seed}", {"topology.message.timeout.secs": secs})
