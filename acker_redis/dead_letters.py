"""The dead-letter stream of an app: messages that were given up after their last attempt, with what is known of them.

A plain stream at `acker:{app}:dead`, readable with `XRANGE`. Nothing is removed from it but by `delete`.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from acker_redis import keys
from acker_redis.calls import WINDOW_BYTES
from acker_redis.client import Client
from acker_redis.entries import Fields, as_dict
from acker_redis.errors import BadBatchError
from acker_redis.model import MAX_PAYLOAD_BYTES

log = logging.getLogger("acker_redis.dead_letters")

TEXT_CHARS = 1000
"""Of each text of a letter so much is kept."""

_PER_PIPELINE = 1000
_FIRST_PAGE = 16


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


class DamagedLetter(NamedTuple):
    """An entry of the stream that is no dead letter: something else wrote it.

    Attributes:
        entry_id: in the stream, for `DeadLetters.delete`.
        why: it can't be read.
        fields: as they stand there.
    """

    entry_id: str
    why: str
    fields: Fields


class DeadLetters:
    """Writes, reads and deletes an app's dead letters."""

    def __init__(self, client: Client, app: str) -> None:
        """Work on an app; nothing is sent."""
        self._client = client
        self._key = keys.dead_letters(app)

    def add(self, letters: Sequence[DeadLetter]) -> None:
        """Write letters. One that is written twice, by a spout that was started again, stands there twice.

        Of its texts the first TEXT_CHARS characters are kept.

        Raises:
            BadBatchError: a payload is longer than MAX_PAYLOAD_BYTES; nothing was written.
            ServerRefusesWritesError: some may have been written.

        >>> acker.dead_letters.add([DeadLetter(7, "run-1", 5, "failed", payload=b"message")])
        >>> acker.dead_letters.count()
        1
        """
        for letter in letters:
            if letter.payload is not None and len(letter.payload) > MAX_PAYLOAD_BYTES:
                raise BadBatchError(
                    f"the payload of dead letter {letter.message_id} has {len(letter.payload)} bytes, and at most "
                    f"{MAX_PAYLOAD_BYTES} are kept: write it without its payload"
                )
        commands: list[tuple[str | int | bytes, ...]] = []
        size = 0
        for number, letter in enumerate(letters, 1):
            commands.append(("XADD", self._key, "*", *_fields(letter)))
            size += len(letter.payload or b"")
            if size >= WINDOW_BYTES or len(commands) == _PER_PIPELINE or number == len(letters):
                self._client.pipeline(commands)
                commands, size = [], 0

    def read(self, count: int = 1000, after: str = "") -> list[DeadLetter]:
        """The oldest letters, or those after an entry id, `count` at most. A damaged entry is left out, and logged.

        >>> acker.dead_letters.add([DeadLetter(7, "run-1", 5, "failed", detail="no such customer")])
        >>> [(letter.message_id, letter.detail) for letter in acker.dead_letters.read()]
        [(7, 'no such customer')]
        """
        return list(islice(self._sound(after), count))

    def scan(self, after: str = "", until: str = "") -> Iterator[DeadLetter | DamagedLetter]:
        """All entries, the oldest first, or those after an entry id and up to another; read in pages of about WINDOW_BYTES.

        A number of milliseconds stands for the last entry id of that time.

        >>> acker.dead_letters.add([DeadLetter(7, "run-1", 5, "failed")])
        >>> [letter.message_id for letter in acker.dead_letters.scan() if isinstance(letter, DeadLetter)]
        [7]
        """
        page = _FIRST_PAGE
        while True:
            begin = f"({after}" if after else "-"
            (rows,) = self._client.pipeline([("XRANGE", self._key, begin, until or "+", "COUNT", page)])
            size = 1
            for entry_id, pairs in rows:
                after, fields = entry_id.decode(), as_dict(pairs)
                size += sum(map(len, fields.values()))
                yield _letter(after, fields)
            if len(rows) < page:
                return
            page = max(1, min(_PER_PIPELINE, 4 * page, WINDOW_BYTES * page // size))

    def _sound(self, after: str) -> Iterator[DeadLetter]:
        for letter in self.scan(after):
            if isinstance(letter, DeadLetter):
                yield letter
            else:
                log.warning("entry %s of %s is no dead letter: %s", letter.entry_id, self._key, letter.why)

    def count(self) -> int:
        """How many there are.

        >>> acker.dead_letters.count()
        0
        """
        (length,) = self._client.pipeline([("XLEN", self._key)])
        return int(length)

    def first_ms(self) -> int | None:
        """When the oldest was written, in milliseconds by the server's clock; None where there is none.

        >>> acker.dead_letters.first_ms()
        """
        (rows,) = self._client.pipeline([("XRANGE", self._key, "-", "+", "COUNT", 1)])
        return int(rows[0][0].partition(b"-")[0]) if rows else None

    def now_ms(self) -> int:
        """The time by the server's clock, in milliseconds: one that is written later has no older entry id.

        >>> acker.dead_letters.now_ms() > 0
        True
        """
        (now,) = self._client.clocks_ms([self._key])
        return now

    def delete(self, entry_ids: Iterable[str]) -> int:
        """Delete letters, once they were dealt with; returns how many were there.

        >>> acker.dead_letters.add([DeadLetter(7, "run-1", 5, "failed")])
        >>> acker.dead_letters.delete(letter.entry_id for letter in acker.dead_letters.read())
        1
        """
        wanted = list(entry_ids)
        if not all(isinstance(entry_id, str) and entry_id for entry_id in wanted):
            raise BadBatchError("give the entry_id of letters that were read")
        parts = [wanted[start : start + _PER_PIPELINE] for start in range(0, len(wanted), _PER_PIPELINE)]
        return sum(self._client.pipeline([("XDEL", self._key, *part) for part in parts]))


def _fields(letter: DeadLetter) -> Iterable[str | int | bytes]:
    for name, value in letter._asdict().items():
        if value is not None and name != "entry_id":
            yield name
            yield value[:TEXT_CHARS].encode(errors="replace") if isinstance(value, str) else value


def _letter(entry_id: str, fields: Fields) -> DeadLetter | DamagedLetter:
    def text(name: bytes) -> str | None:
        return fields[name].decode(errors="replace") if name in fields else None

    try:
        message_id, attempts = int(fields[b"message_id"]), int(fields[b"attempts"])
    except KeyError as exc:
        return DamagedLetter(entry_id, f"it has no field {exc.args[0].decode()}", fields)
    except ValueError:
        return DamagedLetter(entry_id, "message_id or attempts is no number", fields)
    return DeadLetter(
        message_id=message_id,
        run_id=text(b"run_id") or "",
        attempts=attempts,
        reason=text(b"reason") or "",
        last_stage=text(b"last_stage"),
        detail=text(b"detail"),
        payload=fields.get(b"payload"),
        entry_id=entry_id,
    )
