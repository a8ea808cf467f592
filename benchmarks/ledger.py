"""Server CPU per update, against pipelined HSET of an equal value on the same server.

Both sides work on 1 000 000 entries in 8 hashes with the same 8-byte names and 22-byte values, in batches of 1 000:
one script call of 1 000 roots against one redis-py pipeline of 1 000 HSET commands. They take turns, slice by slice,
on the same roots in the same order. CPU is what INFO's used_cpu_user + used_cpu_sys grew by: it holds the server's
network and protocol work too, and nothing of the client's.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from acker_redis import Acker
from acker_redis.connection import RedisClient
from acker_redis.ids import UInt64Array
from benchmarks import harness
from benchmarks.harness import BATCH, RECORD_BYTES, SHARDS, Bench, Row

_PENDING = 1_000_000
_SLICES = 25
_ACK_SLICES = 9
_GROWTHS = 3
_TARGET = 1.0
_EDGE = np.uint64(0x5555)
_VALUE, _OTHER_VALUE = b"a" * RECORD_BYTES, b"b" * RECORD_BYTES


@harness.benchmark("ledger")
def run(bench: Bench) -> Iterator[Row]:
    """Init while growing to 1 000 000 pending roots; open and completing acks at 1 000 000 pending."""
    slices = _slices(bench.size(_PENDING // SHARDS, 3 * BATCH))
    client = bench.redis()
    inits: list[float] = []
    new_fields: list[float] = []
    for growth in range(_GROWTHS):
        with bench.acker(f"ledger-{growth}", empty=True) as acker:
            init = hset = 0.0
            for part in slices:
                init += _cpu(client, _init, acker, part)
                hset += _cpu(client, _hset, client, part, _VALUE)
            inits.append(init / len(slices))
            new_fields.append(hset / len(slices))
            if growth == _GROWTHS - 1:
                yield _ratio(bench, "init", inits, new_fields, "HSET of new fields")
                yield from _acks(bench, client, acker, _reslice(slices)[:_ACK_SLICES])
    client.close()


def _acks(bench: Bench, client: RedisClient, acker: Acker, slices: list[UInt64Array]) -> Iterator[Row]:
    opening: list[float] = []
    completing: list[float] = []
    overwriting: list[float] = []
    grouped: list[float] = []
    deleting: list[float] = []
    for part in slices:
        roots = part.T.ravel()
        edge = np.full(len(roots), _EDGE, np.uint64)
        opening.append(_cpu(client, acker.ack_many, roots, edge))
        overwriting.append(_cpu(client, _hset, client, part, _OTHER_VALUE))
        grouped.append(_cpu(client, _hset_grouped, client, part, _VALUE))
        completing.append(_cpu(client, acker.ack_many, roots, _vals(roots) ^ edge))
        deleting.append(_cpu(client, _hdel, client, part))
        _init(acker, part)  # both sides back to their full number
        _hset(client, part, _VALUE)
    yield _ratio(bench, "ack that leaves the tree open", opening, overwriting, "overwriting HSET")
    yield _ratio(bench, "ack that completes the tree", completing, overwriting, "overwriting HSET")
    for what, ours in (("ack that leaves the tree open", opening), ("ack that completes the tree", completing)):
        yield _ratio(bench, what, ours, grouped, "overwriting HSET, sent hash by hash", target=None)
    yield _ratio(bench, "ack that completes the tree", completing, deleting, "HDEL", target=None)


def _ratio(
    bench: Bench, what: str, ours: list[float], theirs: list[float], other: str, target: float | None = _TARGET
) -> Row:
    """A row of ratios, repeat by repeat, from CPU per slice of equal size."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    context = f"{np.median(ours):.2f} µs, {other} {np.median(theirs):.2f} µs"
    return bench.row(f"server CPU: {what} / {other}", ratios, "x", target=target, context=context)


def _slices(per_shard: int) -> list[UInt64Array]:
    """Roots in slices of shape (shards, a multiple of 1 000), so that every script call comes out full."""
    count = min(_SLICES, per_shard // BATCH)
    rows = per_shard // count // BATCH * BATCH
    by_shard = np.stack(harness.roots_by_shard(rows * count, seed=1))
    return [by_shard[:, i * rows : (i + 1) * rows] for i in range(count)]


def _reslice(slices: list[UInt64Array]) -> list[UInt64Array]:
    """The same roots in another order, so that acks and commands find their entries anywhere in memory."""
    roots = np.random.default_rng(7).permuted(np.concatenate(slices, axis=1), axis=1)
    return np.split(roots, len(slices), axis=1)


def _vals(roots: UInt64Array) -> UInt64Array:
    return roots | np.uint64(1 << 63)  # anything but 0 and _EDGE


def _cpu(client: RedisClient, work: Callable[..., Any], *args: Any) -> float:
    """Server CPU per root that work(*args) takes, in microseconds."""
    roots = next(arg for arg in args if isinstance(arg, np.ndarray))
    before = harness.cpu_micros(client)
    work(*args)
    return (harness.cpu_micros(client) - before) / roots.size


def _init(acker: Acker, part: UInt64Array) -> None:
    roots = part.T.ravel()
    acker.init_many(roots, _vals(roots), 0)


def _hset(client: RedisClient, part: UInt64Array, value: bytes) -> None:
    _pipelined(client, part, "HSET", value)


def _hset_grouped(client: RedisClient, part: UInt64Array, value: bytes) -> None:
    """As a program sends them that groups by hash, which is kinder to the server's caches."""
    for shard, roots in enumerate(part):
        fields = harness.packed_fields(roots)
        for start in range(0, len(fields), BATCH):
            pipe = client.pipeline(transaction=False)
            for field in fields[start : start + BATCH]:
                pipe.execute_command("HSET", f"hset:{shard}", field, value)
            pipe.execute()


def _hdel(client: RedisClient, part: UInt64Array) -> None:
    _pipelined(client, part, "HDEL")


def _pipelined(client: RedisClient, part: UInt64Array, command: str, *value: bytes) -> None:
    """One command per root in pipelines of 1 000, the hashes in turn, as a program sends them that does not group."""
    fields = harness.packed_fields(part.T.ravel())
    for start in range(0, len(fields), BATCH):
        pipe = client.pipeline(transaction=False)
        for i, field in enumerate(fields[start : start + BATCH], start):
            pipe.execute_command(command, f"hset:{i % SHARDS}", field, *value)
        pipe.execute()
