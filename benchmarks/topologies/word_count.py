"""The word count as a topology of ours, with the bolts of `programs.py`."""

from typing import Any

from acker_redis.storm import Bolt, Grouping, Spout, Topology, TopologyContext, Tuple

WORDS_IN_FIVE = 32
"""Number of words in five sentences."""

TEXTS = (
    "the cow jumped over the moon", "an apple a day keeps the doctor away", "four score and seven years ago",
    "snow white and the seven dwarfs", "i am at two with nature",
)  # fmt: skip


class Sentences(Spout):
    outputs = ["sentence"]

    def initialize(self, conf: Any, context: TopologyContext) -> None:
        self.next, self.end = 0, conf["sentences"]

    def next_tuple(self) -> None:
        if self.next < self.end:
            self.emit([TEXTS[self.next % len(TEXTS)]], tup_id=self.next)
            self.next += 1


class Split(Bolt):
    outputs = ["word"]

    def process(self, tup: Tuple) -> None:
        for word in tup.values[0].split():
            self.emit([word])


class Count(Bolt):
    outputs = ["word", "count"]

    def initialize(self, conf: Any, context: TopologyContext) -> None:
        self.counts: dict[str, int] = {}

    def process(self, tup: Tuple) -> None:
        word = tup.values[0]
        self.counts[word] = count = self.counts.get(word, 0) + 1
        self.emit([word, count])


def word_count(sentences: int, *, is_tracked: bool) -> type[Topology]:
    """Make a topology that counts the words of so many sentences."""

    class WordCount(Topology):
        config = {
            "sentences": sentences,
            "topology.acker.executors": 1 if is_tracked else 0,
            "topology.max.spout.pending": 5000,
        }
        lines = Sentences.spec()
        split = Split.spec(inputs=[lines])
        count = Count.spec(inputs={split: Grouping.fields("word")})

    return WordCount
