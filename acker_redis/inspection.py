"""Reading what the ledgers hold, without changing it.

Plain commands that read, no scripts: people on call have to look exactly when a server takes no writes, or with a user who
may only read.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from acker_redis import ids
from acker_redis.entries import Fields, as_dict
from acker_redis.errors import DamagedDataError
from acker_redis.ids import UInt64Array
from acker_redis.ledger import ROOTS_PER_CALL
from acker_redis.model import RootRecord, State, Stats
from acker_redis.scripts import Command
from acker_redis.shards import Cut, Shards

_RECORD = np.dtype(
    [
        ("val", ">i8"), ("stage", "u1"), ("flags", "u1"), ("stamp", ">u2"), ("task", ">u4"),
        ("start_high", ">u2"), ("start_low", ">u4"),
    ]
)  # fmt: skip
_Records: TypeAlias = npt.NDArray[np.void]

_STATES: tuple[State, ...] = ("waiting", "owned", "failed", "closed")
"""By the flags of lua/lib/record.lua."""

_WITH_OWNER = ("owned", "closed")
_COUNTERS = (
    "inits", "acks", "fails", "acked", "failed", "timed_out", "orphaned", "closed", "duplicate_inits", "fenced",
    "late_updates",
)  # fmt: skip

_CALLS_AT_ONCE = 32
"""Calls of one round trip: 16 000 roots, of which the server holds each call's for some 0.3 ms."""

_COHORTS_PER_STEP = 4
_MAX_OLDEST_STEPS = 200
_SHARDS_AT_ONCE = 32
"""Shards that are looked into together for their oldest root: 2 MB of records at most."""


class Inspection:
    """Read-only views of one app."""

    def __init__(self, shards: Shards) -> None:
        """Work on opened shards."""
        self._shards = shards

    def stats(self, *, oldest: bool = True, lane: int | None = None) -> Stats:
        """Counters over all shards; see `Stats`. `oldest=False` leaves `oldest_age_ms` None and costs two round trips.

        With `lane`, `waiting` counts this lane's entries only.

        Raises:
            LedgerLostError: a shard lost its data since this client opened it.
            DamagedDataError: a key holds what is not ours.
        """
        shards = self._shards
        of_lanes = slice(None) if lane is None else slice(lane, lane + 1)
        replies = shards.client.pipeline(
            [
                command
                for k in shards.keys
                for command in (
                    ("HGETALL", k.stats),
                    ("HLEN", k.ledger),
                    *(("XLEN", stream) for stream in (*k.acked[of_lanes], *k.failed[of_lanes])),
                    # Last, so that what was read before it is of this generation.
                    ("HMGET", k.meta, "generation", "last_rotation_ms", "tick"),
                )
            ]
        )
        per_shard = 3 + 2 * (shards.config.lanes if lane is None else 1)
        parts = [replies[at : at + per_shard] for at in range(0, len(replies), per_shard)]
        shards.check_generations([meta[0] for *_, meta in parts])
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
        order, cuts = self._shards.cut(roots, ROOTS_PER_CALL)
        ordered = roots[order]
        found: list[RootRecord | None] = []
        for at in range(0, len(cuts), _CALLS_AT_ONCE):
            found += self._inspect(cuts[at : at + _CALLS_AT_ONCE], ordered)
        place_of = np.argsort(order).tolist()
        return [found[place] for place in place_of]

    def _inspect(self, cuts: Sequence[Cut], ordered: UInt64Array) -> list[RootRecord | None]:
        """The records of some calls' worth of roots, in one round trip, and one for the time."""
        shards = self._shards
        among = sorted({cut.shard for cut in cuts})
        replies = shards.client.pipeline(
            [
                *(_read(shards.keys[cut.shard].ledger, ids.pack(ordered[cut.start : cut.stop])) for cut in cuts),
                # Last, so that what was read before it is of this generation.
                *(("HGETALL", shards.keys[shard].meta) for shard in among),
            ]
        )
        metas = {shard: as_dict(pairs) for shard, pairs in zip(among, replies[len(cuts) :], strict=True)}
        for shard, meta in metas.items():
            shards.check_generations([meta.get(b"generation")], first=shard)
        now = dict(zip(among, shards.client.clocks_ms([shards.keys[shard].meta for shard in among]), strict=True))
        found: list[RootRecord | None] = []
        for cut, values in zip(cuts, replies, strict=False):
            signed = ordered[cut.start : cut.stop].view(np.int64).tolist()
            there = [place for place, value in enumerate(values) if value is not None]
            records = _unpack(shards.keys[cut.shard].ledger, [values[place] for place in there])
            seen = self._seen([signed[place] for place in there], records, cut.shard, metas[cut.shard], now[cut.shard])
            part: list[RootRecord | None] = [None] * len(values)
            for place, record in zip(there, seen, strict=True):
                part[place] = record
            found += part
        return found

    def _seen(self, roots: list[int], records: _Records, shard: int, meta: Fields, now_ms: int) -> Iterator[RootRecord]:
        num_buckets, tick = self._shards.config.num_buckets, _number(self._shards.keys[shard].meta, meta.get(b"tick"))
        names = {number: meta.get(b"stage:%d" % number) for number in np.unique(records["stage"]).tolist()}
        stages = {number: name and name.decode(errors="replace") for number, name in names.items()}
        states = [_STATES[flags] for flags in records["flags"].tolist()]
        owners = zip(records["task"].tolist(), states, strict=True)
        columns = zip(
            roots,
            records["val"].tolist(),
            [task if state in _WITH_OWNER else None for task, state in owners],
            states,
            np.maximum(now_ms - _starts(records), 0).tolist(),
            [stages[number] for number in records["stage"].tolist()],
            np.maximum(num_buckets - (tick - records["stamp"].astype(np.int64)) % 65536, 0).tolist(),
            strict=True,
        )
        return map(RootRecord._make, columns)

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
            reads = [_read(shards.keys[shard].ledger, cohort) for shard, cohort in asked]
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
        records = _unpack(self._shards.keys[shard].ledger, [value for value in values if value is not None])
        owned = records[(records["flags"] == _STATES.index("owned")) & (records["stamp"] == tick % 65536)]
        return int(_starts(owned).min()) if len(owned) else None


def _unpack(key: str, values: list[bytes]) -> _Records:
    wrong = {len(value) for value in values} - {_RECORD.itemsize}
    if wrong:
        raise DamagedDataError(f"{key}: a record has {wrong.pop()} bytes instead of {_RECORD.itemsize}")
    records = np.frombuffer(b"".join(values), _RECORD)
    if (records["flags"] >= len(_STATES)).any():
        raise DamagedDataError(f"{key}: a record has flags {records['flags'].max()}, which this version does not know")
    return records


def _starts(records: _Records) -> npt.NDArray[np.int64]:
    return records["start_high"].astype(np.int64) << 32 | records["start_low"].astype(np.int64)


def _read(key: str, packed: bytes) -> Command:
    """Read the records of packed roots."""
    return ("HMGET", key, *(packed[at : at + 8] for at in range(0, len(packed), 8)))


def _number(key: str, value: bytes | None) -> int:
    try:
        return int(value or b"")
    except ValueError as exc:
        raise DamagedDataError(f"{key}: {value!r} stands there instead of a number") from exc


def _age_ms(then_ms: int, now_ms: int) -> int:
    """Never negative: the server's clock may be set back, or a replica with another clock take over."""
    return max(0, now_ms - then_ms)
