"""Lines that are produced to a topic while the drivers run, and the words that they demand."""

import json
import threading
import time
from typing import Any

from confluent_kafka import Producer

POISON = 100
"""One of so many lines is no valid JSON."""

_TEXTS = (
    "the cow jumped over the moon",
    "an apple a day keeps the doctor away",
    "four score and seven years ago",
    "snow white and the seven dwarfs",
    "i am at two with nature",
)
_STEP_SECS = 0.02

Word = tuple[int, int, str]
"""Number of the line, position in it, word."""


def is_poison(number: int) -> bool:
    """Return True if the line with this number can't be read."""
    return number % POISON == 17


def value_of(number: int) -> bytes:
    """Return the value of the record of a line."""
    text = json.dumps({"line": number, "text": _TEXTS[number % len(_TEXTS)]})
    return (text[: len(text) // 2] if is_poison(number) else text).encode()


def demanded(number: int) -> set[Word]:
    """Return the words that a line has to become. A poison line has none."""
    words = [] if is_poison(number) else _TEXTS[number % len(_TEXTS)].split()
    return {(number, position, word) for position, word in enumerate(words)}


class Lines:
    """Producer of lines, in a thread of its own.

    Attributes:
        places: partition and offset of each line that the broker acknowledged, by number.
    """

    def __init__(self, servers: str, topic: str, per_sec: float) -> None:
        """Prepare. `allow` starts it."""
        self.places: dict[int, tuple[int, int]] = {}
        self._topic, self._per_sec = topic, per_sec
        self._producer = Producer({"bootstrap.servers": servers, "log_level": 0, "linger.ms": 5})
        self._stop = threading.Event()
        self._allowed = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def allow(self, count: int) -> None:
        """Produce until there are so many lines."""
        self._allowed = count
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """Produce no more, and wait for the acknowledgements."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._producer.flush(60)

    def _run(self) -> None:
        number, due = 0, 0.0
        while not self._stop.is_set():
            due = min(due + self._per_sec * _STEP_SECS, self._allowed - number)
            while due >= 1:
                self._producer.produce(self._topic, value_of(number), str(number), on_delivery=self._told)
                number, due = number + 1, due - 1
            self._producer.poll(0)
            time.sleep(_STEP_SECS)

    def _told(self, error: Any, record: Any) -> None:
        if error is None:
            self.places[int(record.key())] = record.partition(), record.offset()
