"""Topologies over sentences: lines -> `split` -> `lower` -> a sink, and the same with a second sink for empty lines.

Some sentences misbehave, by a word in them. `tired` ones fail once, `silent` ones are forgotten once and time out, `slow` ones
take their time. `hopeless` ones fail at each attempt, and `refused` ones must not be tried again. Both become dead letters.
"""

import json
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from acker_redis import RetryPolicy, RowFailedError
from acker_redis.storm import Bolt, Grouping, ReliableSpout, Stream, Topology, Tuple

MAX_ATTEMPTS = 3
SLOW_SECS = 0.05
_KINDS = {7: "tired", 17: "hopeless", 27: "refused", 37: "slow", 47: "silent"}

Row = tuple[int, int, str]
"""Number of a sentence, position of a word, and the word."""


def kind_of(number: int) -> str:
    """Return how a sentence behaves. One of ten is empty, and five of fifty misbehave."""
    return "empty" if number % 10 == 3 else _KINDS.get(number % 50, "fine")


def sentence(number: int) -> str:
    """Write a sentence."""
    kind = kind_of(number)
    return "" if kind == "empty" else f"Sentence {number} Is {kind.capitalize()}"


def demanded(number: int) -> set[Row]:
    """List the rows that a sentence demands of the sink of words."""
    return {(number, position, word) for position, word in enumerate(sentence(number).lower().split())}


def once(mark: Path) -> bool:
    """Return True at the first call for a file, in any process."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Heard:
    """What the spout emitted and heard.

    Attributes:
        emitted: number of sentences emitted, without replays.
        acked: sentence -> number of acks.
        failed: sentence -> number of fails.
    """

    def __init__(self) -> None:
        self.emitted = 0
        self.acked, self.failed = Counter[int](), Counter[int]()


class Lines(ReliableSpout):
    """Emits sentences. It runs in the driver."""

    outputs = ["number", "line"]
    retry = RetryPolicy(MAX_ATTEMPTS, first_delay_secs=0.2)
    heard: ClassVar[Heard] = Heard()

    def initialize(self, conf: Mapping[str, Any], context: Any) -> None:
        """Begin with sentence 0."""
        self.sentences = int(conf["sentences"])

    def next_tuple(self) -> None:
        """Emit a sentence."""
        number = self.heard.emitted
        if number < self.sentences:
            self.heard.emitted += 1
            self.emit([number, sentence(number)], tup_id=number)

    def ack(self, tup_id: int) -> None:
        """Note an ack."""
        self.heard.acked[tup_id] += 1

    def fail(self, tup_id: int, reason: str) -> None:
        """Note a fail."""
        self.heard.failed[tup_id] += 1


class Split(Bolt):
    """Splits a sentence into words. Its worker is killed once, at the sentence that `conf` names."""

    outputs: Any = ["number", "position", "word"]

    def initialize(self, conf: Mapping[str, Any], context: Any) -> None:
        """Note where to be killed."""
        self.kill_at, self.marks = conf["kill_at"], Path(conf["marks"])

    def process(self, tup: Tuple) -> None:
        """Emit the words of a sentence."""
        if tup.values.number == self.kill_at and once(self.marks / "killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        for position, word in enumerate(tup.values.line.split()):
            self.emit([tup.values.number, position, word])


class SplitOrEmpty(Split):
    """Emits empty sentences to a stream of their own."""

    outputs = [Stream(["number", "position", "word"]), Stream(["number bigint"], "empty")]

    def process(self, tup: Tuple) -> None:
        """Emit the words of a sentence, or its number."""
        super().process(tup)
        if not tup.values.line:
            self.emit([tup.values.number], stream="empty")


class Lower(Bolt):
    """Writes words in lower case, and misbehaves where a word demands it."""

    outputs = ["number bigint", "position int", "word string"]
    auto_ack = False

    def initialize(self, conf: Mapping[str, Any], context: Any) -> None:
        """Note the folder of marks."""
        self.marks = Path(conf["marks"])

    def process(self, tup: Tuple) -> None:
        """Emit a word in lower case, and ack it."""
        number, position, word = tup.values.number, tup.values.position, tup.values.word.lower()
        if word == "hopeless" or (word == "tired" and once(self.marks / f"tired-{number}")):
            raise RowFailedError(word)
        if word == "refused":
            raise RowFailedError(word, retry=False)
        if word == "silent" and once(self.marks / f"silent-{number}"):
            return  # neither acked nor failed: the sentence times out
        if word == "slow":
            time.sleep(SLOW_SECS)
        self.emit([number, position, word])
        self.ack(tup)


class Words(Topology):
    """Three levels and one sink."""

    config = {"topology.message.timeout.secs": 3, "topology.max.spout.pending": 300}
    lines = Lines.spec()
    split = Split.spec(inputs=[lines], par=2)
    lower = Lower.spec(inputs={split: Grouping.fields("word")}, par=2)


class WordsAndEmpty(Words):
    """The same with a second sink, for empty sentences."""

    split = SplitOrEmpty.spec(inputs=[Words.lines], par=2)
    lower = Lower.spec(inputs={split: Grouping.fields("word")}, par=2)


def write_numbers(folder: Path, batches: Any, partition: int) -> None:
    """Write the numbers of a partition to a file of its own, which appears whole."""
    numbers = [number for batch in batches for number in batch.column("number").to_pylist()]
    part = folder / f"{partition}-{uuid.uuid4().hex}.part"
    part.write_text(json.dumps(numbers))
    part.rename(part.with_suffix(".json"))
