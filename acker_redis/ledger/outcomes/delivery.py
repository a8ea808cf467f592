"""Delivery of outcomes from the streams to the spout: at least once, then confirmed and trimmed.

Consumer group semantics are Redis's own (XREADGROUP, XAUTOCLAIM, XACK). An entry is confirmed once the last of its outcomes
is. Until then all its outcomes are delivered again after a crash, marked `redelivered`.
"""

import os
from collections.abc import Iterable, Mapping
from itertools import chain, pairwise

from acker_redis.client import scripts
from acker_redis.client.replies import as_dict
from acker_redis.client.scripts import Call
from acker_redis.errors import BadConfigError
from acker_redis.ledger.outcomes.consumer import MAX_ENTRIES, Consumer, Stream
from acker_redis.ledger.outcomes.outcome import EntryReceipt, Outcome, OutcomeBatch
from acker_redis.ledger.outcomes.single_outcomes import SingleOutcomes
from acker_redis.ledger.shards import Shards
from acker_redis.model import keys

CLOSE_SECS = 0.5
"""Maximum time that `close` waits for a read ahead, so that a silent server does not delay it."""


class Delivery:
    """Delivers outcomes to spout processes."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._streams: list[Stream] = []
        for shard, shard_keys in enumerate(shards.keys):
            for lane in range(shards.config.lanes):
                self._streams.append(Stream(shard, shard_keys.acked[lane], "ack", lane))
                self._streams.append(Stream(shard, shard_keys.failed[lane], "fail", lane))
        self._shard_of = {stream.key: stream.shard for stream in self._streams}
        self._views: dict[tuple[str, int | None], SingleOutcomes] = {}  # by name and lane of their consumers
        self._process = os.getpid()
        self._component_names: dict[int, str] = {}

    def close(self) -> None:
        """Wait shortly for a read ahead. Its entries stay in the streams, for this consumer's next process."""
        for view in self._own().values():
            view.consumer.wait(CLOSE_SECS)

    def forget(self) -> None:
        """Drop entries that were read but not handed out, after the server lost its data."""
        for view in self._own().values():
            view.consumer.wait()
        self._views.clear()
        self._component_names.clear()

    def poll(self, max_outcomes: int, block_ms: int, consumer: str, lane: int | None) -> list[Outcome]:
        """Read up to `max_outcomes` outcomes; see `Acker.poll`."""
        return self._view(max_outcomes, block_ms, consumer, lane).poll(max_outcomes, block_ms)

    def poll_batches(
        self, max_outcomes: int, block_ms: int, consumer: str, lane: int | None, *, again: bool
    ) -> list[OutcomeBatch]:
        """Read the outcomes of whole entries, in batches; see `Acker.poll_batches`."""
        view = self._view(max_outcomes, block_ms, consumer, lane)
        if again:
            view.begin_again()
        return [
            batch
            for entries in view.consumer.poll(max_outcomes, block_ms, read_ahead=True)
            for batch in entries.batches()
        ]

    def confirm(self, outcomes: Iterable[Outcome]) -> int:
        """Confirm the entries without other unconfirmed outcomes. Returns the number of entries trimmed."""
        complete: dict[EntryReceipt, None] = {}
        for outcome in outcomes:
            receipt = outcome.receipt
            if receipt.unconfirmed == {outcome.root}:  # stays until the server knows, so that it can be confirmed again
                complete[receipt] = None
            else:
                receipt.unconfirmed.discard(outcome.root)
        entry_ids: dict[str, list[list[bytes]]] = {}
        for receipt in complete:
            entry_ids.setdefault(receipt.stream, []).append([receipt.entry_id])
        trimmed = self._confirm_entries(entry_ids)
        for receipt in complete:
            receipt.unconfirmed.clear()
        return trimmed

    def confirm_batches(self, batches: Iterable[OutcomeBatch]) -> int:
        """Confirm all entries of batches. Returns the number of entries trimmed."""
        entry_ids: dict[str, list[list[bytes]]] = {}
        for batch in batches:
            entry_ids.setdefault(batch.receipt.stream, []).append(batch.receipt.entry_ids)
        return self._confirm_entries(entry_ids)

    def _confirm_entries(self, entry_ids: Mapping[str, list[list[bytes]]]) -> int:
        """Confirm entries per stream. Returns the number of entries trimmed."""
        calls: list[Call] = []
        for stream, parts in entry_ids.items():
            entries = _in_order(parts)
            calls.extend(
                self._confirm_call(stream, entries[start : start + MAX_ENTRIES])
                for start in range(0, len(entries), MAX_ENTRIES)
            )
        return sum(trimmed for (trimmed,) in self._shards.client.run(calls))

    def _confirm_call(self, stream: str, entries: list[bytes]) -> Call:
        shard = self._shard_of[stream]
        shard_keys = {"meta": self._shards.keys[shard].meta, "outcomes": stream}
        return scripts.load("confirm").call(shard_keys, self._shards.generations[shard], b" ".join(entries))

    def _view(self, max_outcomes: int, block_ms: int, consumer: str, lane: int | None) -> SingleOutcomes:
        if not isinstance(max_outcomes, int) or max_outcomes < 1:
            raise BadConfigError(f"max_outcomes={max_outcomes!r} is out of range. Use an integer of 1 or more.")
        if not isinstance(block_ms, int) or block_ms < 0:
            raise BadConfigError(f"block_ms={block_ms!r} is out of range. Use a number of milliseconds, 0 or more.")
        if not isinstance(consumer, str) or not consumer:
            raise BadConfigError(
                f"consumer={consumer!r} is not a name. Pass the name of this spout process, stable over its restarts."
            )
        if lane is not None and not 0 <= lane < self._shards.config.lanes:
            raise BadConfigError(
                f"lane={lane!r} does not exist. Use a lane of this app, 0 to {self._shards.config.lanes - 1}."
            )
        self._shards.client.check_open()
        views = self._own()
        if (consumer, lane) not in views:
            streams = [stream for stream in self._streams if lane is None or stream.lane == lane]
            reader = Consumer(
                self._shards, streams, consumer, lambda stream, gone: self._confirm_entries({stream: [gone]})
            )
            views[consumer, lane] = SingleOutcomes(reader, self._component_name)
        return views[consumer, lane]

    def _own(self) -> dict[tuple[str, int | None], SingleOutcomes]:
        """Return the views of this process. A forked process has no reading thread, and must not use its parent's entries."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._views = {}
        return self._views

    def _component_name(self, number: int) -> str | None:
        if number == 0:
            return None
        if number not in self._component_names:
            (pairs,) = self._shards.client.pipeline([("HGETALL", keys.components(self._shards.config.app))])
            self._component_names = {int(value): name.decode() for name, value in as_dict(pairs).items()}
        return self._component_names.get(number, str(number))


def _in_order(parts: list[list[bytes]]) -> list[bytes]:
    """Sort the entry ids of one stream, oldest first. Each part is sorted already."""
    parts = sorted(parts, key=lambda part: _age(part[0]))
    entry_ids = list(chain.from_iterable(parts))
    if any(_age(earlier[-1]) > _age(later[0]) for earlier, later in pairwise(parts)):
        entry_ids.sort(key=_age)
    return entry_ids


def _age(entry_id: bytes) -> tuple[int, int]:
    """Return the two numbers that entry ids are sorted by."""
    millis, _, number = entry_id.partition(b"-")
    return int(millis), int(number)
