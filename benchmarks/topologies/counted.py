"""Word count with its counts in the state of a bolt, and the same topology with a bolt that keeps nothing."""

import random
import time
from typing import Any

from acker_redis.storm import Bolt, Grouping, Spout, StatefulBolt, Topology, TopologyContext, Tuple
from benchmarks.topologies.word_count import Split

WORDS = 6
"""Number of words in a sentence."""


class Drawn(Spout):
    """Emits sentences of words drawn from so many, and notes the time at which each turn begins."""

    outputs = ["sentence"]

    def initialize(self, conf: Any, context: TopologyContext) -> None:
        self.next, self.end, self.turn = conf["first"], conf["first"] + conf["sentences"], conf["turn"]
        self.began = conf["began"]
        self.words, self.rng = range(conf["keys"]), random.Random(conf["first"])

    def next_tuple(self) -> None:
        if self.next < self.end:
            if (self.end - self.next) % self.turn == 0:
                self.began.append(time.perf_counter())
            drawn = self.rng.choices(self.words, k=WORDS)
            self.emit([" ".join(f"w{word}" for word in drawn)], tup_id=self.next)
            self.next += 1


class Count(StatefulBolt):
    outputs = ["word", "count"]

    def process(self, tup: Tuple) -> None:
        word = tup.values[0]
        self.state[word] = count = self.state.get(word, 0) + 1
        self.emit([word, count])


class Passes(Bolt):
    outputs = ["word", "count"]

    def process(self, tup: Tuple) -> None:
        self.emit([tup.values[0], 1])


def counted(
    sentences: int, *, turn: int, keys: int, began: list[float], first: int = 0, has_state: bool = True
) -> type[Topology]:
    """Make a topology that counts the words of so many sentences, in turns of equal size.

    Args:
        sentences: their number.
        turn: number of sentences in a turn.
        keys: number of words that they are drawn from.
        began: receives the time at which each turn begins.
        first: number of the first sentence, which the words depend on.
        has_state: False for a bolt that keeps nothing in place of the one that counts.
    """
    bolt = Count if has_state else Passes

    class Counted(Topology):
        config = {
            "first": first,
            "sentences": sentences,
            "turn": turn,
            "keys": keys,
            "began": began,
            "topology.max.spout.pending": turn,
        }
        lines = Drawn.spec()
        split = Split.spec(inputs=[lines], par=2)
        count = bolt.spec(inputs={split: Grouping.fields("word")}, par=2)

    return Counted
