"""Delivery: outcomes from the streams to the spout, at least once, confirmed and trimmed.

Consumer group semantics are Redis's own (XREADGROUP, XAUTOCLAIM, XACK). An entry is confirmed when the last of its
outcomes is; until then all of it is delivered again after a crash, marked `redelivered`.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from acker_redis import keys, scripts
from acker_redis.entries import Entry, Fields, StageName, as_dict, claimed_entries, read_reply
from acker_redis.errors import AckerError, BadConfigError, LedgerLostError
from acker_redis.ledger import Shards
from acker_redis.model import Outcome, PackedOutcomes, Receipt
from acker_redis.scripts import Call

_BLOCK_SLICE_MS = 1000
_CLUSTER_PAUSE_SECS = 0.01
_MAX_ENTRIES = 1000
_OUTCOMES_PER_ENTRY = 500.0
"""First guess of how many outcomes an entry of an ack stream holds: one call's worth. Corrected by what is read."""

EntryKey: TypeAlias = tuple[str, bytes]


@dataclass(frozen=True)
class _Stream:
    shard: int
    key: str
    kind: Literal["ack", "fail"]
    lane: int


@dataclass
class _Consumer:
    """What this process knows of one consumer name on some lanes."""

    backlog: deque[Entry] = field(default_factory=deque)
    begun: Iterator[Outcome] = field(default_factory=lambda: iter(()))
    begun_entry: EntryKey | None = None
    held: set[EntryKey] = field(default_factory=set)  # in the backlog, or begun: read and not handed out yet
    unread: dict[str, bytes] | None = (
        None  # of what it left behind: stream -> entry after which to go on; None: all of it
    )
    claimed_at: float = float("-inf")
    cursors: dict[str, bytes] = field(default_factory=dict)
    per_entry: float = _OUTCOMES_PER_ENTRY

    def next_entry(self) -> Entry:
        """Take an entry off the backlog."""
        entry = self.backlog.popleft()
        self.held.discard((entry.stream, entry.entry_id))
        return entry

    def begin(self, stage_name: StageName) -> None:
        """Take the next entry apart; it is held until its last outcome was handed out."""
        self.end()
        entry = self.next_entry()
        self.begun_entry = (entry.stream, entry.entry_id)
        self.held.add(self.begun_entry)
        self.begun = entry.outcomes(stage_name)

    def end(self) -> None:
        """The entry that was begun has been handed out."""
        if self.begun_entry is not None:
            self.held.discard(self.begun_entry)
            self.begun_entry = None


class Delivery:
    """Hands outcomes to spout processes."""

    def __init__(self, shards: Shards) -> None:
        """Work on opened shards."""
        self._shards = shards
        self._streams: list[_Stream] = []
        for shard, shard_keys in enumerate(shards.keys):
            for lane in range(shards.config.lanes):
                self._streams.append(_Stream(shard, shard_keys.acked[lane], "ack", lane))
                self._streams.append(_Stream(shard, shard_keys.failed[lane], "fail", lane))
        self._by_key = {stream.key: stream for stream in self._streams}
        self._consumers: dict[tuple[str, int | None], _Consumer] = {}
        self._stage_names: dict[int, str] = {}

    def forget(self) -> None:
        """Drop what was read and not handed out: after the server lost its data."""
        self._consumers.clear()
        self._stage_names.clear()

    def poll(self, max_outcomes: int, block_ms: int, consumer: str, lane: int | None) -> list[Outcome]:
        """Up to `max_outcomes` outcomes; see `Acker.poll`."""
        state, streams = self._consumer(max_outcomes, block_ms, consumer, lane)
        outcomes: list[Outcome] = []

        def take() -> int:
            while len(outcomes) < max_outcomes:
                outcome = next(state.begun, None)
                if outcome is not None:
                    outcomes.append(outcome)
                elif state.backlog:
                    state.begin(self._stage_name)
                else:
                    state.end()
                    break
            return max_outcomes - len(outcomes)

        self._gather(take, max_outcomes, block_ms, state, streams, consumer)
        return outcomes

    def poll_packed(
        self, max_outcomes: int, block_ms: int, consumer: str, lane: int | None, *, again: bool
    ) -> list[PackedOutcomes]:
        """Whole entries until they hold `max_outcomes` outcomes or more; see `Acker.poll_packed`."""
        state, streams = self._consumer(max_outcomes, block_ms, consumer, lane)
        if again:
            state.unread = None
        taken: list[PackedOutcomes] = []
        count = 0

        def take() -> int:
            nonlocal count
            while state.backlog and count < max_outcomes:
                taken.append(state.next_entry().packed())
                count += len(taken[-1].roots)
            return max_outcomes - count

        self._gather(take, max_outcomes, block_ms, state, streams, consumer)
        return taken

    def _consumer(
        self, max_outcomes: int, block_ms: int, consumer: str, lane: int | None
    ) -> tuple[_Consumer, list[_Stream]]:
        if not isinstance(max_outcomes, int) or max_outcomes < 1:
            raise BadConfigError(f"max_outcomes={max_outcomes!r}: use an integer of 1 or more")
        if not isinstance(block_ms, int) or block_ms < 0:
            raise BadConfigError(f"block_ms={block_ms!r}: use milliseconds, 0 or more")
        if not isinstance(consumer, str) or not consumer:
            raise BadConfigError(
                f"consumer={consumer!r}: give the name of this spout process, stable over its restarts"
            )
        if lane is not None and not 0 <= lane < self._shards.config.lanes:
            raise BadConfigError(f"lane={lane!r}: this app has lanes 0 to {self._shards.config.lanes - 1}")
        streams = [s for s in self._streams if lane is None or s.lane == lane]
        return self._consumers.setdefault((consumer, lane), _Consumer()), streams

    def _gather(
        self,
        take: Callable[[], int],
        wanted: int,
        block_ms: int,
        state: _Consumer,
        streams: list[_Stream],
        consumer: str,
    ) -> None:
        """Take from the backlog, and fill it, until enough was taken or nothing is there and the time is up."""
        deadline = time.monotonic() + block_ms / 1000
        while (left := take()) > 0:
            try:
                if self._fill(state, streams, consumer, left):
                    continue
            except AckerError:
                state.unread = None  # a reply may have been lost, and what it held is this consumer's now
                if left < wanted:  # taken off the backlog already: hand them out, the next poll meets the error
                    return
                raise
            left_ms = math.ceil((deadline - time.monotonic()) * 1000)
            if left < wanted or left_ms <= 0:
                return
            self._wait(state, streams, consumer, min(left_ms, _BLOCK_SLICE_MS, self._shards.client.max_block_ms))

    def confirm(self, outcomes: Iterable[Outcome]) -> int:
        """Confirm outcomes; returns how many stream entries are done with and trimmed."""
        finished: dict[str, list[bytes]] = {}
        done: list[Receipt] = []
        for outcome in outcomes:
            receipt = outcome.receipt
            if receipt.unconfirmed == {outcome.root}:  # stays until the server knows, so that it can be confirmed again
                done.append(receipt)
                finished.setdefault(receipt.stream, []).append(receipt.entry_id)
            else:
                receipt.unconfirmed.discard(outcome.root)
        confirmed = self._finish(finished)
        for receipt in done:
            receipt.unconfirmed.clear()
        return confirmed

    def confirm_packed(self, packed: Iterable[PackedOutcomes]) -> int:
        """Confirm whole entries; returns how many were trimmed."""
        finished: dict[str, list[bytes]] = {}
        for one in packed:
            finished.setdefault(one.receipt.stream, []).append(one.receipt.entry_id)
        return self._finish(finished)

    def _finish(self, finished: dict[str, list[bytes]]) -> int:
        calls = [
            self._confirm_call(stream, entries[start : start + _MAX_ENTRIES])
            for stream, entries in finished.items()
            for start in range(0, len(entries), _MAX_ENTRIES)
        ]
        confirmed = 0
        for reply in self._shards.client.run(calls):
            if isinstance(reply, AckerError):
                raise reply
            confirmed += reply[0]
        return confirmed

    def _confirm_call(self, stream: str, entries: list[bytes]) -> Call:
        shard = self._by_key[stream].shard
        shard_keys = {"meta": self._shards.keys[shard].meta, "outcomes": stream}
        return scripts.load("confirm").call(shard_keys, self._shards.generations[shard], *entries)

    def _fill(self, state: _Consumer, streams: list[_Stream], consumer: str, wanted: int) -> bool:
        """Read more entries into the backlog; first what this consumer left behind, then new, then from the dead."""
        self._check_generations()
        return (
            self._recover(state, streams, consumer, wanted)
            or self._read(state, streams, consumer, wanted)
            or self._claim(state, streams, consumer, wanted)
        )

    def _check_generations(self) -> None:
        """Reading a stream says nothing of a ledger that was lost and opened anew by somebody else; the marker does."""
        shards = self._shards
        found = shards.client.pipeline([("HGET", k.meta, "generation") for k in shards.keys])
        if found != shards.generations:
            lost = [shard for shard, marker in enumerate(found) if marker != shards.generations[shard]]
            raise LedgerLostError(
                f"{shards.client.address}: shards {lost} of app {shards.config.app!r} lost their data since this client "
                "opened them. Call Acker.recover() and replay every root that has no outcome yet"
            )

    def _recover(self, state: _Consumer, streams: list[_Stream], consumer: str, wanted: int) -> bool:
        """Read what this consumer took and did not confirm, before it crashed or lost a reply; a bounded part at a time."""
        if state.unread is None:
            state.unread = {stream.key: b"0" for stream in streams}
        while state.unread:
            key, after = next(iter(state.unread.items()))
            stream = self._by_key[key]
            command = self._xreadgroup(consumer, self._count(state, stream.kind, wanted, 1), [stream], after)
            entries = read_reply(self._shards.client.pipeline([command])[0])
            if entries:
                state.unread[key] = entries[-1][1]
            else:
                del state.unread[key]
            if self._add(state, entries, redelivered=True):
                return True
        return False

    def _read(self, state: _Consumer, streams: list[_Stream], consumer: str, wanted: int) -> bool:
        groups: dict[tuple[int, Literal["ack", "fail"]], list[_Stream]] = {}
        for stream in streams:  # a command for each hash tag only where there are several nodes
            shard = stream.shard if self._shards.client.is_cluster else 0
            groups.setdefault((shard, stream.kind), []).append(stream)
        commands = [
            self._xreadgroup(consumer, self._count(state, kind, wanted, len(streams)), group)
            for (_, kind), group in groups.items()
        ]
        found = False
        for reply in self._shards.client.pipeline(commands):
            found = self._add(state, read_reply(reply), redelivered=False) or found
        return found

    def _count(self, state: _Consumer, kind: Literal["ack", "fail"], wanted: int, streams: int) -> int:
        """How many entries to ask each of so many streams for, to get about as many outcomes as wanted."""
        per_entry = state.per_entry if kind == "ack" else 1.0
        return max(1, min(_MAX_ENTRIES, math.ceil(wanted / (streams * per_entry))))

    def _claim(self, state: _Consumer, streams: list[_Stream], consumer: str, wanted: int) -> bool:
        """Take over entries that were left unconfirmed for a whole message timeout.

        One bounded step of a pass over the streams; a pass begins at most every half a message timeout.
        """
        timeout_secs = self._shards.config.message_timeout_secs
        if not state.cursors:
            if time.monotonic() - state.claimed_at < timeout_secs / 2:
                return False
            state.claimed_at = time.monotonic()
            state.cursors = {stream.key: b"0-0" for stream in streams}
        idle_ms = math.ceil(timeout_secs * 1000)
        under_way = [stream for stream in streams if stream.key in state.cursors]
        commands = [
            (
                "XAUTOCLAIM", s.key, keys.GROUP, consumer, idle_ms, state.cursors[s.key],
                "COUNT", self._count(state, s.kind, wanted, len(streams)),
            )
            for s in under_way
        ]  # fmt: skip
        found, dangling = False, dict[str, list[bytes]]()
        for stream, reply in zip(under_way, self._shards.client.pipeline(commands), strict=True):
            if reply[0] == b"0-0":
                del state.cursors[stream.key]
            else:
                state.cursors[stream.key] = reply[0]
            claimed = claimed_entries(reply)
            found = self._add(state, [(stream.key, i, f) for i, f in claimed if f], redelivered=True) or found
            gone = [entry_id for entry_id, fields in claimed if fields is None]
            if gone:  # Redis 6.2 hands out entries that were trimmed; newer servers drop them by themselves
                dangling[stream.key] = gone
        self._finish(dangling)
        return found

    def _wait(self, state: _Consumer, streams: list[_Stream], consumer: str, block_ms: int) -> None:
        client = self._shards.client
        if client.is_cluster:  # streams of several nodes can't be waited for in one command
            time.sleep(min(_CLUSTER_PAUSE_SECS, block_ms / 1000))
            return
        command = self._xreadgroup(consumer, 1, streams, block_ms=block_ms)
        (reply,) = client.pipeline([command], raise_on_error=False)
        if isinstance(reply, Exception):
            if str(reply).startswith("UNBLOCKED"):  # the stream went away, or the server's role changed: look anew
                return
            raise client.translate(reply) from reply
        self._add(state, read_reply(reply), redelivered=False)

    def _xreadgroup(
        self, consumer: str, count: int, streams: list[_Stream], after: bytes = b">", block_ms: int | None = None
    ) -> tuple[Any, ...]:
        block = () if block_ms is None else ("BLOCK", block_ms)
        names = [stream.key for stream in streams]
        return (
            "XREADGROUP", "GROUP", keys.GROUP, consumer, "COUNT", count, *block, "STREAMS", *names, *[after] * len(names),
        )  # fmt: skip

    def _add(self, state: _Consumer, entries: Sequence[tuple[str, bytes, Fields | None]], *, redelivered: bool) -> bool:
        """Put entries into the backlog; those that are there already, claimed from oneself, are not put there again."""
        found = False
        dangling: dict[str, list[bytes]] = {}
        sizes: list[int] = []
        for name, entry_id, fields in entries:
            if not fields:
                dangling.setdefault(name, []).append(entry_id)
            elif (name, entry_id) not in state.held:
                state.held.add((name, entry_id))
                stream = self._by_key[name]
                entry = Entry(stream.kind, stream.shard, name, entry_id, fields, redelivered)
                state.backlog.append(entry)
                if stream.kind == "ack":
                    sizes.append(len(entry))
                found = True
        if sizes:
            state.per_entry = max(1.0, sum(sizes) / len(sizes))
        self._finish(dangling)
        return found

    def _stage_name(self, number: int) -> str | None:
        if number == 0:
            return None
        if number not in self._stage_names:
            (pairs,) = self._shards.client.pipeline([("HGETALL", keys.stages(self._shards.config.app))])
            self._stage_names = {int(value): name.decode() for name, value in as_dict(pairs).items()}
        return self._stage_names.get(number, str(number))
