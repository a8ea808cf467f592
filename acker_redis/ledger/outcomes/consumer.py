"""Consumer of outcomes: reads entries, claims abandoned ones, and holds them until they are handed out."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, Literal

from acker_redis.client.client import raise_first
from acker_redis.client.replies import Flat, claimed_entries, read_flat
from acker_redis.client.scripts import Command
from acker_redis.errors import AckerError
from acker_redis.ledger.outcomes.outcome import Entries
from acker_redis.ledger.shards import Shards
from acker_redis.model import keys

MAX_ENTRIES = 1000
"""Maximum number of entries read or confirmed per command, which blocks the server about 2 ms."""

_BLOCK_SLICE_MS = 1000
_PAUSE_SECS = 0.01
_OUTCOMES_PER_ENTRY = 500.0
"""First estimate of the outcomes per entry of an ack stream: those of one call. Later reads correct it."""

_COUNT = 5
"""Index of the number of entries in an XREADGROUP command."""


@dataclass(frozen=True)
class Stream:
    """Outcome stream of a shard and lane."""

    shard: int
    key: str
    kind: Literal["ack", "fail"]
    lane: int


@dataclass
class _Reading:
    """Commands that a thread sends, and their replies."""

    commands: list[Command]
    replies: Future[list[Any]] = field(default_factory=Future)
    is_resent: bool = False

    def note_resend(self) -> None:
        """Mark the commands as sent more than once."""
        self.is_resent = True


@dataclass
class Backlog:
    """Entries that were read but not handed out yet."""

    _waiting: deque[Entries] = field(default_factory=deque)
    _held: dict[str, set[bytes]] = field(default_factory=dict)  # per stream

    def __bool__(self) -> bool:
        """Return True if there are entries."""
        return bool(self._waiting)

    @property
    def outcomes(self) -> int:
        """Number of outcomes in the entries."""
        return sum(sum(entries.sizes()) for entries in self._waiting)

    def put(self, entries: Entries) -> None:
        """Add entries, and hold them until they are handed out."""
        self.hold(entries.stream, entries.entry_ids)
        self._waiting.append(entries)

    def held(self, stream: str) -> set[bytes]:
        """Return the ids of a stream's entries that this process holds, so that it does not claim them from itself."""
        return self._held.get(stream, set())

    def hold(self, stream: str, entry_ids: Iterable[bytes]) -> None:
        """Mark entries as held by this process."""
        self._held.setdefault(stream, set()).update(entry_ids)

    def release(self, stream: str, entry_ids: Iterable[bytes]) -> None:
        """Mark entries as handed out."""
        self._held[stream].difference_update(entry_ids)

    def hand_out(self, outcomes: int) -> Entries:
        """Hand out whole entries of one read: as few as hold this many outcomes, or all. They are held until `release`."""
        taken = self._waiting[0].split_off(outcomes)
        if not self._waiting[0].entry_ids:
            self._waiting.popleft()
        return taken


class Consumer:
    """Consumer with one name on some streams of an app, in this process.

    Args:
        shards: shards of the app.
        streams: streams to read.
        name: name of the consumer, stable over restarts of its process.
        drop: function that confirms entries that were deleted from a stream.
    """

    def __init__(
        self,
        shards: Shards,
        streams: Sequence[Stream],
        name: str,
        drop: Callable[[str, list[bytes]], object],
    ) -> None:
        self._shards = shards
        self._client = shards.client
        self._streams = streams
        self._by_key = {stream.key: stream for stream in streams}
        self._name = name
        self._drop = drop
        self._backlog = Backlog()
        self._unread: dict[str, bytes] | None = None
        """Stream whose unconfirmed entries are read again -> entry to continue after. None: all streams, from the first."""
        self._cursors: dict[str, bytes] = {}
        self._claimed_at = float("-inf")
        self._per_entry = _OUTCOMES_PER_ENTRY
        self._ahead: _Reading | None = None
        self._read_out = False
        """True if the last read of new entries returned less than the limit, from every stream."""

    def wait(self, timeout_secs: float | None = None) -> None:
        """Wait until the read ahead is complete, or the timeout is over."""
        if self._ahead is not None:
            wait([self._ahead.replies], timeout_secs)

    def hold(self, stream: str, entry_id: bytes) -> None:
        """Hold an entry that was handed out in part until `release`, so that it isn't claimed again."""
        self._backlog.hold(stream, [entry_id])

    def release(self, stream: str, entry_id: bytes) -> None:
        """Release a held entry that was handed out completely."""
        self._backlog.release(stream, [entry_id])

    def begin_again(self) -> None:
        """Let the next poll begin with entries that this consumer took but did not confirm."""
        self._unread = None

    def poll(self, max_outcomes: int, block_ms: int, *, read_ahead: bool = False) -> list[Entries]:
        """Read whole entries: as few as hold `max_outcomes` outcomes, or all there are.

        Args:
            max_outcomes: number of outcomes, exceeded by the rest of the last entry.
            block_ms: time to wait for a first outcome, in milliseconds.
            read_ahead: True to start reading the next entries in a thread.
        """
        taken: list[Entries] = []
        count = 0

        def take() -> int:
            nonlocal count
            while self._backlog and count < max_outcomes:
                entries = self._backlog.hand_out(max_outcomes - count)
                taken.append(entries)
                count += sum(entries.sizes())
            return max_outcomes - count

        try:
            self._gather(take, max_outcomes, block_ms)
        finally:  # only now: a poll that takes longer than a message timeout would claim them from itself
            for entries in taken:
                self._backlog.release(entries.stream, entries.entry_ids)
        recovered = self._unread is not None and not self._unread  # else that would read new entries again
        if (
            read_ahead
            and count >= max_outcomes
            and recovered
            and self._ahead is None
            and self._backlog.outcomes < max_outcomes
        ):
            self._read_ahead(max_outcomes)
        return taken

    def _gather(self, take: Callable[[], int], wanted: int, block_ms: int) -> None:
        """Take from the backlog and refill it, until enough is taken, or it is empty and the time is up."""
        deadline = time.monotonic() + block_ms / 1000
        self._read_out = False
        while (left := take()) > 0:
            if self._unread is None and left < wanted:  # what was taken is unconfirmed, and would be read again
                return
            try:
                if self._fill(left):
                    continue
            except AckerError:
                self.begin_again()  # a reply may have been lost, and what it held is this consumer's now
                if left < wanted:  # taken off the backlog already: hand them out, the next poll meets the error
                    return
                raise
            if self._unread is None:  # a reply was lost just now
                continue
            left_ms = math.ceil((deadline - time.monotonic()) * 1000)
            if left < wanted or left_ms <= 0:
                return
            self._wait_for_new(min(left_ms, _BLOCK_SLICE_MS, self._client.max_block_ms))

    def _fill(self, wanted: int) -> bool:
        """Read more entries into the backlog: this consumer's unconfirmed ones, then new ones, then abandoned ones.

        Entries that were read ahead come first, unless they will be read again among the unconfirmed ones.
        """
        return self._take_ahead() or self._recover(wanted) or self._read(wanted) or self._claim(wanted)

    def _ask(self, commands: Sequence[Command], on_resend: Callable[[], object] | None = None) -> list[Any]:
        return self._checked(self._client.pipeline_each(self._with_generations(commands), on_resend=on_resend))

    def _with_generations(self, commands: Sequence[Command]) -> list[Command]:
        """Add commands that read the generations. Streams don't show that a ledger was lost and opened by another client.

        They share the round trip of the read. A separate one would add a third to the time of a poll.
        """
        return [*(("HGET", k.meta, "generation") for k in self._shards.keys), *commands]

    def _checked(self, replies: list[Any]) -> list[Any]:
        shards = len(self._shards.keys)
        generations, read = replies[:shards], replies[shards:]
        raise_first(generations)
        self._shards.check_generations(generations)  # first: of streams that are gone the error says less
        raise_first(read)
        return read

    def _recover(self, wanted: int) -> bool:
        """Read entries that this consumer took but did not confirm before a crash or a lost reply, in bounded parts."""
        if self._unread is None:
            self._unread = {stream.key: b"0" for stream in self._streams}
        while self._unread:
            key, after = next(iter(self._unread.items()))
            stream = self._by_key[key]
            command = self._xreadgroup(self._count(stream.kind, wanted, 1), [stream], after)
            (reply,) = self._ask([command])
            added, last = False, b""
            for name, entry_ids, fields in read_flat(reply):
                added = self._add(name, entry_ids, fields, redelivered=True)
                last = entry_ids[-1] if entry_ids else b""
            if last:
                self._unread[key] = last
            else:
                del self._unread[key]
            if added:
                return True
        return False

    def _read_ahead(self, wanted: int) -> None:
        """Start reading new entries in a daemon thread, so that a silent server doesn't delay the end of the process."""
        reading = self._ahead = _Reading(self._reads(wanted))

        def read() -> None:
            try:
                commands = self._with_generations(reading.commands)
                reading.replies.set_result(self._client.pipeline_each(commands, on_resend=reading.note_resend))
            except BaseException as exc:  # of the thread; raised where the result is taken
                reading.replies.set_exception(exc)

        threading.Thread(target=read, name="acker-read", daemon=True).start()

    def _take_ahead(self) -> bool:
        """Add the entries that were read ahead, unless all of this consumer's entries will be read again."""
        reading, self._ahead = self._ahead, None
        if reading is None:
            return False
        if self._unread is None:
            wait([reading.replies])
            return False
        added = self._add_all(reading.commands, self._checked(reading.replies.result()))
        self._read_out = False  # it was read before this poll: entries that came since are not among it
        if reading.is_resent:
            self.begin_again()
        return added

    def _read(self, wanted: int) -> bool:
        if self._read_out:
            return False
        commands = self._reads(wanted)
        return self._add_all(commands, self._ask(commands, self.begin_again))

    def _reads(self, wanted: int) -> list[Command]:
        groups: dict[tuple[int, Literal["ack", "fail"]], list[Stream]] = {}
        for stream in self._streams:  # a command for each hash tag only where there are several nodes
            shard = stream.shard if self._client.is_cluster else 0
            groups.setdefault((shard, stream.kind), []).append(stream)
        commands: list[Command] = []
        for (_, kind), group in groups.items():
            count = self._count(kind, wanted, sum(stream.kind == kind for stream in self._streams))
            together = max(1, MAX_ENTRIES // count)
            commands.extend(
                self._xreadgroup(count, group[start : start + together]) for start in range(0, len(group), together)
            )
        return commands

    def _count(self, kind: Literal["ack", "fail"], wanted: int, streams: int) -> int:
        """Compute how many entries to request per stream, to read about as many outcomes as wanted."""
        per_entry = self._per_entry if kind == "ack" else 1.0
        return max(1, min(MAX_ENTRIES, math.ceil(wanted / (streams * per_entry))))

    def _claim(self, wanted: int) -> bool:
        """Claim entries that stayed unconfirmed for a whole message timeout.

        Runs one bounded step of a pass over the streams. A pass begins at most every half a message timeout.
        """
        timeout_secs = self._shards.config.message_timeout_secs
        if not self._cursors:
            if time.monotonic() - self._claimed_at < timeout_secs / 2:
                return False
            self._claimed_at = time.monotonic()
            self._cursors = {stream.key: b"0-0" for stream in self._streams}
        idle_ms = math.ceil(timeout_secs * 1000)
        under_way = [stream for stream in self._streams if stream.key in self._cursors]
        commands: list[Command] = [
            (
                self._command("XAUTOCLAIM"), s.key, keys.GROUP, self._name, idle_ms, self._cursors[s.key],
                "COUNT", self._count(s.kind, wanted, len(self._streams)),
            )
            for s in under_way
        ]  # fmt: skip
        added = False
        replies = self._client.pipeline_each(commands, on_resend=self.begin_again)
        raise_first(replies)
        for stream, reply in zip(under_way, replies, strict=True):
            if reply[0] == b"0-0":
                del self._cursors[stream.key]
            else:
                self._cursors[stream.key] = reply[0]
            entry_ids, fields = claimed_entries(reply)
            added = self._add(stream.key, entry_ids, fields, redelivered=True) or added
        return added

    def _wait_for_new(self, block_ms: int) -> None:
        self._read_out = False
        if self._client.is_cluster:  # streams of several nodes can't be waited for in one command
            time.sleep(min(_PAUSE_SECS, block_ms / 1000))
            return
        command = self._xreadgroup(1, self._streams, block_ms=block_ms)
        asked = time.monotonic()
        (reply,) = self._client.pipeline_each([command], on_resend=self.begin_again)
        if isinstance(reply, AckerError):
            if str(reply.__cause__).startswith("UNBLOCKED"):  # the stream went away, or the server's role changed
                return
            self.begin_again()
            raise reply
        pause_secs = min(_PAUSE_SECS, block_ms / 1000)
        if not self._add_all([command], [reply]) and time.monotonic() - asked < pause_secs / 2:
            time.sleep(pause_secs)  # fakeredis answers at once

    def _xreadgroup(
        self, count: int, streams: Sequence[Stream], after: bytes = b">", block_ms: int | None = None
    ) -> Command:
        block: Command = () if block_ms is None else ("BLOCK", block_ms)
        names = [stream.key for stream in streams]
        return (
            self._command("XREADGROUP"), "GROUP", keys.GROUP, self._name, "COUNT", count, *block,
            "STREAMS", *names, *[after] * len(names),
        )  # fmt: skip

    def _command(self, name: str) -> str | bytes:
        """Return a command's name as bytes, so that redis-py leaves the reply raw. A cluster client needs text for routing.

        For a name in text redis-py makes a dict per entry, which costs more than reading the entries.
        """
        return name if self._client.is_cluster else name.encode()

    def _add_all(self, commands: Sequence[Command], replies: Sequence[Any]) -> bool:
        added, self._read_out = False, True
        for command, reply in zip(commands, replies, strict=True):
            for name, entry_ids, fields in read_flat(reply):
                added = self._add(name, entry_ids, fields, redelivered=False) or added
                self._read_out = self._read_out and len(entry_ids) < int(command[_COUNT])
        return added

    def _add(self, name: str, entry_ids: list[bytes], fields: list[Flat], *, redelivered: bool) -> bool:
        """Put entries into the backlog, without those that this consumer holds and claimed from itself."""
        stream, gone = self._by_key[name], list[bytes]()
        if redelivered:
            held = self._backlog.held(name)
            gone = [entry_id for entry_id, flat in zip(entry_ids, fields, strict=True) if not flat]
            keep = [i for i, entry_id in enumerate(entry_ids) if fields[i] and entry_id not in held]
            entry_ids, fields = [entry_ids[i] for i in keep], [fields[i] for i in keep]
        if entry_ids:
            entries = Entries(stream.kind, name, entry_ids, fields, redelivered)
            if stream.kind == "ack":
                self._per_entry = max(1.0, sum(entries.sizes()) / len(entry_ids))
            self._backlog.put(entries)
        # Trimmed, and still in the group's list; servers newer than Redis 6.2 drop those claimed by themselves.
        if gone:
            self._drop(name, gone)
        return bool(entry_ids)
