"""Reading entries of the outcome streams: from a driver's reply to outcomes (written by lua/lib/outcomes.lua).

Fields are read by their place, which is the order in which the script writes them: a dict per entry costs more than all
the rest.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from acker_redis.model import blocks, ids
from acker_redis.model.types import Outcome, PackedOutcomes, Receipt

Fields: TypeAlias = dict[bytes, bytes]
Flat: TypeAlias = list[bytes]
"""Names and values of an entry in turn, as they came; none where the entry was trimmed."""

StageName: TypeAlias = Callable[[int], str | None]

_ROW = np.dtype([("block", ">u8"), ("mask", ">u4"), ("age_ms", ">u4"), ("stage", "u1")])
_ACK_TASK, _ACK_BLOCKS = 1, 3
_ROOT, _TASK, _REASON, _AGE, _STAGE, _DETAIL = 1, 3, 5, 7, 9, 11

_Key: TypeAlias = tuple[bytes, bytes | None, bytes | None, bytes | None]
"""Task, reason, last stage and detail: what outcomes of one pack have in common."""


@dataclass
class Entries:
    """Entries of one stream that were read together, as they came: not taken apart yet."""

    kind: Literal["ack", "fail"]
    stream: str
    entry_ids: list[bytes]
    fields: list[Flat]
    redelivered: bool
    _sizes: list[int] | None = None

    def sizes(self) -> list[int]:
        """How many outcomes each holds; worked out once."""
        if self._sizes is None:
            self._sizes = _ack_sizes(self.fields) if self.kind == "ack" else [1] * len(self.fields)
        return self._sizes

    def take(self, outcomes: int) -> "Entries":
        """Take off the first ones, as few as hold so many outcomes or all."""
        sizes = self.sizes()
        count = 1 + bisect_left(list(accumulate(sizes)), outcomes) if self.kind == "ack" else outcomes
        taken = Entries(
            self.kind, self.stream, self.entry_ids[:count], self.fields[:count], self.redelivered, sizes[:count]
        )
        self.entry_ids, self.fields, self._sizes = self.entry_ids[count:], self.fields[count:], sizes[count:]
        return taken

    def packed(self) -> Iterator[PackedOutcomes]:
        """All outcomes, those that are alike together."""
        roots_of = _ack_roots if self.kind == "ack" else _fail_roots
        for (task, reason, stage, detail), entry_ids, fields in self._alike():
            yield PackedOutcomes(
                self.kind, int(task), roots_of(fields), _reason(reason), _text(stage), self.redelivered, _text(detail),
                Receipt(self.stream, entry_ids, fields),
            )  # fmt: skip

    def _alike(self) -> Iterator[tuple[_Key, list[bytes], list[Flat]]]:
        """Ids and fields of entries that have their key in common."""
        keys = _ack_keys(self.fields) if self.kind == "ack" else _fail_keys(self.fields)
        distinct = set(keys)
        if len(distinct) == 1:  # all of them, most often: nothing is sorted out
            yield keys[0], self.entry_ids, self.fields
            return
        rows: dict[_Key, list[int]] = {key: [] for key in keys}  # in the order of the entries
        for row, key in enumerate(keys):
            rows[key].append(row)
        for key, chosen in rows.items():
            yield key, [self.entry_ids[row] for row in chosen], [self.fields[row] for row in chosen]

    def outcomes(self, stage_name: StageName) -> Iterator[Outcome]:
        """All outcomes one by one; those of an entry share a receipt."""
        for entry_id, fields in zip(self.entry_ids, self.fields, strict=True):
            receipt = Receipt(self.stream, [entry_id])
            if self.kind == "fail":
                ((owner, reason, stage, detail),) = _fail_keys([fields])
                root, age_ms = ids.to_int64(int(fields[_ROOT], 16)), int(fields[_AGE])
                receipt.unconfirmed.add(root)
                yield Outcome(
                    "fail", root, int(owner), _reason(reason), age_ms, _text(stage), self.redelivered, _text(detail),
                    receipt,
                )  # fmt: skip
                continue
            task, rows = int(fields[_ACK_TASK]), _rows_of([fields])
            roots = _ack_roots([fields]).tolist()
            receipt.unconfirmed.update(roots)
            times = blocks.counts_of(rows["mask"])
            ages, numbers = (np.repeat(rows[name], times).tolist() for name in ("age_ms", "stage"))
            for root, age_ms, number in zip(roots, ages, numbers, strict=True):
                yield Outcome("ack", root, task, None, age_ms, stage_name(number), self.redelivered, None, receipt)


def times_of(packed: PackedOutcomes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """When each root of a pack got its outcome, in ms since 1970 by the server's clock, and how old it was then, in ms."""
    entry_ids, fields = packed.receipt.entry_ids, packed.receipt.fields
    ended = np.array([int(entry_id.partition(b"-")[0]) for entry_id in entry_ids], np.int64)
    if packed.kind == "fail":
        return ended, np.array([int(one[_AGE]) for one in fields], np.int64)
    rows = _rows_of(fields)
    return np.repeat(ended, _ack_sizes(fields)), np.repeat(
        rows["age_ms"].astype(np.int64), blocks.counts_of(rows["mask"])
    )


def read_reply(reply: Any) -> list[tuple[str, bytes, Fields]]:
    """(stream, entry id, fields) of an XREADGROUP reply; no fields where the entry was trimmed."""
    return [
        (name, entry_id, as_dict(fields))
        for name, entry_ids, rows in read_flat(reply)
        for entry_id, fields in zip(entry_ids, rows, strict=True)
    ]


def read_flat(reply: Any) -> Iterator[tuple[str, list[bytes], list[Flat]]]:
    """(stream, entry ids, fields) of an XREADGROUP reply, which is a list of pairs or (RESP3) a mapping."""
    if not reply:
        return
    for name, rows in reply.items() if isinstance(reply, dict) else reply:
        if rows and isinstance(rows[0], list) and not (rows[0] and isinstance(rows[0][0], bytes)):
            rows = rows[0]  # some drivers wrap the rows once more
        yield (
            name.decode(),
            [row[0] for row in rows],
            [row[1] if type(row[1]) is list else _flat(row[1]) for row in rows],
        )


def claimed_entries(reply: Any) -> tuple[list[bytes], list[Flat]]:
    """(entry ids, fields) of an XAUTOCLAIM reply, without the nothings that Redis 6.2 hands out for trimmed entries."""
    rows = [row for row in reply[1] if row and row[0]] if len(reply) > 1 else []
    return [row[0] for row in rows], [row[1] if type(row[1]) is list else _flat(row[1]) for row in rows]


def as_dict(pairs: Any) -> Fields:
    """Field-value pairs of an entry or a hash, as a driver gives them: a mapping, a flat list, or nothing."""
    if not pairs:
        return {}
    if isinstance(pairs, dict):
        return pairs
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def _flat(pairs: Any) -> Flat:
    return list(chain.from_iterable(pairs.items())) if isinstance(pairs, dict) else pairs or []


def _ack_keys(entries: list[Flat]) -> list[_Key]:
    return [(fields[_ACK_TASK], None, None, None) for fields in entries]


def _fail_keys(entries: list[Flat]) -> list[_Key]:
    return [(f[_TASK], f[_REASON], f[_STAGE], f[_DETAIL] if len(f) > _DETAIL else None) for f in entries]


def _ack_roots(entries: Iterable[Flat]) -> npt.NDArray[np.int64]:
    rows = _rows_of(entries)
    return blocks.roots_of(rows["block"].astype(np.uint64), rows["mask"].astype(np.uint32)).view(np.int64)


def _ack_sizes(entries: list[Flat]) -> list[int]:
    if not entries:
        return []
    rows = [len(fields[_ACK_BLOCKS]) // _ROW.itemsize for fields in entries]
    counts = blocks.counts_of(_rows_of(entries)["mask"])
    return [int(size) for size in np.add.reduceat(counts, np.cumsum([0, *rows[:-1]]))]


def _rows_of(entries: Iterable[Flat]) -> npt.NDArray[np.void]:
    return np.frombuffer(b"".join([fields[_ACK_BLOCKS] for fields in entries]), _ROW)


def _fail_roots(entries: Iterable[Flat]) -> npt.NDArray[np.int64]:
    digits = b"".join([fields[_ROOT] for fields in entries])
    return np.frombuffer(bytes.fromhex(digits.decode()), ">i8").astype(np.int64)


def _reason(reason: bytes | None) -> Literal["failed", "timeout"] | None:
    if reason is None:
        return None
    return "timeout" if reason == b"timeout" else "failed"


def _text(text: bytes | None) -> str | None:
    return text.decode() if text else None
