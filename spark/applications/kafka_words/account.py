"""Account of the topics: what was produced, written and dead-lettered, and what the group has committed meanwhile."""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from acker_redis.kafka.commit_metadata import decode
from acker_redis.kafka.topics import patiently
from spark.applications.kafka_words.lines import Word, demanded, is_poison

_ASK_SECS = 60.0
_MOST_AT_ONCE = 10_000


class Topic:
    """Reader of a topic from its beginning, without a group."""

    def __init__(self, servers: str, name: str) -> None:
        settings = {"bootstrap.servers": servers, "group.id": "account", "enable.auto.commit": False, "log_level": 0}
        self._consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
        self._name = name
        self._read: dict[int, int] = {}

    def ends(self) -> dict[int, int]:
        """Return the offset after the last record of each partition."""

        def ask() -> dict[int, int]:
            numbers = self._consumer.list_topics(self._name, _ASK_SECS).topics[self._name].partitions
            at = {number: TopicPartition(self._name, number) for number in numbers}
            return {number: self._consumer.get_watermark_offsets(one, _ASK_SECS)[1] for number, one in at.items()}

        return patiently(ask, {})

    def count(self) -> int:
        """Return the number of records."""
        return sum(self.ends().values())

    def fresh(self) -> list[Any]:
        """Read the records that were written since the last call."""
        ends = self.ends()
        if not self._read:
            self._read = dict.fromkeys(ends, 0)
            self._consumer.assign([TopicPartition(self._name, number, 0) for number in ends])
        found = []
        while any(self._read[number] < end for number, end in ends.items()):
            for record in self._consumer.consume(_MOST_AT_ONCE, 0.1):
                if record.error() is None:
                    found.append(record)
                    self._read[int(record.partition() or 0)] = int(record.offset() or 0) + 1
        return found

    def close(self) -> None:
        """End the reader."""
        self._consumer.close()


@dataclass(frozen=True)
class Committed:
    """What a group has committed for a topic.

    Attributes:
        lag: number of records at or beyond the commits.
        done_beyond: number of them that the commits say are done.
        is_done: partition and offset -> whether the commits say that a record is done.
    """

    lag: int
    done_beyond: int
    runs: Mapping[int, list[tuple[int, int]]]

    def is_done(self, partition: int, offset: int) -> bool:
        """Return True if the commits say that a record is done."""
        return any(begin <= offset < end for begin, end in self.runs.get(partition, ()))


class Commits:
    """Reader of a group's commits. It is no member of the group."""

    def __init__(self, servers: str, group: str, topic: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})
        self._topic = topic

    def read(self, ends: Mapping[int, int]) -> Committed:
        """Read the commits.

        Args:
            ends: offset after the last record of each partition.
        """
        wanted = [TopicPartition(self._topic, number) for number in ends]
        found = patiently(lambda: self._consumer.committed(wanted, _ASK_SECS), {})
        lag = done_beyond = 0
        runs = {}
        for at in found:
            offset = max(0, at.offset)
            text = decode(at.metadata, offset)
            beyond = [] if text is None else text.runs
            lag += ends[at.partition] - offset
            done_beyond += sum(end - begin for begin, end in beyond)
            runs[at.partition] = [(0, offset), *beyond]
        return Committed(max(0, lag), done_beyond, runs)

    def close(self) -> None:
        """End the reader."""
        self._consumer.close()


@dataclass
class Account:
    """What became of the lines, as a reader of the topics sees it.

    Attributes:
        words: how often each word was written.
        letters: how often each line's dead letter was written.
        wrong: what doesn't add up.
    """

    words: Counter[Word] = field(default_factory=Counter)
    letters: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    _left: dict[int, set[Word]] = field(default_factory=dict)
    _done: set[int] = field(default_factory=set)

    def add_words(self, records: Collection[Any]) -> None:
        """Add records of the topic with words."""
        for record in records:
            value = json.loads(record.value())
            word = value["line"], value["position"], value["word"]
            self.words[word] += 1
            left = self._left.setdefault(word[0], demanded(word[0]))
            left.discard(word)
            if word not in demanded(word[0]):
                self.wrong.append(f"word of no line: {word}")
            if not left:
                self._done.add(word[0])

    def add_letters(self, records: Collection[Any]) -> None:
        """Add records of the topic with dead letters."""
        for record in records:
            number = int(record.key())
            self.letters[number] += 1
            if not is_poison(number):
                self.wrong.append(f"dead letter of a good line: {number}")

    def done(self) -> set[int]:
        """Return the lines all of whose words are written, or that have a dead letter."""
        return self._done | self.letters.keys()

    def check(self, committed: Committed, places: Mapping[int, tuple[int, int]]) -> None:
        """Check that lines that are committed are done. The commits were read before the topics."""
        done = self.done()
        early = [number for number, place in places.items() if number not in done and committed.is_done(*place)]
        if early:
            self.wrong.append(f"committed before they were done: {_some(early)}")

    def finish(self, produced: Collection[int]) -> None:
        """Check that each line has all its words, or a dead letter, and not both."""
        if missing := set(produced) - self.done():
            self.wrong.append(f"neither written nor a dead letter: {_some(missing)}")
        if strange := self.done() - set(produced):
            self.wrong.append(f"lines that nobody produced: {_some(strange)}")
        if both := self._left.keys() & self.letters.keys():
            self.wrong.append(f"written and a dead letter: {_some(both)}")

    @property
    def repeats(self) -> int:
        """Number of words that were written again."""
        return self.words.total() - len(self.words)


def _some(numbers: Collection[int]) -> str:
    shown = ", ".join(map(str, sorted(numbers)[:5]))
    return shown if len(numbers) <= 5 else f"{shown} and {len(numbers) - 5} more"
