"""Read-only views of the ledgers.

They use plain read commands and no scripts. People on call must be able to inspect an app when its server refuses writes, or
as a user who may only read.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from acker_redis.client import server_info
from acker_redis.client.replies import Fields, as_dict
from acker_redis.client.scripts import Command
from acker_redis.errors import DamagedDataError
from acker_redis.ledger.shards import Shards
from acker_redis.model import ids
from acker_redis.model.arrays import Int64Array, UInt64Array
from acker_redis.model.blocks import ROOTS_PER_CALL, Blocks, Cut
from acker_redis.model.types import LedgerRoot, State, Stats

_ALONE = np.dtype(
    [
        ("val", ">i8"), ("component", "u1"), ("flags", "u1"), ("stamp", ">u2"), ("spout_id", ">u4"),
        ("start_high", ">u2"), ("start_low", ">u4"),
    ]
)  # fmt: skip
_HEAD = struct.Struct(">HIHI3I")
_SLOT_BYTES = 9
_BLOCK_BYTES = 8
_LAST_FLAGS = 3 + 4 * (ids.SLOTS - 1)

_STATES: tuple[State, ...] = ("waiting", "owned", "failed", "closed")
"""States by their numbers in lua/lib/block.lua."""

_WITH_OWNER = ("owned", "closed")
_COUNTERS = (
    "unowned", "inits", "acks", "fails", "acked", "failed", "timed_out", "orphaned", "closed", "duplicate_inits",
    "deduplicated", "late_updates", "released",
)  # fmt: skip

_CALLS_AT_ONCE = 32
"""Number of calls per round trip: 16 000 roots. Each call blocks the server about 0.3 ms."""

_BLOCKS_PER_SCAN = 500
"""Approximate number of blocks per scan step: 0.2 ms of the server."""

_COHORTS_PER_STEP = 4
_MAX_OLDEST_STEPS = 200
_SHARDS_AT_ONCE = 32
"""Number of shards searched together for their oldest root: at most 2 MB of blocks."""

_ADVICE = "Find the program that wrote it. Then delete the key, or the app with `acker-redis delete-app`."


class Inspection:
    """Read-only views of one app."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def stats(self, *, with_oldest_age: bool = True, lane: int | None = None) -> Stats:
        """Sum the counters over all shards; see `Stats`.

        Args:
            with_oldest_age: False to leave `oldest_age_ms` None, which then takes two round trips in all.
            lane: lane whose entries `unconfirmed_outcomes` counts; None for all lanes.

        Raises:
            LedgerLostError: a shard lost its data since this client opened it.
            DamagedDataError: a key holds data that this library did not write.
        """
        shards = self._shards
        of_lanes = slice(None) if lane is None else slice(lane, lane + 1)
        replies = shards.client.pipeline(
            [
                command
                for k in shards.keys
                for command in (
                    ("HGETALL", k.stats),
                    *(("XLEN", stream) for stream in (*k.acked[of_lanes], *k.failed[of_lanes])),
                    # Last, so that what was read before it is of this generation.
                    ("HMGET", k.meta, "generation", "last_rotation_ms", "tick"),
                )
            ]
        )
        per_shard = 2 + 2 * (shards.config.lanes if lane is None else 1)
        parts = [replies[at : at + per_shard] for at in range(0, len(replies), per_shard)]
        shards.check_generations([meta[0] for *_, meta in parts])
        rotated = [_number(k.meta, meta[1]) for k, (*_, meta) in zip(shards.keys, parts, strict=True)]
        now = shards.client.ask(server_info.clocks_ms, [k.meta for k in shards.keys])
        total = dict.fromkeys(_COUNTERS, 0)
        for k, (counters, *_) in zip(shards.keys, parts, strict=True):
            fields = as_dict(counters)
            for name in _COUNTERS:
                total[name] += _number(k.stats, fields.get(name.encode(), b"0"))
        pending = total["inits"] - total["acked"] - total["failed"] - total["timed_out"]
        ticks = [_number(k.meta, meta[2]) for k, (*_, meta) in zip(shards.keys, parts, strict=True)]
        return Stats(
            pending=pending,
            oldest_age_ms=self._oldest_age_ms(ticks, now) if with_oldest_age and pending else None,
            unconfirmed_outcomes=sum(sum(streams) for _, *streams, _ in parts),
            last_rotation_ms=max(_age_ms(then, at) for then, at in zip(rotated, now, strict=True)),
            tick_ms=shards.config.tick_ms,
            **total,
        )

    def pending(self) -> int:
        """Count the roots without outcome, in one round trip. Shards that lost their data count 0."""
        shards = self._shards
        names = ("inits", "acked", "failed", "timed_out")
        replies = shards.client.pipeline([("HMGET", k.stats, *names) for k in shards.keys])
        counted = [
            [_number(k.stats, value or b"0") for value in reply] for k, reply in zip(shards.keys, replies, strict=True)
        ]
        return sum(inits - acked - failed - timed_out for inits, acked, failed, timed_out in counted)

    def each_pending(self) -> Iterator[tuple[int, Int64Array, Int64Array]]:
        """Iterate over all ledgers in steps. Each step yields a number of blocks, their pending roots and spout_ids.

        A root that is pending during the whole iteration is yielded at least once. A root that is initialised or settles
        meanwhile may or may not be yielded.

        Raises:
            DamagedDataError: a block is damaged.
        """
        shards = self._shards
        for at in range(0, len(shards.keys), _SHARDS_AT_ONCE):
            cursors = {k.ledger: 0 for k in shards.keys[at : at + _SHARDS_AT_ONCE]}
            while cursors:
                steps = shards.client.pipeline(
                    [("HSCAN", ledger, cursor, "COUNT", _BLOCKS_PER_SCAN) for ledger, cursor in cursors.items()]
                )
                for ledger, (cursor, fields) in zip(list(cursors), steps, strict=True):
                    slots = _unpacked(ledger, _numbers(ledger, list(fields)), list(fields.values()))
                    owned = slots.states == _STATES.index("owned")
                    yield len(fields), slots.roots[owned].view(np.int64), slots.spout_ids[owned]
                    cursors[ledger] = int(cursor)
                cursors = {ledger: cursor for ledger, cursor in cursors.items() if cursor}

    def blocks(self) -> int:
        """Count the blocks in all ledgers. Each packs 1 to 32 roots."""
        return sum(self._shards.client.pipeline([("HLEN", k.ledger) for k in self._shards.keys]))

    def inspect(self, roots: UInt64Array) -> list[LedgerRoot | None]:
        """Look up each root. None replaces a root that the ledger does not hold.

        Raises:
            LedgerLostError, DamagedDataError: as `stats`.
        """
        batch = Blocks.from_roots(roots)
        batch, cuts = self._shards.cut(batch, np.ones(len(batch.numbers), np.int64), ROOTS_PER_CALL)
        held: dict[int, LedgerRoot] = {}
        for at in range(0, len(cuts), _CALLS_AT_ONCE):
            held.update((root.root, root) for root in self._inspect(cuts[at : at + _CALLS_AT_ONCE], batch))
        return [held.get(root) for root in roots.view(np.int64).tolist()]

    def are_pending(self, roots: UInt64Array) -> npt.NDArray[np.bool_]:
        """Return for each root whether it has its owner and no outcome yet.

        Raises:
            LedgerLostError, DamagedDataError: as `stats`.
        """
        shards = self._shards
        batch = Blocks.from_roots(roots)
        batch, cuts = shards.cut(batch, np.ones(len(batch.numbers), np.int64), ROOTS_PER_CALL)
        packed = batch.numbers.astype(">u8").tobytes()
        pending = [np.array([], np.uint64)]
        for at in range(0, len(cuts), _CALLS_AT_ONCE):
            part = cuts[at : at + _CALLS_AT_ONCE]
            among = sorted({cut.shard for cut in part})
            replies = shards.client.pipeline(
                [
                    *(_read(shards.keys[cut.shard].ledger, packed[8 * cut.start : 8 * cut.stop]) for cut in part),
                    # Last, so that what was read before it is of this generation.
                    *(("HGET", shards.keys[shard].meta, "generation") for shard in among),
                ]
            )
            for shard, generation in zip(among, replies[len(part) :], strict=True):
                shards.check_generations([generation], first=shard)
            for cut, blocks in zip(part, replies, strict=False):
                slots = _unpacked(shards.keys[cut.shard].ledger, batch.numbers[cut.start : cut.stop], blocks)
                pending.append(slots.roots[slots.states == _STATES.index("owned")])
        return np.isin(roots, np.concatenate(pending))

    def _inspect(self, cuts: Sequence[Cut], batch: Blocks) -> Iterator[LedgerRoot]:
        """Read the roots of these cuts in one round trip, and the clocks in another."""
        shards = self._shards
        among = sorted({cut.shard for cut in cuts})
        packed = batch.numbers.astype(">u8").tobytes()
        replies = shards.client.pipeline(
            [
                *(_read(shards.keys[cut.shard].ledger, packed[8 * cut.start : 8 * cut.stop]) for cut in cuts),
                # Last, so that what was read before it is of this generation.
                *(("HGETALL", shards.keys[shard].meta) for shard in among),
            ]
        )
        metas = {shard: as_dict(pairs) for shard, pairs in zip(among, replies[len(cuts) :], strict=True)}
        for shard, meta in metas.items():
            shards.check_generations([meta.get(b"generation")], first=shard)
        clocks = shards.client.ask(server_info.clocks_ms, [shards.keys[shard].meta for shard in among])
        now = dict(zip(among, clocks, strict=True))
        for cut, blocks in zip(cuts, replies, strict=False):
            slots = _unpacked(shards.keys[cut.shard].ledger, batch.numbers[cut.start : cut.stop], blocks)
            yield from self._ledger_roots(slots, cut.shard, metas[cut.shard], now[cut.shard])

    def _ledger_roots(self, slots: "_Slots", shard: int, meta: Fields, now_ms: int) -> Iterator[LedgerRoot]:
        num_buckets, tick = self._shards.config.num_buckets, _number(self._shards.keys[shard].meta, meta.get(b"tick"))
        names = {number: meta.get(b"component:%d" % number) for number in np.unique(slots.components).tolist()}
        components = {number: name and name.decode(errors="replace") for number, name in names.items()}
        states = [_STATES[state] for state in slots.states.tolist()]
        owners = zip(slots.spout_ids.tolist(), states, strict=True)
        columns = zip(
            slots.roots.view(np.int64).tolist(),
            slots.vals.tolist(),
            [spout_id if state in _WITH_OWNER else None for spout_id, state in owners],
            states,
            np.maximum(now_ms - slots.starts, 0).tolist(),
            [components[number] for number in slots.components.tolist()],
            np.maximum(num_buckets - (tick - slots.stamps) % 65536, 0).tolist(),
            strict=True,
        )
        return map(LedgerRoot._make, columns)

    def _oldest_age_ms(self, ticks: list[int], now: list[int]) -> int | None:
        """Find the age of a pending root among those that entered the nursery longest ago, given each shard's tick."""
        starts: list[int | None] = []
        for at in range(0, len(ticks), _SHARDS_AT_ONCE):
            starts += self._oldest_starts(range(at, min(at + _SHARDS_AT_ONCE, len(ticks))), ticks)
        ages = (_age_ms(start, at) for start, at in zip(starts, now, strict=True) if start is not None)
        return max(ages, default=None)

    def _oldest_starts(self, among: range, ticks: list[int]) -> list[int | None]:
        """Search from death row towards the nursery for a pending root, in a bounded number of steps per shard."""
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
            blocks = iter(shards.client.pipeline(reads) if reads else [])
            for (shard, (tick, offset)), cohorts in zip(order, rows, strict=True):
                oldest = [self._oldest(shard, tick, next(blocks)) for _ in cohorts]
                pending = [start for start in oldest if start is not None]
                del at[shard]
                if pending:
                    starts[shard] = pending[0]
                elif len(cohorts) == _COHORTS_PER_STEP:
                    at[shard] = (tick, offset + _COHORTS_PER_STEP)
                elif tick < ticks[shard]:
                    at[shard] = (tick + 1, 0)
        return [starts.get(shard) for shard in among]

    def _bucket(self, shard: int, tick: int) -> str:
        return self._shards.keys[shard].bucket[tick % (self._shards.config.num_buckets + 1)]

    def _oldest(self, shard: int, tick: int, blocks: list[bytes | None]) -> int | None:
        """Find the start of a cohort's oldest owned root whose block did not move since."""
        slots = _unpacked(self._shards.keys[shard].ledger, np.zeros(len(blocks), np.uint64), blocks)
        owned = slots.starts[(slots.states == _STATES.index("owned")) & (slots.stamps == tick % 65536)]
        return int(owned.min()) if len(owned) else None


class _Slots(NamedTuple):
    """Roots in the ledger, one row each, without settled roots of blocks that still exist."""

    roots: UInt64Array
    vals: Int64Array
    states: Int64Array
    components: Int64Array
    spout_ids: Int64Array
    starts: Int64Array
    stamps: Int64Array


def _unpacked(key: str, numbers: UInt64Array, blocks: Sequence[bytes | None]) -> _Slots:
    """Unpack blocks by their numbers. A missing block has no rows.

    Raises:
        DamagedDataError: a block is damaged.
    """
    alone = [place for place, block in enumerate(blocks) if block and len(block) == _ALONE.itemsize]
    parts = [_unpacked_alone(key, numbers[alone], [blocks[place] or b"" for place in alone])]
    for number, block in zip(numbers, blocks, strict=True):
        if block is not None and len(block) != _ALONE.itemsize:
            parts.append(_unpacked_shared(key, number, block))
    return _Slots(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _unpacked_alone(key: str, numbers: UInt64Array, blocks: Sequence[bytes]) -> _Slots:
    rows = np.frombuffer(b"".join(blocks), _ALONE)
    if (rows["flags"] > _LAST_FLAGS).any():
        raise DamagedDataError(f"{key} has a block with unknown flags ({rows['flags'].max()}). {_ADVICE}")
    states, slots = rows["flags"] % 4, rows["flags"] // 4
    starts = rows["start_high"].astype(np.int64) << 32 | rows["start_low"].astype(np.int64)
    components, spout_ids, stamps = (rows[name].astype(np.int64) for name in ("component", "spout_id", "stamp"))
    return _Slots(
        ids.mint(numbers, slots.astype(np.uint64)), rows["val"].astype(np.int64), states.astype(np.int64),
        components, spout_ids,
        starts, stamps,
    )  # fmt: skip


def _unpacked_shared(key: str, number: np.uint64, block: bytes) -> _Slots:
    slots = (len(block) - _HEAD.size) // _SLOT_BYTES
    masks = _HEAD.unpack_from(block)[4:] if slots > 0 else (0,) * 3
    if len(block) != _HEAD.size + _SLOT_BYTES * slots or (masks[0] | masks[1]).bit_count() != slots:
        raise DamagedDataError(f"{key} has a block of {len(block)} bytes with an unknown layout. {_ADVICE}")
    stamp, spout_id, start_high, start_low, *_ = _HEAD.unpack_from(block)
    numbered = np.arange(ids.SLOTS)
    unsettled, owned, failed = ((np.array(mask) >> numbered & 1).astype(bool) for mask in masks)
    present = unsettled | owned
    kept = unsettled[present]
    vals = np.frombuffer(block, ">i8", slots, _HEAD.size).astype(np.int64)
    components = np.frombuffer(block, np.uint8, slots, _HEAD.size + 8 * slots).astype(np.int64)
    states = (owned.astype(np.int64) + 2 * failed)[present]
    roots = ids.mint(np.full(slots, number), numbered[present].astype(np.uint64))
    same = (np.full(int(kept.sum()), value, np.int64) for value in (spout_id, start_high << 32 | start_low, stamp))
    return _Slots(roots[kept], vals[kept], states[kept], components[kept], *same)


def _numbers(key: str, fields: Sequence[bytes]) -> UInt64Array:
    """Unpack block numbers, which are the fields of a ledger."""
    packed = b"".join(fields)
    if any(len(name) != _BLOCK_BYTES for name in fields):
        raise DamagedDataError(f"{key} has a field that is not a block number. {_ADVICE}")
    return np.frombuffer(packed, ">u8").astype(np.uint64)


def _read(key: str, packed: bytes) -> Command:
    """Build the command that reads the blocks of packed numbers."""
    return ("HMGET", key, *(packed[at : at + 8] for at in range(0, len(packed), 8)))


def _number(key: str, value: bytes | None) -> int:
    try:
        return int(value or b"")
    except ValueError as exc:
        raise DamagedDataError(f"{key} holds {value!r} instead of a number. {_ADVICE}") from exc


def _age_ms(then_ms: int, now_ms: int) -> int:
    """Compute an age of at least 0. The server's clock may be set back, or a replica with another clock take over."""
    return max(0, now_ms - then_ms)
