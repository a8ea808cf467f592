"""Bolts that hold tuples over turns, which Python workers import."""

from pathlib import Path
from typing import Any

from acker_redis import BadTupleError
from acker_redis.storm import Grouping, Spout, StatefulBolt, Topology, TopologyBuilder, Tuple
from tests.storm.turns.tick_parts import TICKS
from tests.support.spark.faults import kill_self, once


class Join(StatefulBolt):
    """Joins tuples of two spouts by their number. Its worker dies once, at a pair, if there is a folder."""

    outputs = ["n bigint", "first string", "second string"]
    auto_ack = False

    def process(self, tup: Tuple) -> None:
        other = self.state.pop(tup.values.n, None)
        if other is None:
            self.state[tup.values.n] = tup
            return
        self.emit([tup.values.n, other.component, tup.component], anchors=[other, tup])
        self.ack(other)
        self.ack(tup.id)
        if "folder" in self.storm_conf and tup.values.n == 5:
            once(Path(self.storm_conf["folder"], "killed"), kill_self)


def joining(first: type[Spout], second: type[Spout], *, config: Any = None, behind: Any = None) -> Topology:
    """Two spouts and their join, and a bolt behind it."""
    builder = TopologyBuilder()
    builder.set_spout("first", first)
    builder.set_spout("second", second)
    declared = builder.set_bolt("join", Join, par=2)
    declared.grouping("first", Grouping.fields("n")).grouping("second", Grouping.fields("n"))
    if behind is not None:
        builder.set_bolt("behind", behind, par=2).shuffle_grouping("join")
    return builder.create_topology("joining", config)


class Scripted(StatefulBolt):
    """Does with held tuples what each value says, such as `hold a`, `ack a` or `emit a`, and emits what came of it."""

    outputs = ["v string"]
    auto_ack = False

    def process(self, tup: Tuple) -> None:
        what, _, name = tup.values[0].partition(" ")
        said = getattr(self, what)(name, tup)
        self.emit([f"{what} {said}"], anchors=[])
        if what != "hold":
            self.ack(tup)

    def hold(self, name: str, tup: Tuple) -> str:
        self.state[name] = tup
        return tup.id

    def settle(self, name: str, tup: Tuple) -> str:
        """Ack it, and leave it in the state."""
        try:
            self.ack(self.state[name])
        except BadTupleError:
            return "refused"
        return "done"

    def settle_by_id(self, name: str, tup: Tuple) -> str:
        self.ack(self.state[name].id)
        return "done"

    def reject(self, name: str, tup: Tuple) -> str:
        self.fail(self.state[name], "on purpose")
        return "done"

    def derive(self, name: str, tup: Tuple) -> str:
        """Emit two equal tuples, one anchored to it."""
        self.emit(["derived"], anchors=[self.state[name]])
        return "done"

    def extend(self, name: str, tup: Tuple) -> str:
        self.reset_timeout(self.state[name])
        return "done"

    def look(self, name: str, tup: Tuple) -> str:
        held = self.state[name]
        return f"{held.values.v} {len(held.edges)} {held.state.name}"

    def share(self, name: str, tup: Tuple) -> str:
        self.state["other"] = [self.state[name]]
        return "done"

    def move(self, name: str, tup: Tuple) -> str:
        self.state["moved"] = {"in": [self.state.pop(name)]}
        return "done"

    def settle_moved(self, name: str, tup: Tuple) -> str:
        self.ack(self.state.pop("moved")["in"][0])
        return "done"


class DiesWithItsTuples(StatefulBolt):
    """Holds tuples until a tick. Its worker dies at each tick while the tuple `bad` is pending."""

    config = TICKS
    auto_ack = False

    def process(self, tup: Tuple) -> None:
        self.state.setdefault("held", []).append(tup)

    def process_tick(self, tup: Tuple) -> None:
        held = self.state.get("held", [])
        if any(one.values[0] == "bad" and one.state.name == "PENDING" for one in held):
            kill_self()
        for one in held:
            if one.state.name == "PENDING":
                self.ack(one)
        self.state["held"] = []
