"""Delivery: outcomes from the streams to the spout, at least once, confirmed and trimmed.

Consumer group semantics are Redis's own (XREADGROUP, XAUTOCLAIM, XACK). An entry is confirmed when the last of its
outcomes is; until then all of it is delivered again after a crash, marked `redelivered`.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, Literal

from acker_redis import keys, scripts
from acker_redis.entries import Entries, Flat, StageName, as_dict, claimed_entries, read_flat
from acker_redis.errors import AckerError, BadConfigError, LedgerLostError
from acker_redis.ledger import Shards
from acker_redis.model import Outcome, PackedOutcomes, Receipt
from acker_redis.scripts import Call

_BLOCK_SLICE_MS = 1000
_CLUSTER_PAUSE_SECS = 0.01
_MAX_ENTRIES = 1000
"""Entries of one command, read or confirmed: holds the server some 2 ms."""

_OUTCOMES_PER_ENTRY = 500.0
"""First guess of how many outcomes an entry of an ack stream holds: one call's worth. Corrected by what is read."""


@dataclass(frozen=True)
class _Stream:
    shard: int
    key: str
    kind: Literal["ack", "fail"]
    lane: int


@dataclass
class _Consumer:
    """What this process knows of one consumer name on some lanes."""

    backlog: deque[Entries] = field(default_factory=deque)
    begun: Iterator[Outcome] = field(default_factory=lambda: iter(()))
    begun_entry: Entries | None = None
    held: dict[str, set[bytes]] = field(default_factory=dict)  # per stream: read and not, or not wholly, handed out yet
    unread: dict[str, bytes] | None = (
        None  # of what it left behind: stream -> entry after which to go on; None: all of it
    )
    claimed_at: float = float("-inf")
    cursors: dict[str, bytes] = field(default_factory=dict)
    per_entry: float = _OUTCOMES_PER_ENTRY
    ahead: Future[list[Any]] | None = None

    def put(self, entries: Entries) -> None:
        """Add to the backlog."""
        self.held.setdefault(entries.stream, set()).update(entries.entry_ids)
        self.backlog.append(entries)

    def take(self, outcomes: int) -> Entries:
        """Take entries of one stream off the backlog, as few as hold so many outcomes, or all of those read together."""
        taken = self.backlog[0].take(outcomes)
        if not self.backlog[0].entry_ids:
            self.backlog.popleft()
        return taken

    def begin(self, stage_name: StageName) -> None:
        """Take the next entry apart; it is held until its last outcome was handed out."""
        self.end()
        self.begun_entry = self.take(1)
        self.begun = self.begun_entry.outcomes(stage_name)

    def end(self) -> None:
        """The entry that was begun has been handed out."""
        if self.begun_entry is not None:
            self.release(self.begun_entry)
            self.begun_entry = None

    def release(self, entries: Entries) -> None:
        """These were handed out."""
        self.held[entries.stream].difference_update(entries.entry_ids)


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
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="acker-read")

    def close(self) -> None:
        """Wait for what is being read ahead; it stays in the streams, for the next process of this consumer."""
        self._reader.shutdown()

    def forget(self) -> None:
        """Drop what was read and not handed out: after the server lost its data."""
        wait([state.ahead for state in self._consumers.values() if state.ahead is not None])
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
        """Whole entries, packed, until they hold `max_outcomes` outcomes or more; see `Acker.poll_packed`."""
        state, streams = self._consumer(max_outcomes, block_ms, consumer, lane)
        if again:
            state.unread = None
        taken: list[PackedOutcomes] = []
        count = 0

        def take() -> int:
            nonlocal count
            while state.backlog and count < max_outcomes:
                entries = state.take(max_outcomes - count)
                state.release(entries)
                taken.extend(entries.packed())
                count += sum(entries.sizes())
            return max_outcomes - count

        self._gather(take, max_outcomes, block_ms, state, streams, consumer)
        recovered = state.unread is not None and not state.unread  # else what is new would be found again there
        if count >= max_outcomes and recovered and not state.backlog and state.ahead is None:
            commands = self._reads(state, streams, consumer, max_outcomes)
            state.ahead = self._reader.submit(self._shards.client.pipeline, commands)
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
        finished: dict[str, list[list[bytes]]] = {}
        done: list[Receipt] = []
        for outcome in outcomes:
            receipt = outcome.receipt
            if receipt.unconfirmed == {outcome.root}:  # stays until the server knows, so that it can be confirmed again
                done.append(receipt)
                finished.setdefault(receipt.stream, []).append(receipt.entry_ids)
            else:
                receipt.unconfirmed.discard(outcome.root)
        confirmed = self._finish(finished)
        for receipt in done:
            receipt.unconfirmed.clear()
        return confirmed

    def confirm_packed(self, packed: Iterable[PackedOutcomes]) -> int:
        """Confirm all entries of packs; returns how many were trimmed."""
        finished: dict[str, list[list[bytes]]] = {}
        for one in packed:
            finished.setdefault(one.receipt.stream, []).append(one.receipt.entry_ids)
        return self._finish(finished)

    def _finish(self, finished: dict[str, list[list[bytes]]]) -> int:
        calls: list[Call] = []
        for stream, parts in finished.items():
            entries = _in_order(parts)
            calls.extend(
                self._confirm_call(stream, entries[start : start + _MAX_ENTRIES])
                for start in range(0, len(entries), _MAX_ENTRIES)
            )
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
        """Read more entries into the backlog; first what this consumer left behind, then new, then from the dead.

        What was read ahead comes before all, unless it will be found among what was left behind.
        """
        self._check_generations()
        return (
            self._take_ahead(state)
            or self._recover(state, streams, consumer, wanted)
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
            (reply,) = self._shards.client.pipeline([command])
            found, last = False, b""
            for name, entry_ids, fields in read_flat(reply):
                found = self._add(state, name, entry_ids, fields, redelivered=True)
                last = entry_ids[-1] if entry_ids else b""
            if last:
                state.unread[key] = last
            else:
                del state.unread[key]
            if found:
                return True
        return False

    def _take_ahead(self, state: _Consumer) -> bool:
        """What was read ahead; nothing where all that is this consumer's is about to be read again."""
        ahead, state.ahead = state.ahead, None
        if ahead is None:
            return False
        if state.unread is None:
            wait([ahead])
            return False
        return self._add_all(state, ahead.result())

    def _read(self, state: _Consumer, streams: list[_Stream], consumer: str, wanted: int) -> bool:
        return self._add_all(state, self._shards.client.pipeline(self._reads(state, streams, consumer, wanted)))

    def _reads(self, state: _Consumer, streams: list[_Stream], consumer: str, wanted: int) -> list[tuple[Any, ...]]:
        groups: dict[tuple[int, Literal["ack", "fail"]], list[_Stream]] = {}
        for stream in streams:  # a command for each hash tag only where there are several nodes
            shard = stream.shard if self._shards.client.is_cluster else 0
            groups.setdefault((shard, stream.kind), []).append(stream)
        commands: list[tuple[Any, ...]] = []
        for (_, kind), group in groups.items():
            count = self._count(state, kind, wanted, sum(stream.kind == kind for stream in streams))
            together = max(1, _MAX_ENTRIES // count)
            commands.extend(
                self._xreadgroup(consumer, count, group[start : start + together])
                for start in range(0, len(group), together)
            )
        return commands

    def _count(self, state: _Consumer, kind: Literal["ack", "fail"], wanted: int, streams: int) -> int:
        """How many entries to ask each of so many streams for, to get about as many outcomes of a kind as wanted."""
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
                self._command("XAUTOCLAIM"), s.key, keys.GROUP, consumer, idle_ms, state.cursors[s.key],
                "COUNT", self._count(state, s.kind, wanted, len(streams)),
            )
            for s in under_way
        ]  # fmt: skip
        found = False
        for stream, reply in zip(under_way, self._shards.client.pipeline(commands), strict=True):
            if reply[0] == b"0-0":
                del state.cursors[stream.key]
            else:
                state.cursors[stream.key] = reply[0]
            entry_ids, fields = claimed_entries(reply)
            found = self._add(state, stream.key, entry_ids, fields, redelivered=True) or found
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
        self._add_all(state, [reply])

    def _xreadgroup(
        self, consumer: str, count: int, streams: list[_Stream], after: bytes = b">", block_ms: int | None = None
    ) -> tuple[Any, ...]:
        block = () if block_ms is None else ("BLOCK", block_ms)
        names = [stream.key for stream in streams]
        return (
            self._command("XREADGROUP"), "GROUP", keys.GROUP, consumer, "COUNT", count, *block,
            "STREAMS", *names, *[after] * len(names),
        )  # fmt: skip

    def _command(self, name: str) -> str | bytes:
        """redis-py takes apart replies of commands it knows by name, a dict per entry, which costs more than reading them.

        Under a name of bytes it hands them out as they came; a cluster client needs text, to find the node.
        """
        return name if self._shards.client.is_cluster else name.encode()

    def _add_all(self, state: _Consumer, replies: Iterable[Any]) -> bool:
        found = False
        for reply in replies:
            for name, entry_ids, fields in read_flat(reply):
                found = self._add(state, name, entry_ids, fields, redelivered=False) or found
        return found

    def _add(
        self, state: _Consumer, name: str, entry_ids: list[bytes], fields: list[Flat], *, redelivered: bool
    ) -> bool:
        """Put entries into the backlog; those that are there already, claimed from oneself, are not put there again."""
        stream, gone = self._by_key[name], []
        if redelivered:
            held = state.held.get(name, set())
            gone = [entry_id for entry_id, flat in zip(entry_ids, fields, strict=True) if not flat]
            keep = [i for i, entry_id in enumerate(entry_ids) if fields[i] and entry_id not in held]
            entry_ids, fields = [entry_ids[i] for i in keep], [fields[i] for i in keep]
        if entry_ids:
            entries = Entries(stream.kind, name, entry_ids, fields, redelivered)
            state.put(entries)
            if stream.kind == "ack":
                state.per_entry = max(1.0, sum(entries.sizes()) / len(entry_ids))
        if (
            gone
        ):  # trimmed, and still in the group's list; newer servers than Redis 6.2 drop those claimed by themselves
            self._finish({name: [gone]})
        return bool(entry_ids)

    def _stage_name(self, number: int) -> str | None:
        if number == 0:
            return None
        if number not in self._stage_names:
            (pairs,) = self._shards.client.pipeline([("HGETALL", keys.stages(self._shards.config.app))])
            self._stage_names = {int(value): name.decode() for name, value in as_dict(pairs).items()}
        return self._stage_names.get(number, str(number))


def _in_order(parts: list[list[bytes]]) -> list[bytes]:
    """Entry ids of one stream, oldest first; each part is in order by itself."""
    parts = sorted(parts, key=lambda part: _age(part[0]))
    entry_ids = list(chain.from_iterable(parts))
    if any(_age(one[-1]) > _age(other[0]) for one, other in pairwise(parts)):
        entry_ids.sort(key=_age)
    return entry_ids


def _age(entry_id: bytes) -> tuple[int, int]:
    """Entry ids sort by their two numbers."""
    millis, _, number = entry_id.partition(b"-")
    return int(millis), int(number)
