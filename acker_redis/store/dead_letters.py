"""Dead-letter stream of an app: messages whose attempts are exhausted.

It is a plain stream at `acker:{app}:dead_letters`, readable with `XRANGE`. Only `delete` removes letters, a spout that was
asked to `replay` a letter or a run with `only_dead_letters`, once the message is done, and a run with output `whole` those
of runs before it that have not written theirs. If the app has a retention, a rotator removes older ones (`letter_expiry`).
Each entry has the version of its fields in `format`.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import islice

from acker_redis.client import server_info
from acker_redis.client.client import WINDOW_BYTES, Client, raise_first
from acker_redis.client.replies import Fields, as_dict
from acker_redis.errors import AuthenticationError, BadBatchError, FormatVersionError
from acker_redis.model import keys
from acker_redis.model.types import MAX_PAYLOAD_BYTES
from acker_redis.store import limits, unwritten_runs
from acker_redis.store.dead_letter import (
    EVERY_LETTER,
    FROM_PAYLOAD,
    FROM_RUN,
    DamagedLetter,
    DeadLetter,
    DeadLetterCounts,
    DeadLetterFilter,
    millis,
)

log = logging.getLogger("acker_redis.dead_letters")

FORMAT = 2
"""Version of an entry's fields. Entries of version 1 have no `format` and another key."""

TEXT_CHARS = 1000
"""Number of characters kept of each text of a letter."""

_MOST_LANES = 64
_PER_PIPELINE = 1000
_FIRST_PAGE = 16


class DeadLetters:
    """Writes, reads and deletes an app's dead letters."""

    def __init__(self, client: Client, app: str) -> None:
        self._client, self._app = client, app
        self._key = keys.dead_letters(app)
        self._knows_format = False

    def add(self, letters: Sequence[DeadLetter]) -> list[str]:
        """Write letters and return their entry ids.

        A letter written again after a crash is stored twice. Of each text the first TEXT_CHARS characters are kept. A
        payload above the app's limit (`Limits.max_payload_bytes`) is dropped. A letter with `replay="payload"` can then not
        be replayed.

        Raises:
            BadBatchError: a payload is longer than MAX_PAYLOAD_BYTES. Nothing was written.
            ServerRefusesWritesError: the server refuses writes. Some letters may have been written.

        >>> (entry_id,) = acker.dead_letters.add([DeadLetter(7, "run-1", 5, "failed", payload=b"message")])
        >>> acker.dead_letters.get([entry_id])[0].payload
        b'message'
        """
        for letter in letters:
            if letter.payload is not None and len(letter.payload) > MAX_PAYLOAD_BYTES:
                raise BadBatchError(
                    f"The payload of dead letter {letter.message_id} has {len(letter.payload)} bytes, but at most "
                    f"{MAX_PAYLOAD_BYTES} are kept. Write the letter without its payload."
                )
        letters = within_limit(self._client, self._app, letters)
        if of_runs := {letter.run_id: letter.spout_id for letter in letters if letter.unwritten}:
            now_ms = self.now_ms()
            runs = {run_id: unwritten_runs.UnwrittenRun(spout_id, now_ms) for run_id, spout_id in of_runs.items()}
            unwritten_runs.note(self._client, self._app, runs)
        commands: list[tuple[str | int | bytes, ...]] = []
        size, entry_ids = 0, list[str]()
        for number, letter in enumerate(letters, 1):
            commands.append(("XADD", self._key, "*", *fields_of(letter)))
            size += len(letter.payload or b"")
            if size >= WINDOW_BYTES or len(commands) == _PER_PIPELINE or number == len(letters):
                entry_ids += [entry_id.decode() for entry_id in self._client.pipeline(commands)]
                commands, size = [], 0
        return entry_ids

    def read(self, count: int = 1000, after: str = "") -> list[DeadLetter]:
        """Read up to `count` letters, the oldest first, after an entry id.

        Damaged entries are skipped and logged.

        >>> _ = acker.dead_letters.add([DeadLetter(7, "run-1", 5, "failed", detail="no such customer")])
        >>> [(letter.message_id, letter.detail) for letter in acker.dead_letters.read()]
        [(7, 'no such customer')]
        """
        return list(islice(self._sound(after), count))

    def scan(self, after: str = "", until: str = "") -> Iterator[DeadLetter | DamagedLetter]:
        """Read all entries, the oldest first, in pages of about WINDOW_BYTES.

        Args:
            after: entry id to begin after; empty to begin with the oldest.
            until: last entry id to read; empty to read all. A number of milliseconds means the last entry id of that time.

        Raises:
            FormatVersionError: another version of this library wrote a letter.

        >>> _ = acker.dead_letters.add([DeadLetter(7, "run-1", 5, "failed")])
        >>> [letter.message_id for letter in acker.dead_letters.scan() if isinstance(letter, DeadLetter)]
        [7]
        """
        self._refuse_format_1()
        page, unwritten = _FIRST_PAGE, unwritten_runs.read(self._client, self._app)
        while True:
            begin = f"({after}" if after else "-"
            (rows,) = self._client.pipeline([("XRANGE", self._key, begin, until or "+", "COUNT", page)])
            size = 1
            for entry_id, pairs in rows:
                after, fields = entry_id.decode(), as_dict(pairs)
                size += sum(map(len, fields.values()))
                yield self._letter(after, fields, unwritten)
            if len(rows) < page:
                return
            page = max(1, min(_PER_PIPELINE, 4 * page, WINDOW_BYTES * page // size))

    def find(self, wanted: DeadLetterFilter = EVERY_LETTER) -> Iterator[DeadLetter]:
        """Find the letters that match a filter, the oldest first.

        Damaged entries are skipped and logged.

        >>> _ = acker.dead_letters.add([DeadLetter(7, "run-1", 5, "failed"), DeadLetter(8, "run-1", 5, "timeout")])
        >>> [letter.message_id for letter in acker.dead_letters.find(DeadLetterFilter(reason="timeout"))]
        [8]
        """
        return self._find(wanted, None if wanted.until is None else millis(wanted.until))

    def _find(self, wanted: DeadLetterFilter, until_ms: int | None) -> Iterator[DeadLetter]:
        if until_ms is not None and until_ms <= 0:
            return iter(())
        since_ms = 0 if wanted.since is None else millis(wanted.since)
        after = f"{since_ms - 1}-{2**64 - 1}" if since_ms > 0 else ""
        return filter(wanted.matches, self._sound(after, "" if until_ms is None else str(until_ms - 1)))

    def get(self, entry_ids: Sequence[str]) -> list[DeadLetter | None]:
        """Get letters by entry id.

        None replaces a letter that is gone, damaged, or of another format (logged).

        >>> acker.dead_letters.get(["1-1"])
        [None]
        """
        replies, unwritten = [], unwritten_runs.read(self._client, self._app)
        for start in range(0, len(entry_ids), _FIRST_PAGE):
            part = entry_ids[start : start + _FIRST_PAGE]
            replies += self._client.pipeline([("XRANGE", self._key, entry_id, entry_id) for entry_id in part])
        return [
            self._readable(rows[0][0].decode(), as_dict(rows[0][1]), unwritten) if rows else None for rows in replies
        ]

    def survey(self, wanted: DeadLetterFilter = EVERY_LETTER) -> DeadLetterCounts:
        """Count the letters that match a filter, for example before `replay`.

        >>> _ = acker.dead_letters.add([DeadLetter(7, "run-1", 5, "failed")])
        >>> acker.dead_letters.survey()
        DeadLetterCounts(letters=1, replayable=0, spout_ids={})
        """
        letters, spout_ids, runs = 0, Counter[int](), self._runs_under_way()
        for letter in self.find(wanted):
            letters += 1
            if self._can_replay(letter, runs):
                spout_ids[letter.spout_id] += 1
        return DeadLetterCounts(letters, spout_ids.total(), dict(sorted(spout_ids.items())))

    def replay(
        self,
        wanted: DeadLetterFilter = EVERY_LETTER,
        *,
        per_sec: float | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Request replays: spouts emit the letters' messages again, with all attempts.

        Returns the number of requests. Only letters that exist now are replayed. The spout with the letter's spout_id
        replays it, now or when it starts. A stream does so within a second, with at most `MOST_AT_ONCE` in flight. A letter
        is removed once its message was acked, or became a new letter.

        Letters that can't be replayed are skipped. These are letters without their message, and letters of a `run_tracked`
        that is over. Run the messages of the latter again with `only_dead_letters` of `run_tracked`.

        Args:
            wanted: filter of the letters to replay.
            per_sec: maximum number of requests per second; None means as fast as the server accepts them.
            progress: function called with the number of requests since its last call.

        Raises:
            BadBatchError: `per_sec` is not above 0.

        >>> _ = acker.dead_letters.add([DeadLetter(7, "run-1", 5, "failed", payload=b"{}", replay="payload")])
        >>> acker.dead_letters.replay(DeadLetterFilter(reason="failed"))
        1
        """
        if per_sec is not None and per_sec <= 0:
            raise BadBatchError(f"per_sec={per_sec} is out of range. Use a number above 0, or None.")
        step = _PER_PIPELINE if per_sec is None else max(1, min(_PER_PIPELINE, int(per_sec)))
        now_ms = self.now_ms() + 1  # excludes letters that these replays write
        until_ms = now_ms if wanted.until is None else min(now_ms, millis(wanted.until))
        runs = self._runs_under_way()
        letters = (letter for letter in self._find(wanted, until_ms) if self._can_replay(letter, runs))
        total = 0
        while part := list(islice(letters, step)):
            began = time.monotonic()
            self._client.pipeline(
                [("ZADD", keys.replays(self._app, letter.spout_id), "NX", now_ms, letter.entry_id) for letter in part]
            )
            total += len(part)
            if progress is not None:
                progress(len(part))
            if per_sec is not None and len(part) == step:
                time.sleep(max(0.0, step / per_sec - (time.monotonic() - began)))
        return total

    def replaying(self, spout_id: int = 0) -> int:
        """Count the replays that the spout with this spout_id was asked for and has not finished.

        >>> acker.dead_letters.replaying()
        0
        """
        (count,) = self._client.pipeline([("ZCARD", keys.replays(self._app, spout_id))])
        return int(count)

    def _runs_under_way(self) -> frozenset[str]:
        """List the run ids of the spouts that hold lanes now."""
        holders = self._client.pipeline([("GET", keys.lane(self._app, lane)) for lane in range(_MOST_LANES)])
        return frozenset(holder.decode(errors="replace").rpartition(" ")[0] for holder in holders if holder is not None)

    @staticmethod
    def _can_replay(letter: DeadLetter, runs: frozenset[str]) -> bool:
        return letter.replay is not None and (letter.replay != FROM_RUN or letter.run_id in runs)

    def _sound(self, after: str, until: str = "") -> Iterator[DeadLetter]:
        for letter in self.scan(after, until):
            if isinstance(letter, DeadLetter):
                yield letter
            else:
                log.warning(
                    "damaged dead letter skipped key=%s entry_id=%s reason=%r",
                    self._key,
                    letter.entry_id,
                    letter.why,
                )

    def count(self) -> int:
        """Count the entries of the stream.

        >>> acker.dead_letters.count()
        0
        """
        self._refuse_format_1()
        (length,) = self._client.pipeline([("XLEN", self._key)])
        return int(length)

    def first_ms(self) -> int | None:
        """Read the time of the oldest entry by the server's clock, in milliseconds.

        Returns None if there is none.

        >>> acker.dead_letters.first_ms()
        """
        (rows,) = self._client.pipeline([("XRANGE", self._key, "-", "+", "COUNT", 1)])
        return int(rows[0][0].partition(b"-")[0]) if rows else None

    def now_ms(self) -> int:
        """Read the server's clock, in milliseconds.

        Letters written later have no smaller entry id.

        >>> acker.dead_letters.now_ms() > 0
        True
        """
        (now,) = self._client.ask(server_info.clocks_ms, [self._key])
        return now

    def delete(self, entry_ids: Iterable[str]) -> int:
        """Delete letters that were dealt with. Returns the number of letters deleted.

        >>> _ = acker.dead_letters.add([DeadLetter(7, "run-1", 5, "failed")])
        >>> acker.dead_letters.delete(letter.entry_id for letter in acker.dead_letters.read())
        1
        """
        wanted = list(entry_ids)
        if not all(isinstance(entry_id, str) and entry_id for entry_id in wanted):
            raise BadBatchError("entry_ids has an invalid element. Pass the entry_id of letters that you read.")
        parts = [wanted[start : start + _PER_PIPELINE] for start in range(0, len(wanted), _PER_PIPELINE)]
        return sum(self._client.pipeline([("XDEL", self._key, *part) for part in parts]))

    def _refuse_format_1(self) -> None:
        """Raise FormatVersionError if an earlier version wrote letters, which would be missing silently otherwise."""
        if self._knows_format:
            return
        key = keys.dead_letters_of_format_1(self._app)
        (length,) = self._client.pipeline_each([("XLEN", key)])
        if isinstance(length, AuthenticationError):  # a user who may read this stream only
            length = 0
        raise_first([length])
        if length:
            raise _other_format(self._app, key, "1")
        self._knows_format = True

    def _readable(self, entry_id: str, fields: Fields, unwritten: Container[str]) -> DeadLetter | None:
        try:
            letter = self._letter(entry_id, fields, unwritten)
        except FormatVersionError as exc:  # of one letter: others are read and replayed all the same
            log.warning("dead letter of another format skipped error=%s", exc)
            return None
        return letter if isinstance(letter, DeadLetter) else None

    def _letter(self, entry_id: str, fields: Fields, unwritten: Container[str]) -> DeadLetter | DamagedLetter:
        version = fields.get(b"format", b"1").decode(errors="replace")
        if version != str(FORMAT) and (b"format" in fields or b"message_id" in fields):
            raise _other_format(self._app, f"Entry {entry_id} of {self._key}", version)
        letter = _decoded(entry_id, fields)
        return letter._replace(unwritten=letter.run_id in unwritten) if isinstance(letter, DeadLetter) else letter


def _other_format(app: str, place: str, version: str) -> FormatVersionError:
    return FormatVersionError(
        f"{place} holds a dead letter of format {version}, but this version of acker-redis reads format {FORMAT}. "
        "Nothing was changed. Export or replay these letters with the version that wrote them. Then delete them (redis-cli "
        f"DEL, or `acker-redis delete-app --app {app}`)."
    )


def within_limit(client: Client, app: str, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    """Drop the payloads that are longer than the app allows."""
    if all(letter.payload is None for letter in letters):
        return list(letters)
    longest = limits.read(client, app).max_payload_bytes
    return [
        letter
        if longest is None or letter.payload is None or len(letter.payload) <= longest
        else letter._replace(payload=None, replay=None if letter.replay == FROM_PAYLOAD else letter.replay)
        for letter in letters
    ]


def fields_of(letter: DeadLetter) -> Iterable[str | int | bytes]:
    """Return the names and values of an entry, in turn."""
    yield from ("format", FORMAT)
    for name, value in letter._asdict().items():
        if value is not None and name not in ("entry_id", "unwritten"):
            yield name
            yield value[:TEXT_CHARS].encode(errors="replace") if isinstance(value, str) else value


def _decoded(entry_id: str, fields: Fields) -> DeadLetter | DamagedLetter:
    def text(name: bytes) -> str | None:
        return fields[name].decode(errors="replace") if name in fields else None

    try:
        message_id, attempts = int(fields[b"message_id"]), int(fields[b"attempts"])
        spout_id, first_secs = (
            int(fields.get(b"spout_id", 0)),
            int(fields[b"first_secs"]) if b"first_secs" in fields else None,
        )
    except KeyError as exc:
        return DamagedLetter(entry_id, f"field {exc.args[0].decode()} is missing", fields)
    except ValueError:
        return DamagedLetter(entry_id, "message_id, attempts, spout_id or first_secs is not a number", fields)
    return DeadLetter(
        message_id=message_id,
        run_id=text(b"run_id") or "",
        attempts=attempts,
        reason=text(b"reason") or "",
        last_component=text(b"last_component"),
        detail=text(b"detail"),
        payload=fields.get(b"payload"),
        entry_id=entry_id,
        spout_id=spout_id,
        first_secs=first_secs,
        replay=text(b"replay"),
        place=text(b"place"),
    )
