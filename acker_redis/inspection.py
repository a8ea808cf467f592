"""Reading what the ledgers hold, without changing it.

Plain commands that read, no scripts: people on call have to look exactly when a server takes no writes, or with a user who
may only read.
"""

import struct
from collections.abc import Iterator

import numpy as np

from acker_redis import ids
from acker_redis.entries import Fields, as_dict
from acker_redis.errors import DamagedDataError
from acker_redis.ids import UInt64Array
from acker_redis.ledger import ROOTS_PER_CALL, Shards, lost_shards
from acker_redis.model import RootRecord, State, Stats

_RECORD = struct.Struct(">qBBH4s6s")
_STATES: tuple[State, ...] = ("waiting", "owned", "failed", "closed")
"""By the flags of lua/lib/record.lua."""

_WITH_OWNER = ("owned", "closed")
_COUNTERS = (
    "inits", "acks", "fails", "acked", "failed", "timed_out", "orphaned", "closed", "duplicate_inits", "fenced",
    "late_updates",
)  # fmt: skip

_COHORTS_PER_STEP = 4
_MAX_OLDEST_STEPS = 200
_SHARDS_AT_ONCE = 32
"""Shards that are looked into together for their oldest root: 2 MB of records at most."""


class Inspection:
    """Read-only views of one app."""

    def __init__(self, shards: Shards) -> None:
        """Work on opened shards."""
        self._shards = shards

    def stats(self, *, oldest: bool = True) -> Stats:
        """Counters over all shards; see `Stats`. `oldest=False` leaves `oldest_age_ms` None and costs two round trips.

        Raises:
            LedgerLostError: a shard lost its data since this client opened it.
            DamagedDataError: a key holds what is not ours.
        """
        shards = self._shards
        replies = shards.client.pipeline(
            [
                command
                for k in shards.keys
                for command in (
                    ("HGETALL", k.stats),
                    ("HLEN", k.ledger),
                    *(("XLEN", stream) for stream in (*k.acked, *k.failed)),
                    # Last, so that what was read before it is of this generation.
                    ("HMGET", k.meta, "generation", "last_rotation_ms", "tick"),
                )
            ]
        )
        per_shard = 3 + 2 * shards.config.lanes
        parts = [replies[at : at + per_shard] for at in range(0, len(replies), per_shard)]
        self._check_generations([meta[0] for *_, meta in parts])
        rotated = [_number(k.meta, meta[1]) for k, (*_, meta) in zip(shards.keys, parts, strict=True)]
        now = shards.client.clocks_ms([k.meta for k in shards.keys])
        total = dict.fromkeys(_COUNTERS, 0)
        for k, (counters, *_) in zip(shards.keys, parts, strict=True):
            fields = as_dict(counters)
            for name in _COUNTERS:
                total[name] += _number(k.stats, fields.get(name.encode(), b"0"))
        records = sum(length for _, length, *_ in parts)
        pending = total["inits"] - total["acked"] - total["failed"] - total["timed_out"]
        ticks = [_number(k.meta, meta[2]) for k, (*_, meta) in zip(shards.keys, parts, strict=True)]
        return Stats(
            pending=pending,
            unowned=max(0, records - pending - total["closed"]),
            oldest_age_ms=self._oldest_age_ms(ticks, now) if oldest and pending else None,
            waiting=sum(sum(streams) for _, _, *streams, _ in parts),
            last_rotation_ms=max(_age_ms(then, at) for then, at in zip(rotated, now, strict=True)),
            tick_ms=shards.config.tick_ms,
            **total,
        )

    def inspect(self, roots: UInt64Array) -> list[RootRecord | None]:
        """The record of each root, None for a root the ledger does not hold.

        Raises:
            LedgerLostError, DamagedDataError: as `stats`.
        """
        shards = self._shards
        found: list[RootRecord | None] = [None] * len(roots)
        for shard, rows in shards.split(ROOTS_PER_CALL, roots):
            k, part = shards.keys[shard], roots[rows]
            values, pairs = shards.client.pipeline(
                [("HMGET", k.ledger, *_members(ids.pack(part))), ("HGETALL", k.meta)]
            )
            meta = as_dict(pairs)
            self._check_generations([meta.get(b"generation")], first=shard)
            (now_ms,) = shards.client.clocks_ms([k.meta])
            tick, num_buckets = _number(k.meta, meta.get(b"tick")), shards.config.num_buckets
            for row, root, value in zip(rows.tolist(), part.view(np.int64).tolist(), values, strict=True):
                if value is not None:
                    record = _unpack(k.ledger, value)
                    found[row] = record.as_seen(root, meta, now_ms, max(0, num_buckets - (tick - record.stamp) % 65536))
        return found

    def _check_generations(self, found: list[bytes | None], first: int = 0) -> None:
        shards = self._shards
        lost = [shard for shard, one in enumerate(found, first) if one != shards.generations[shard]]
        if lost:
            raise lost_shards(shards.client.address, shards.config, lost)

    def _oldest_age_ms(self, ticks: list[int], now: list[int]) -> int | None:
        """Age of a pending root among those longest without being put, over shards whose ring stands at these ticks."""
        starts: list[int | None] = []
        for at in range(0, len(ticks), _SHARDS_AT_ONCE):
            starts += self._oldest_starts(range(at, min(at + _SHARDS_AT_ONCE, len(ticks))), ticks)
        ages = (_age_ms(start, at) for start, at in zip(starts, now, strict=True) if start is not None)
        return max(ages, default=None)

    def _oldest_starts(self, among: range, ticks: list[int]) -> list[int | None]:
        """Walk from death row towards the nursery until a pending root shows, a bounded number of steps per shard."""
        shards = self._shards
        starts: dict[int, int] = {}
        at = {shard: (max(0, ticks[shard] - shards.config.num_buckets), 0) for shard in among}
        for _ in range(_MAX_OLDEST_STEPS):
            if not at:
                break
            order = list(at.items())
            rows = shards.client.pipeline(
                [
                    ("ZRANGE", self._bucket(shard, tick), offset, offset + _COHORTS_PER_STEP - 1)
                    for shard, (tick, offset) in order
                ]
            )
            asked = [(shard, cohort) for (shard, _), cohorts in zip(order, rows, strict=True) for cohort in cohorts]
            reads = [("HMGET", shards.keys[shard].ledger, *_members(cohort)) for shard, cohort in asked]
            records = iter(shards.client.pipeline(reads) if reads else [])
            for (shard, (tick, offset)), cohorts in zip(order, rows, strict=True):
                of_cohorts = [self._oldest(shard, tick, next(records)) for _ in cohorts]
                found = [start for start in of_cohorts if start is not None]
                del at[shard]
                if found:
                    starts[shard] = found[0]
                elif len(cohorts) == _COHORTS_PER_STEP:
                    at[shard] = (tick, offset + _COHORTS_PER_STEP)
                elif tick < ticks[shard]:
                    at[shard] = (tick + 1, 0)
        return [starts.get(shard) for shard in among]

    def _bucket(self, shard: int, tick: int) -> str:
        return self._shards.keys[shard].bucket[tick % (self._shards.config.num_buckets + 1)]

    def _oldest(self, shard: int, tick: int, values: list[bytes | None]) -> int | None:
        """Start of the oldest owned root of a cohort that was not put again since."""
        records = (_unpack(self._shards.keys[shard].ledger, value) for value in values if value is not None)
        return min(
            (one.start for one in records if _STATES[one.flags] == "owned" and one.stamp == tick % 65536), default=None
        )


class _Record:
    """A ledger's record, unpacked."""

    def __init__(self, value: bytes) -> None:
        self.val, self.stage, self.flags, self.stamp, task, start = _RECORD.unpack(value)
        self.task, self.start = int.from_bytes(task, "big"), int.from_bytes(start, "big")

    def as_seen(self, root: int, meta: Fields, now_ms: int, ticks_left: int) -> RootRecord:
        name = meta.get(b"stage:%d" % self.stage) if self.stage else None
        return RootRecord(
            root=root,
            val=self.val,
            task=self.task if _STATES[self.flags] in _WITH_OWNER else None,
            state=_STATES[self.flags],
            age_ms=_age_ms(self.start, now_ms),
            last_stage=None if name is None else name.decode(errors="replace"),
            ticks_left=ticks_left,
        )


def _unpack(key: str, value: bytes) -> _Record:
    try:
        record = _Record(value)
    except struct.error as exc:
        raise DamagedDataError(f"{key}: a record has {len(value)} bytes instead of {_RECORD.size}") from exc
    if record.flags >= len(_STATES):
        raise DamagedDataError(f"{key}: a record has flags {record.flags}, which this version does not know")
    return record


def _members(packed: bytes) -> Iterator[bytes]:
    return (packed[at : at + 8] for at in range(0, len(packed), 8))


def _number(key: str, value: bytes | None) -> int:
    try:
        return int(value or b"")
    except ValueError as exc:
        raise DamagedDataError(f"{key}: {value!r} stands there instead of a number") from exc


def _age_ms(then_ms: int, now_ms: int) -> int:
    """Never negative: the server's clock may be set back, or a replica with another clock take over."""
    return max(0, now_ms - then_ms)
