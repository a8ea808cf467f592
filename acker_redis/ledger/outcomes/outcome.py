"""Decode entries of the outcome streams (written by lua/lib/outcomes.lua) into outcomes.

Fields are read by position, in the order in which the script writes them. A dict per entry would cost more than the rest
together.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from acker_redis.client.replies import Flat
from acker_redis.model import blocks, ids
from acker_redis.model.arrays import Int64Array

ComponentName: TypeAlias = Callable[[int], str | None]

_ROW = np.dtype([("number", ">u8"), ("mask", ">u4"), ("age_ms", ">u4"), ("component", "u1")])
_ACK_SPOUT_ID, _ACK_BLOCKS = 1, 3
_ROOT, _SPOUT_ID, _REASON, _AGE, _COMPONENT, _DETAIL = 1, 3, 5, 7, 9, 11

_Key: TypeAlias = tuple[bytes, bytes | None, bytes | None, bytes | None]
"""spout_id, reason, last component and detail, which are equal in all outcomes of one batch."""


@dataclass(eq=False)
class Receipt:
    """Stream entries of a batch of outcomes, with their raw fields; see `times_of`."""

    stream: str
    entry_ids: list[bytes]
    fields: list[Flat] = field(default_factory=list, repr=False)


@dataclass(eq=False)
class EntryReceipt:
    """Stream entry of single outcomes, with its roots that are not confirmed yet."""

    stream: str
    entry_id: bytes
    unconfirmed: set[int] = field(repr=False)


class OutcomeBatch(NamedTuple):
    """Outcomes of one stream that differ only in root and age, for spouts that handle many at a time.

    Attributes:
        kind: `ack` or `fail`.
        spout_id: number of the spout that initialised the roots.
        roots: root ids, signed 64-bit. A root with two outcomes may appear twice.
        reason: `failed` or `timeout`; None for acks.
        last_component: component that processed failed roots last. None for acks (use `Outcome` for that).
        redelivered: True if the entries were handed out before but not confirmed.
        detail: `reason=` text of the fail calls, if they had one.
        receipt: receipt of all entries, for `Acker.confirm_batches`.
    """

    kind: Literal["ack", "fail"]
    spout_id: int
    roots: Int64Array
    reason: Literal["failed", "timeout"] | None
    last_component: str | None
    redelivered: bool
    detail: str | None
    receipt: Receipt


class Outcome(NamedTuple):
    """Outcome of one root.

    Exactly one is written per tracked root. It is delivered at least once.

    Attributes:
        kind: `ack` or `fail`.
        root: root id, signed 64-bit.
        spout_id: number of the spout that initialised the root.
        reason: `failed` (a component failed the root) or `timeout`; None for an ack.
        age_ms: time from the root's first message of any kind to its end, by the server's clock, in milliseconds.
        last_component: component that updated the root last, if components are named.
        redelivered: True if this outcome was handed out before but not confirmed.
        detail: `reason=` text of the fail call, if it had one.
        receipt: receipt for `Acker.confirm`, shared by all outcomes of one entry.
    """

    kind: Literal["ack", "fail"]
    root: int
    spout_id: int
    reason: Literal["failed", "timeout"] | None
    age_ms: int
    last_component: str | None
    redelivered: bool
    detail: str | None
    receipt: EntryReceipt


@dataclass
class Entries:
    """Entries of one stream that were read together and are not decoded yet."""

    kind: Literal["ack", "fail"]
    stream: str
    entry_ids: list[bytes]
    fields: list[Flat]
    redelivered: bool
    _sizes: list[int] | None = None

    def sizes(self) -> list[int]:
        """Count the outcomes of each entry. Computed once."""
        if self._sizes is None:
            self._sizes = _ack_sizes(self.fields) if self.kind == "ack" else [1] * len(self.fields)
        return self._sizes

    def split_off(self, outcomes: int) -> "Entries":
        """Remove and return the first entries: as few as hold this many outcomes, or all."""
        sizes = self.sizes()
        count = 1 + bisect_left(list(accumulate(sizes)), outcomes) if self.kind == "ack" else outcomes
        taken = Entries(
            self.kind, self.stream, self.entry_ids[:count], self.fields[:count], self.redelivered, sizes[:count]
        )
        self.entry_ids, self.fields, self._sizes = self.entry_ids[count:], self.fields[count:], sizes[count:]
        return taken

    def batches(self) -> Iterator[OutcomeBatch]:
        """Decode all outcomes into batches, one per key."""
        roots_of = _ack_roots if self.kind == "ack" else _fail_roots
        for (spout_id, reason, component, detail), entry_ids, fields in self._grouped():
            yield OutcomeBatch(
                self.kind, int(spout_id), roots_of(fields), _reason(reason), _text(component), self.redelivered, _text(detail),
                Receipt(self.stream, entry_ids, fields),
            )  # fmt: skip

    def _grouped(self) -> Iterator[tuple[_Key, list[bytes], list[Flat]]]:
        """Group entries by key. Yields key, entry ids and fields."""
        keys = _ack_keys(self.fields) if self.kind == "ack" else _fail_keys(self.fields)
        distinct = set(keys)
        if len(distinct) == 1:  # most often: nothing to group
            yield keys[0], self.entry_ids, self.fields
            return
        rows: dict[_Key, list[int]] = {key: [] for key in keys}  # in the order of the entries
        for row, key in enumerate(keys):
            rows[key].append(row)
        for key, chosen in rows.items():
            yield key, [self.entry_ids[row] for row in chosen], [self.fields[row] for row in chosen]

    def outcomes(self, component_name: ComponentName) -> Iterator[Outcome]:
        """Decode all outcomes one by one. Outcomes of one entry share a receipt."""
        outcomes_of = self._acked if self.kind == "ack" else self._failed
        for entry_id, fields in zip(self.entry_ids, self.fields, strict=True):
            yield from outcomes_of(entry_id, fields, component_name)

    def _acked(self, entry_id: bytes, fields: Flat, component_name: ComponentName) -> Iterator[Outcome]:
        spout_id, rows, roots = int(fields[_ACK_SPOUT_ID]), _rows_of([fields]), _ack_roots([fields]).tolist()
        receipt = EntryReceipt(self.stream, entry_id, set(roots))
        roots_per_row = blocks.counts_of(rows["mask"])
        ages, components = (np.repeat(rows[name], roots_per_row).tolist() for name in ("age_ms", "component"))
        for root, age_ms, component in zip(roots, ages, components, strict=True):
            yield Outcome(
                "ack", root, spout_id, None, age_ms, component_name(component), self.redelivered, None, receipt
            )

    def _failed(self, entry_id: bytes, fields: Flat, _: ComponentName) -> Iterator[Outcome]:
        ((spout_id, reason, component, detail),) = _fail_keys([fields])
        root = ids.to_int64(int(fields[_ROOT], 16))
        yield Outcome(
            "fail", root, int(spout_id), _reason(reason), int(fields[_AGE]), _text(component), self.redelivered, _text(detail),
            EntryReceipt(self.stream, entry_id, {root}),
        )  # fmt: skip


def times_of(batch: OutcomeBatch) -> tuple[Int64Array, Int64Array]:
    """Decode the time of each root's outcome (ms since 1970, by the server's clock) and the root's age (ms)."""
    entry_ids, fields = batch.receipt.entry_ids, batch.receipt.fields
    ended = np.array([int(entry_id.partition(b"-")[0]) for entry_id in entry_ids], np.int64)
    if batch.kind == "fail":
        return ended, np.array([int(flat[_AGE]) for flat in fields], np.int64)
    rows = _rows_of(fields)
    return np.repeat(ended, _ack_sizes(fields)), np.repeat(
        rows["age_ms"].astype(np.int64), blocks.counts_of(rows["mask"])
    )


def _ack_keys(entries: list[Flat]) -> list[_Key]:
    return [(fields[_ACK_SPOUT_ID], None, None, None) for fields in entries]


def _fail_keys(entries: list[Flat]) -> list[_Key]:
    return [(f[_SPOUT_ID], f[_REASON], f[_COMPONENT], f[_DETAIL] if len(f) > _DETAIL else None) for f in entries]


def _ack_roots(entries: Iterable[Flat]) -> Int64Array:
    rows = _rows_of(entries)
    return blocks.roots_of(rows["number"].astype(np.uint64), rows["mask"].astype(np.uint32)).view(np.int64)


def _ack_sizes(entries: list[Flat]) -> list[int]:
    if not entries:
        return []
    rows = [len(fields[_ACK_BLOCKS]) // _ROW.itemsize for fields in entries]
    counts = blocks.counts_of(_rows_of(entries)["mask"])
    return [int(size) for size in np.add.reduceat(counts, np.cumsum([0, *rows[:-1]]))]


def _rows_of(entries: Iterable[Flat]) -> npt.NDArray[np.void]:
    return np.frombuffer(b"".join([fields[_ACK_BLOCKS] for fields in entries]), _ROW)


def _fail_roots(entries: Iterable[Flat]) -> Int64Array:
    digits = b"".join([fields[_ROOT] for fields in entries])
    return np.frombuffer(bytes.fromhex(digits.decode()), ">i8").astype(np.int64)


def _reason(reason: bytes | None) -> Literal["failed", "timeout"] | None:
    if reason is None:
        return None
    return "timeout" if reason == b"timeout" else "failed"


def _text(text: bytes | None) -> str | None:
    return text.decode() if text else None
