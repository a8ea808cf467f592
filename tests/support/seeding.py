"""One shard, seeded and read back with plain Redis commands.

The layout of keys and blocks is spelled here a second time, apart from the library: a change on one side alone fails.
"""

import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from acker_redis.client import scripts
from acker_redis.client.client import Client

GENERATION = "generation-1"
IDEMPOTENCY_KEY, DIGEST = b"key-for-test", b"digested"
WAITING, OWNED, FAILED, CLOSED = 0, 1, 2, 3
"""States of a root: waits for its init; has its owner; failed before its init; failed, with its outcome written."""

TICK = 10
"""Tick of a seeded shard. With three buckets: nursery slot 2, death row slot 3 with stamp 7."""

TICK_MS = 15000

_PREFIX = "acker:{lab:0}:"
_ALONE = struct.Struct(">qBBHI")


@dataclass(frozen=True)
class Between:
    """A server time or an age: equal to every number from `low` to `high`."""

    low: int
    high: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (int, float)) and self.low <= other <= self.high

    __hash__ = None  # type: ignore[assignment]


Moment = Any
"""A number, or `Between` where the server's clock decides."""


class AloneBlock(NamedTuple):
    """A block of one root: 22 bytes. Its slot is the caller's."""

    val: int
    spout_id: int = 7
    flags: int = OWNED
    component: int = 0
    stamp: int = TICK
    start: Moment = 0

    def packed(self, slot: int) -> bytes:
        head = _ALONE.pack(self.val, self.component, self.flags + 4 * slot, self.stamp, self.spout_id)
        return head + int(self.start).to_bytes(6, "big")


def unpacked(data: bytes) -> tuple[int, AloneBlock]:
    """The slot, and the block."""
    val, component, flags, stamp, spout_id = _ALONE.unpack(data[:16])
    return flags // 4, AloneBlock(val, spout_id, flags % 4, component, stamp, int.from_bytes(data[16:], "big"))


class Slot(NamedTuple):
    """What a shared block has of one root."""

    val: int
    flags: int = OWNED
    component: int = 0
    settled: bool = False


class SharedBlock(NamedTuple):
    """A block of several roots: slot number -> what there is of it."""

    slots: dict[int, Slot]
    spout_id: int = 7
    stamp: int = TICK
    start: Moment = 0

    def packed(self) -> bytes:
        numbers = sorted(self.slots)
        kinds = {
            "unsettled": [n for n in numbers if not self.slots[n].settled],
            "owned": [n for n in numbers if self.slots[n].flags in (OWNED, CLOSED)],
            "failed": [n for n in numbers if self.slots[n].flags in (FAILED, CLOSED)],
        }
        head = struct.pack(">HI", self.stamp, self.spout_id) + int(self.start).to_bytes(6, "big")
        masks = b"".join(mask_of(found).to_bytes(4, "big") for found in kinds.values())
        vals = b"".join(struct.pack(">q", self.slots[n].val) for n in numbers)
        return head + masks + vals + bytes(self.slots[n].component for n in numbers)


def unpacked_shared(data: bytes) -> SharedBlock:
    stamp, spout_id = struct.unpack(">HI", data[:6])
    unsettled, owned, failed = (slots_of(mask) for mask in struct.unpack(">3I", data[12:24]))
    present, settled = sorted({*unsettled, *owned}), {*owned} - {*unsettled}
    assert len(data) == 24 + 9 * len(present)
    assert set(unsettled) >= set(failed)
    slots = {}
    for place, n in enumerate(present):
        (val,) = struct.unpack_from(">q", data, 24 + 8 * place)
        flags = (n in owned) + 2 * (n in failed)
        slots[n] = Slot(val, flags, data[24 + 8 * len(present) + place], n in settled)
    return SharedBlock(slots, spout_id, stamp, int.from_bytes(data[6:12], "big"))


def mask_of(slots: Iterable[int]) -> int:
    return sum(1 << slot for slot in slots)


def slots_of(mask: int) -> list[int]:
    return [slot for slot in range(32) if mask >> slot & 1]


def split(root: int) -> tuple[int, int]:
    """Block number and slot of a root."""
    bits = root % 2**64
    return bits % 2**59, bits >> 59


def joined(number: int, slot: int) -> int:
    """The root at a slot of a block, signed."""
    bits = slot << 59 | number
    return bits - 2**64 if bits >= 2**63 else bits


class Failure(NamedTuple):
    """One entry of a fail stream."""

    root: int
    spout_id: int
    reason: str
    age_ms: Moment
    last_component: str = ""
    detail: str | None = None


class Done(NamedTuple):
    """One root in an entry of an ack stream."""

    root: int
    age_ms: Moment = 0
    component: int = 0


def pack_blocks(*roots: int) -> bytes:
    """The block numbers of roots, as fields of the ledger and cohorts have them."""
    return b"".join(split(root)[0].to_bytes(8, "big") for root in roots)


def unpack_blocks(data: bytes) -> tuple[int, ...]:
    assert len(data) % 8 == 0
    return tuple(int.from_bytes(data[i : i + 8], "big") for i in range(0, len(data), 8))


def blocks_of(*roots: int) -> tuple[int, ...]:
    return tuple(split(root)[0] for root in roots)


def pack_updates(*roots: int, vals: Iterable[int] | None = None) -> bytes:
    """What the scripts read: (number, mask, values) of each block, in the order in which the blocks first stand there."""
    rows = zip(roots, vals, strict=True) if vals is not None else ((root, None) for root in roots)
    by_number: dict[int, dict[int, int | None]] = {}
    for root, val in rows:
        number, slot = split(root)
        by_number.setdefault(number, {})[slot] = val
    out = b""
    for number, slots in by_number.items():
        out += number.to_bytes(8, "big") + mask_of(slots).to_bytes(4, "big")
        out += b"".join(struct.pack(">q", slots[slot]) for slot in sorted(slots) if slots[slot] is not None)
    return out


def pack_pairs(*pairs: tuple[int, int]) -> bytes:
    return pack_updates(*(root for root, _ in pairs), vals=[val for _, val in pairs])


def pack_settles(*done: int, still_open: Iterable[tuple[int, int]] = ()) -> bytes:
    """What settle reads: (number, mask, mask of the open slots, values of these) of each block."""
    by_number: dict[int, dict[int, int]] = {}
    for root, val in [*((root, 0) for root in done), *still_open]:
        number, slot = split(root)
        by_number.setdefault(number, {})[slot] = val
    out = b""
    for number, slots in by_number.items():
        values = {slot: slots[slot] for slot in sorted(slots) if slots[slot]}
        out += number.to_bytes(8, "big") + mask_of(slots).to_bytes(4, "big") + mask_of(values).to_bytes(4, "big")
        out += b"".join(struct.pack(">q", val) for val in values.values())
    return out


@dataclass(frozen=True)
class State:
    """Everything a shard holds. Slots, lanes and fields that hold nothing are left out.

    Roots that are alone in their blocks stand in `ledger`, shared blocks in `blocks`. The counter `unowned` is left out:
    seeds don't keep it, and the state machine compares it after every step. So are the counters by component, which stand
    in `by_component` and aren't compared.
    """

    ledger: dict[int, AloneBlock]
    blocks: dict[int, SharedBlock]
    buckets: dict[int, dict[tuple[int, ...], Moment]]
    dedup: dict[int, set[bytes]]
    acked: dict[int, list[tuple[int, list[Done]]]]
    failed: dict[int, list[Failure]]
    stats: dict[str, int]
    meta: dict[str, Any]
    others: set[bytes]
    by_component: dict[str, int] = field(default_factory=dict, compare=False)


OUTCOMES = ("acked", "failed", "timed_out")


class Lab:
    """One shard under test.

    Attributes:
        keys: keys by the names of the script headers.
        seeded_ms: server time at which the shard was seeded.
        now: after `run`, the server time at which the script ran.
    """

    def __init__(self, raw: Any, client: Client, *, opened: bool = True, **settings: Any) -> None:
        self.raw, self.client = raw, client
        self.num_buckets = settings.get("num_buckets", 3)
        self.lanes = settings.get("lanes", 1)
        self.tick = settings.get("tick", TICK)
        self.slots = self.num_buckets + 1
        self.nursery, self.death_row = self.tick % self.slots, (self.tick + 1) % self.slots
        self.keys: dict[str, Any] = {name: _PREFIX + name for name in ("ledger", "meta", "stats", "samples", "latency")}
        for name, count in (
            ("bucket", self.slots),
            ("dedup", self.slots),
            ("acked", self.lanes),
            ("failed", self.lanes),
            ("scratch", 2),
        ):
            self.keys[name] = [f"{_PREFIX}{name}:{i}" for i in range(count)]
        self.keys["outcomes"] = self.keys["acked"][0]  # for confirm, which works on one stream of either kind
        self.seeded_ms = self.server_ms()
        self.now = Between(self.seeded_ms, self.seeded_ms)
        if opened:
            fields = {
                "generation": GENERATION, "tick": self.tick, "num_buckets": self.num_buckets, "lanes": self.lanes,
                "clock": settings.get("clock", "first_seen"), "max_age_ms": settings.get("max_age_ms", 0),
                "tick_ms": TICK_MS, "shards": 1, "format": 3, "last_rotation_ms": self.seeded_ms,
                "next_rotation_ms": self.seeded_ms + settings.get("due_in_ms", TICK_MS),
            }  # fmt: skip
            if "max_pending" in settings:
                fields["max_pending"] = settings["max_pending"]
            self.raw.hset(self.keys["meta"], mapping=fields)

    def server_ms(self) -> int:
        return _ms(self.raw.time())

    # -- seeding

    def put(
        self, root: int, val: int, *, spout_id: int = 7, flags: int = OWNED, component: int = 0, tick: int | None = None,
        ago_ms: int = 5000, cohort: bool = True,
    ) -> AloneBlock:  # fmt: skip
        """Seed a block of one root that entered the nursery at `tick`, with a cohort of its own unless told otherwise."""
        tick = self.tick if tick is None else tick
        block = AloneBlock(
            val, spout_id if flags in (OWNED, CLOSED) else 0, flags, component, tick % 65536, self.seeded_ms - ago_ms
        )
        self.raw.hset(self.keys["ledger"], pack_blocks(root), block.packed(split(root)[1]))
        if cohort:
            self.cohort(tick, root)
        return block

    def put_shared(
        self, number: int, slots: dict[int, Slot], *, spout_id: int = 7, tick: int | None = None, ago_ms: int = 5000
    ) -> SharedBlock:
        """Seed a shared block, with a cohort of its own."""
        tick = self.tick if tick is None else tick
        block = SharedBlock(slots, spout_id, tick % 65536, self.seeded_ms - ago_ms)
        self.raw.hset(self.keys["ledger"], pack_blocks(number), block.packed())
        self.cohort(tick, number)
        return block

    def cohort(self, tick: int, *roots: int, score: int = 1) -> None:
        self.raw.zadd(self.keys["bucket"][tick % self.slots], {pack_blocks(*roots): score})

    # -- running

    def run(self, name: str, *args: bytes | str | int, generation: str = GENERATION) -> Any:
        """Run a script on the seeded shard; the generation goes before `args`."""
        low, settled, aged = self.counted()
        (reply,) = self.client.run([scripts.load(name).call(self.keys, generation, *args)])
        high, settled_then, aged_then = self.counted()
        self.now = Between(low, high)
        if name != "open":
            assert aged_then - aged == settled_then - settled  # whatever settles is counted by its age
        return reply

    def counted(self) -> tuple[int, Counter[str], Counter[str]]:
        """The server's time, outcomes as the counters have them, and by what is known of their ages."""
        with self.raw.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.hmget(self.keys["stats"], *OUTCOMES)
            pipe.hgetall(self.keys["latency"])
            time, counts, ages = pipe.execute(raise_on_error=False)
        settled: Counter[str] = Counter()
        if not isinstance(counts, ResponseError):  # the key may be seeded as something else
            settled.update({name: int(value or 0) for name, value in zip(OUTCOMES, counts, strict=True)})
        aged: Counter[str] = Counter()
        for name, count in ages.items():
            aged[name.decode().partition(":")[0]] += int(count)
        return _ms(time), settled, aged

    def init(
        self, *pairs: tuple[int, int], spout_id: int = 7, idempotency_key: bytes = IDEMPOTENCY_KEY, repeats: int = 0
    ) -> Any:
        return self.run("init", idempotency_key, DIGEST, spout_id, repeats, pack_pairs(*pairs))

    def ack(self, *pairs: tuple[int, int], component: int = 0, idempotency_key: bytes = IDEMPOTENCY_KEY) -> Any:
        return self.run("ack", idempotency_key, DIGEST, component, b"", pack_pairs(*pairs))

    def ack_keyed(self, *acks: tuple[int, int, int], component: int = 0) -> Any:
        """Ack with (root, key, value), as the client sends it: with the XOR of all values of each root."""
        sums: dict[int, int] = {}
        for root, _, val in acks:
            sums[root] = sums.get(root, 0) ^ val
        keyed = b"".join(struct.pack(">qqq", *ack) for ack in acks)
        return self.run("ack", b"", b"", component, keyed, pack_pairs(*sums.items()))

    def fail(
        self,
        *roots: int,
        component: int = 0,
        detail: str = "",
        released: bool = False,
        idempotency_key: bytes = IDEMPOTENCY_KEY,
    ) -> Any:
        return self.run("fail", idempotency_key, DIGEST, component, detail, int(released), pack_updates(*roots))

    def settle(
        self, *done: int, still_open: Iterable[tuple[int, int]] = (), age_ms: int = 3000, spout_id: int = 7,
        idempotency_key: bytes = IDEMPOTENCY_KEY,
    ) -> Any:  # fmt: skip
        return self.run("settle", idempotency_key, DIGEST, spout_id, age_ms, pack_settles(*done, still_open=still_open))

    def age(self, block: AloneBlock) -> Between:
        """Age of a seeded block when the script ran."""
        return Between(self.now.low - block.start, self.now.high - block.start)

    def deduplicated(self, idempotency_key: bytes = IDEMPOTENCY_KEY) -> dict[int, set[bytes]]:
        """The dedup windows after one applied batch."""
        return {self.nursery: {idempotency_key, idempotency_key + DIGEST}}

    # -- reading back

    def state(self) -> State:
        keys = self.keys
        known = {name.encode() for value in keys.values() for name in ([value] if isinstance(value, str) else value)}
        with self.raw.pipeline(transaction=False) as pipe:
            for name in ("ledger", "stats", "meta"):
                pipe.hgetall(keys[name])
            for key in keys["bucket"]:
                pipe.zrange(key, 0, -1, withscores=True)
            for key in keys["dedup"]:
                pipe.smembers(key)
            for key in (*keys["acked"], *keys["failed"]):
                pipe.xrange(key)
            pipe.keys("*")
            replies = iter(pipe.execute())
        ledger, stats, meta = (next(replies) for _ in range(3))
        return State(
            ledger=dict(_alone(k, v) for k, v in ledger.items() if len(v) == 22),
            blocks={unpack_blocks(k)[0]: unpacked_shared(v) for k, v in ledger.items() if len(v) != 22},
            buckets=_filled({unpack_blocks(member): score for member, score in next(replies)} for _ in keys["bucket"]),
            dedup=_filled(set(next(replies)) for _ in keys["dedup"]),
            acked=_filled(sorted(_done(fields) for _, fields in next(replies)) for _ in keys["acked"]),
            failed=_filled([_failure(fields) for _, fields in next(replies)] for _ in keys["failed"]),
            stats={k.decode(): int(v) for k, v in stats.items() if k != b"unowned" and b":" not in k},
            by_component={k.decode(): int(v) for k, v in stats.items() if b":" in k},
            meta={k.decode(): _number(v.decode()) for k, v in meta.items()},
            others=set(next(replies)) - known,
        )


def _ms(time: tuple[int, int]) -> int:
    return int(time[0]) * 1000 + int(time[1]) // 1000


def _filled(values: Iterable[Any]) -> dict[int, Any]:
    return {i: value for i, value in enumerate(values) if value}


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _done(fields: dict[bytes, bytes]) -> tuple[int, list[Done]]:
    assert list(fields) == [b"spout_id", b"blocks"]
    return int(fields[b"spout_id"]), [
        Done(joined(number, slot), age_ms, component)
        for number, mask, age_ms, component in struct.iter_unpack(">QIIB", fields[b"blocks"])
        for slot in slots_of(mask)
    ]


def _alone(field: bytes, data: bytes) -> tuple[int, AloneBlock]:
    (number,) = unpack_blocks(field)
    slot, block = unpacked(data)
    return joined(number, slot), block


def _failure(fields: dict[bytes, bytes]) -> Failure:
    text = {name.decode(): value.decode() for name, value in fields.items()}
    assert len(text["root"]) == 16
    root = int.from_bytes(bytes.fromhex(text["root"]), "big", signed=True)
    return Failure(
        root, int(text["spout_id"]), text["reason"], int(text["age_ms"]), text["last_component"], text.get("detail")
    )
