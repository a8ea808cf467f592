"""Dead letters of a stream's records that aren't safe yet, as JSON in the parking location. A restart waits for them, too."""

import base64
import json
from collections.abc import Sequence
from typing import NamedTuple

from acker_redis.store.dead_letter import DeadLetter


class KeptLetter(NamedTuple):
    """A letter that was written, and the place of the offset that waits until it is safe.

    Attributes:
        letter: the letter, with its payload, so that it can be written again.
        topic: name of the topic.
        number: number of the partition.
        offset: offset that waits.
    """

    letter: DeadLetter
    topic: str
    number: int
    offset: int


def to_bytes(letters: Sequence[KeptLetter]) -> bytes:
    """Convert letters to JSON."""
    return json.dumps([{**kept._asdict(), "letter": _fields(kept.letter)} for kept in letters]).encode()


def letters_in(data: bytes) -> list[KeptLetter]:
    """Read letters from JSON.

    Raises:
        ValueError, KeyError, TypeError: it is damaged.
    """
    return [
        KeptLetter(_letter(kept["letter"]), str(kept["topic"]), int(kept["number"]), int(kept["offset"]))
        for kept in json.loads(data)
    ]


def _fields(letter: DeadLetter) -> dict[str, object]:
    payload = None if letter.payload is None else base64.b64encode(letter.payload).decode()
    return {**letter._asdict(), "payload": payload}


def _letter(fields: dict[str, object]) -> DeadLetter:
    letter = DeadLetter(**fields)  # type: ignore[arg-type]  # a field of another name raises TypeError
    payload = fields["payload"]
    return letter._replace(payload=None if payload is None else base64.b64decode(str(payload)))
