"""Reading what the ledgers hold, without changing it."""

import struct

import numpy as np

from acker_redis import ids, scripts
from acker_redis.entries import Fields, as_dict
from acker_redis.errors import AckerError
from acker_redis.ids import UInt64Array
from acker_redis.ledger import ROOTS_PER_CALL, Shards
from acker_redis.model import RootRecord, Stats

_RECORD = struct.Struct(">qBBH4s6s")
_INITED, _FAILED = 1, 2
_COUNTERS = (
    "inits", "acks", "fails", "acked", "failed", "timed_out", "orphaned", "duplicate_inits", "fenced", "late_updates",
)  # fmt: skip
_MAX_OLDEST_CALLS = 200


class Inspection:
    """Read-only views of one app."""

    def __init__(self, shards: Shards) -> None:
        """Work on opened shards."""
        self._shards = shards

    def stats(self, *, oldest: bool = True) -> Stats:
        """Counters over all shards; see `Stats`. `oldest=False` leaves `oldest_age_ms` None and costs two round trips."""
        shards = self._shards
        clocks = self._run(shards.call_all("clock"))
        replies = shards.client.pipeline(
            [
                command
                for k in shards.keys
                for command in (
                    ("HGETALL", k.stats),
                    ("HLEN", k.ledger),
                    *(("XLEN", stream) for stream in (*k.acked, *k.failed)),
                )
            ]
        )
        per_shard = 2 + 2 * shards.config.lanes
        total = dict.fromkeys(_COUNTERS, 0)
        records = waiting = 0
        for shard in range(len(shards.keys)):
            counters, length, *streams = replies[shard * per_shard : (shard + 1) * per_shard]
            for name, value in as_dict(counters).items():
                total[name.decode()] += int(value)
            records += length
            waiting += sum(streams)
        pending = total["inits"] - total["acked"] - total["failed"] - total["timed_out"]
        return Stats(
            pending=pending,
            unowned=max(0, records - pending),
            oldest_age_ms=self._oldest_age_ms() if oldest and pending else None,
            waiting=waiting,
            last_rotation_ms=max(rotation_age_ms for _, rotation_age_ms in clocks),
            tick_ms=shards.config.tick_ms,
            **total,
        )

    def inspect(self, roots: UInt64Array) -> list[RootRecord | None]:
        """The record of each root, None for a root the ledger does not hold."""
        shards = self._shards
        found: list[RootRecord | None] = [None] * len(roots)
        for shard, rows in shards.split(ROOTS_PER_CALL, roots):
            shard_keys, part = shards.keys[shard], roots[rows]
            packed = ids.pack(part)
            values, pairs = shards.client.pipeline(
                [
                    ("HMGET", shard_keys.ledger, *(packed[at : at + 8] for at in range(0, len(packed), 8))),
                    ("HGETALL", shard_keys.meta),
                ]
            )
            meta = as_dict(pairs)
            ((now_ms, _),) = self._run([shards.call("clock", shard)])
            for row, root, value in zip(rows.tolist(), part.view(np.int64).tolist(), values, strict=True):
                if value is not None:
                    found[row] = _decode(root, value, meta, now_ms)
        return found

    def _oldest_age_ms(self) -> int | None:
        """Walk from death row towards the nursery until a pending root shows, a bounded number of calls per shard."""
        script = scripts.load("oldest")
        found_code, more_code = script.codes["FOUND"], script.codes["MORE"]
        ages: list[int] = []
        position = dict.fromkeys(range(len(self._shards.keys)), (self._shards.config.num_buckets, 0))
        for _ in range(_MAX_OLDEST_CALLS):
            if not position:
                break
            order = list(position)
            replies = self._run([self._shards.call("oldest", s, *position[s]) for s in order])
            for shard, (status, age_ms, offset) in zip(order, replies, strict=True):
                steps_back, _ = position.pop(shard)
                if status == found_code:
                    ages.append(age_ms)
                elif status == more_code:
                    position[shard] = (steps_back, offset)
                elif steps_back > 0:
                    position[shard] = (steps_back - 1, 0)
        return max(ages, default=None)

    def _run(self, calls: list[scripts.Call]) -> list[list[int]]:
        replies = self._shards.client.run(calls)
        for reply in replies:
            if isinstance(reply, AckerError):
                raise reply
        return replies


def _decode(root: int, value: bytes, meta: Fields, now_ms: int) -> RootRecord:
    val, stage, flags, stamp, task, start = _RECORD.unpack(value)
    tick, num_buckets = int(meta[b"tick"]), int(meta[b"num_buckets"])
    name = meta.get(b"stage:%d" % stage) if stage else None
    return RootRecord(
        root=root,
        val=val,
        task=int.from_bytes(task, "big") if flags == _INITED else None,
        failed=flags == _FAILED,
        age_ms=max(0, now_ms - int.from_bytes(start, "big")),
        last_stage=None if name is None else name.decode(),
        ticks_left=max(0, num_buckets - (tick - stamp) % 65536),
    )
