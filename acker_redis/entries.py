"""Reading entries of the outcome streams: from a driver's reply to outcomes (written by lua/lib/outcomes.lua)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from acker_redis import ids
from acker_redis.model import Outcome, PackedOutcomes, Receipt

Fields: TypeAlias = dict[bytes, bytes]
StageName: TypeAlias = Callable[[int], str | None]

_ROW = np.dtype([("root", ">i8"), ("age_ms", ">u4"), ("stage", "u1")])


@dataclass(frozen=True)
class Entry:
    """One entry as it came, not taken apart yet."""

    kind: Literal["ack", "fail"]
    shard: int
    stream: str
    entry_id: bytes
    fields: Fields
    redelivered: bool

    def __len__(self) -> int:
        """How many outcomes it holds."""
        return len(self.fields[b"roots"]) // _ROW.itemsize if self.kind == "ack" else 1

    def packed(self) -> PackedOutcomes:
        """All its outcomes at once."""
        task, receipt = int(self.fields[b"task"]), Receipt(self.shard, self.stream, self.entry_id)
        if self.kind == "ack":
            roots = np.frombuffer(self.fields[b"roots"], _ROW)["root"].astype(np.int64)
            return PackedOutcomes("ack", task, roots, None, None, self.redelivered, None, receipt)
        reason: Literal["failed", "timeout"] = "timeout" if self.fields[b"reason"] == b"timeout" else "failed"
        stage, detail = self.fields[b"last_stage"].decode() or None, self.fields.get(b"detail")
        root = np.array([ids.to_int64(int(self.fields[b"root"], 16))], np.int64)
        text = None if detail is None else detail.decode()
        return PackedOutcomes("fail", task, root, reason, stage, self.redelivered, text, receipt)

    def outcomes(self, stage_name: StageName) -> Iterator[Outcome]:
        """Its outcomes one by one."""
        packed = self.packed()
        receipt, task, redelivered = packed.receipt, packed.task, self.redelivered
        receipt.unconfirmed.update(packed.roots.tolist())
        if packed.kind == "fail":
            age_ms = int(self.fields[b"age_ms"])
            yield Outcome(
                "fail", int(packed.roots[0]), task, packed.reason, age_ms, packed.last_stage, redelivered, packed.detail,
                receipt,
            )  # fmt: skip
            return
        for root, age_ms, number in np.frombuffer(self.fields[b"roots"], _ROW).tolist():
            yield Outcome("ack", root, task, None, age_ms, stage_name(number), redelivered, None, receipt)


def read_reply(reply: Any) -> list[tuple[str, bytes, Fields | None]]:
    """(stream, entry id, fields) of an XREADGROUP reply, which is a list of pairs or (RESP3) a mapping."""
    if not reply:
        return []
    by_stream = reply.items() if isinstance(reply, dict) else reply
    entries: list[tuple[str, bytes, Fields | None]] = []
    for name, rows in by_stream:
        if rows and isinstance(rows[0], list):  # some drivers wrap the rows once more
            rows = rows[0]
        entries.extend((name.decode(), entry_id, as_dict(fields)) for entry_id, fields in rows)
    return entries


def claimed_entries(reply: Any) -> list[tuple[bytes, Fields | None]]:
    """(entry id, fields) of an XAUTOCLAIM reply; fields are None where Redis 6.2 hands out a trimmed entry."""
    rows = reply[1] if len(reply) > 1 else []
    return [(row[0], as_dict(row[1]) or None) for row in rows if row and row[0]]


def as_dict(pairs: Any) -> Fields:
    """Field-value pairs of an entry or a hash, as a driver gives them: a mapping, a flat list, or nothing."""
    if not pairs:
        return {}
    if isinstance(pairs, dict):
        return pairs
    return dict(zip(pairs[::2], pairs[1::2], strict=True))
