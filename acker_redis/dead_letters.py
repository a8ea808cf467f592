"""The dead-letter stream of an app: messages that were given up after their last attempt, with what is known of them.

A plain stream at `acker:{app}:dead`, readable with `XRANGE`. Nothing is removed from it but by `delete`.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from acker_redis import keys
from acker_redis.client import Client
from acker_redis.entries import as_dict
from acker_redis.errors import BadBatchError

_PER_PIPELINE = 1000


class DeadLetter(NamedTuple):
    """A message that was given up.

    Attributes:
        message_id: 64-bit id its source knows it by.
        run_id: of the spout.
        attempts: that failed, timed out or got lost.
        reason: of the last one: `failed`, `timeout` or `lost`.
        last_stage: that touched it, where stages are named.
        detail: text of the last fail, where one was given.
        payload: the message, where the spout keeps it; None: `message_id` is the pointer to it.
        entry_id: in the stream; empty before it is written.
    """

    message_id: int
    run_id: str
    attempts: int
    reason: str
    last_stage: str | None = None
    detail: str | None = None
    payload: bytes | None = None
    entry_id: str = ""


class DeadLetters:
    """Writes, reads and deletes an app's dead letters."""

    def __init__(self, client: Client, app: str) -> None:
        """Work on an app; nothing is sent."""
        self._client = client
        self._key = keys.dead_letters(app)

    def add(self, letters: Sequence[DeadLetter]) -> None:
        """Write letters. One that is written twice, by a spout that was started again, stands there twice."""
        for start in range(0, len(letters), _PER_PIPELINE):
            part = letters[start : start + _PER_PIPELINE]
            self._client.pipeline([("XADD", self._key, "*", *_fields(letter)) for letter in part])

    def read(self, count: int = 1000, after: str = "") -> list[DeadLetter]:
        """The oldest letters, or those after an entry id, `count` at most."""
        begin = f"({after}" if after else "-"
        (rows,) = self._client.pipeline([("XRANGE", self._key, begin, "+", "COUNT", count)])
        return [
            _letter(entry_id.decode(), {k.decode(): v for k, v in as_dict(pairs).items()}) for entry_id, pairs in rows
        ]

    def count(self) -> int:
        """How many there are."""
        (length,) = self._client.pipeline([("XLEN", self._key)])
        return int(length)

    def delete(self, entry_ids: Iterable[str]) -> int:
        """Delete letters, once they were dealt with; returns how many were there."""
        wanted = list(entry_ids)
        if not all(isinstance(entry_id, str) and entry_id for entry_id in wanted):
            raise BadBatchError("give the entry_id of letters that were read")
        parts = [wanted[start : start + _PER_PIPELINE] for start in range(0, len(wanted), _PER_PIPELINE)]
        return sum(self._client.pipeline([("XDEL", self._key, *part) for part in parts]))


def _fields(letter: DeadLetter) -> Iterable[str | int | bytes]:
    for name, value in letter._asdict().items():
        if value is not None and name != "entry_id":
            yield name
            yield value.encode(errors="replace") if isinstance(value, str) else value


def _letter(entry_id: str, fields: dict[str, bytes]) -> DeadLetter:
    def text(name: str) -> str | None:
        return fields[name].decode() if name in fields else None

    return DeadLetter(
        message_id=int(fields["message_id"]),
        run_id=text("run_id") or "",
        attempts=int(fields["attempts"]),
        reason=text("reason") or "",
        last_stage=text("last_stage"),
        detail=text("detail"),
        payload=fields.get("payload"),
        entry_id=entry_id,
    )
