"""Components and builders that several tests of topologies use."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from acker_redis.storm import (
    Bolt,
    FeederSpout,
    Grouping,
    Spout,
    StatefulBolt,
    Stream,
    Topology,
    TopologyBuilder,
    Tuple,
)


class Upto(Spout):
    """Emits 1 to `most` under the ids m1, m2 ..., one at a call, and keeps what it hears."""

    outputs = ["v"]

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self.calls: list[Any] = []
        self.n = 0

    def initialize(self, conf: Mapping[str, Any], context: Any) -> None:
        self.calls.append("initialize")

    def activate(self) -> None:
        self.calls.append("activate")

    def deactivate(self) -> None:
        self.calls.append("deactivate")

    def close(self) -> None:
        self.calls.append("close")

    def next_tuple(self) -> None:
        if self.n < self.most:
            self.n += 1
            self.emit([self.n], tup_id=f"m{self.n}")

    def ack(self, tup_id: Any) -> None:
        self.calls.append(("ack", tup_id))

    def fail(self, tup_id: Any, reason: str) -> None:
        self.calls.append(("fail", tup_id, reason))


class Do(Bolt):
    """Calls a function with itself and the tuple. It acks nothing itself, unless told so."""

    outputs: Sequence[Any] = ["v"]
    auto_anchor = False
    auto_ack = False

    def __init__(self, call: Callable[["Do", Tuple], object], outputs: Sequence[Any] = ("v",), **flags: Any) -> None:
        self.call = call
        self.outputs = list(outputs)
        self.held: list[Tuple] = []
        for name, value in flags.items():
            setattr(self, name, value)

    def process(self, tup: Tuple) -> None:
        self.call(self, tup)

    def process_tick(self, tup: Tuple) -> None:
        self.call(self, tup)


def sink() -> Do:
    return Do(lambda bolt, tup: bolt.ack(tup))


def passing() -> Do:
    def call(bolt: Do, tup: Tuple) -> None:
        bolt.emit(list(tup.values), anchors=[tup])
        bolt.ack(tup)

    return Do(call)


def keeping() -> Do:
    """Keeps and acks each tuple."""

    def call(bolt: Do, tup: Tuple) -> None:
        bolt.held.append(tup)
        bolt.ack(tup)

    return Do(call)


def until_tick() -> Do:
    """Holds tuples until a tick, then acks them."""

    def call(bolt: Do, tup: Tuple) -> None:
        if not tup.is_tick:
            bolt.held.append(tup)
            return
        while bolt.held:
            bolt.ack(bolt.held.pop())

    return Do(call)


def holding() -> Do:
    return Do(lambda bolt, tup: bolt.held.append(tup))


def chain(*bolts: Bolt | type[Bolt], spout: Spout | None = None, config: Mapping[str, Any] | None = None) -> Topology:
    """Make a topology of a spout `spout` and bolts `a`, `b` ... behind each other."""
    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["v"]) if spout is None else spout)
    source = "spout"
    for name, bolt in zip("abcdefgh", bolts, strict=False):
        builder.set_bolt(name, bolt).shuffle_grouping(source)
        source = name
    return builder.create_topology(config=config)


class Lines(Spout):
    """Emits the lines of the setting `lines`, under their numbers."""

    outputs = ["line"]

    def initialize(self, conf: Mapping[str, Any], context: Any) -> None:
        self.source = enumerate(conf.get("lines", ()))

    def next_tuple(self) -> None:
        for number, line in itertools.islice(self.source, 1):
            self.emit([line], tup_id=number)


class Split(Bolt):
    outputs = [Stream(fields=["word"]), Stream(fields=["line"], name="empty")]

    def process(self, tup: Tuple) -> None:
        if not tup.values.line.strip():
            self.emit([tup.values.line], stream="empty")
        for word in tup.values.line.split():
            self.emit([word])


class Count(StatefulBolt):
    outputs = ["word", "n"]

    def process(self, tup: Tuple) -> None:
        self.state[tup.values.word] = n = self.state.get(tup.values.word, 0) + 1
        self.emit([tup.values.word, n])


class WordCount(Topology):
    config = {"topology.message.timeout.secs": 30, "topology.max.spout.pending": 1000}
    lines = Lines.spec()
    split = Split.spec(inputs=[lines], par=4)
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=8)


SEEDS = range(5)
