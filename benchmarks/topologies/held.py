"""A topology whose messages are all pending at once, and then acked."""

from collections.abc import Callable
from typing import Any

from acker_redis.storm import Bolt, Spout, Stream, Topology, TopologyContext, Tuple


class Numbers(Spout):
    """Emits all messages, calls a function once all are pending, and releases them."""

    outputs = [Stream(fields=["number"]), Stream(fields=["all"], name="release")]

    def initialize(self, conf: Any, context: TopologyContext) -> None:
        self.next, self.end, self.is_slow = 0, conf["messages"], conf["is_slow"]
        self.when_pending: Callable[[], None] = conf["when_pending"]
        self.rests = True

    def next_tuple(self) -> None:
        self.rests = not self.rests and (self.is_slow or self.next >= self.end)
        if self.rests:
            return  # a call that emits nothing ends the round, which sends what there is
        if self.next < self.end:
            for number in range(self.next, self.next + (1 if self.is_slow else 32)):
                self.emit([number], tup_id=number)
                self.next = number + 1
        elif self.next == self.end:
            self.next += 1
            self.when_pending()
            self.emit([True], stream="release")


class Hold(Bolt):
    outputs: list[str] = []
    auto_ack = False

    def initialize(self, conf: Any, context: TopologyContext) -> None:
        self.held: list[Tuple] = []

    def process(self, tup: Tuple) -> None:
        self.held.append(tup)
        if tup.stream == "release":
            for one in self.held:
                self.ack(one)


def held(messages: int, when_pending: Callable[[], None], *, is_slow: bool) -> type[Topology]:
    """Make a topology of so many messages, emitted in bursts of 32, or slowly: each alone in its round."""

    class Held(Topology):
        config = {
            "messages": messages,
            "is_slow": is_slow,
            "when_pending": when_pending,
            "topology.message.timeout.secs": 3600,
        }
        numbers = Numbers.spec()
        hold = Hold.spec(inputs=[numbers, numbers["release"]])

    return Held
