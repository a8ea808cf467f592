"""Small spouts and bolts that tests of the contract share."""

from typing import Any

from acker_redis.storm import Bolt, FeederSpout, Topology, TopologyBuilder, Tuple


class Sink(Bolt):
    """Acks what it gets."""

    def process(self, tup: Tuple) -> None:
        pass


class Pass(Bolt):
    outputs = ["v"]

    def process(self, tup: Tuple) -> None:
        self.emit([tup.values[0]])


class Keeps(Bolt):
    """Holds every tuple, and settles none."""

    auto_ack = False

    def initialize(self, conf: Any, context: Any) -> None:
        self.held: list[Tuple] = []

    def process(self, tup: Tuple) -> None:
        self.held.append(tup)


def fed(*steps: Any, config: dict[str, Any] | None = None) -> Topology:
    """A feeder named `spout` with the field `v`, and bolts `b0`, `b1` … behind it, one after another."""
    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["v"]))
    previous = "spout"
    for number, step in enumerate(steps):
        builder.set_bolt(f"b{number}", step, config=config).shuffle_grouping(previous)
        previous = f"b{number}"
    return builder.create_topology()


def rows(run: Any, component: str, stream: str = "default") -> list[tuple[Any, ...]]:
    return [tuple(row) for row in run.emitted(component, stream)]
