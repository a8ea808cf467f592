"""Server CPU per update, compared with pipelined HSET of an equal value on the same server.

Roots that the library generates are packed 32 to a block, others are alone in theirs. A call touches all roots of a block or
only some. Both sides work on 1 000 000 entries in 8 hashes, in pipelines: script calls of up to 500 blocks against HSET
commands with 8-byte names and values of 22 bytes, the length of the block of a single root. They take turns, slice by slice.
CPU is the growth of INFO's used_cpu_user + used_cpu_sys. It includes the server's network and protocol work, but nothing of
the client.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from acker_redis import Acker
from acker_redis.client.connection import RedisClient
from acker_redis.model import ids
from acker_redis.model.arrays import UInt64Array
from acker_redis.model.ids import SLOTS
from benchmarks import harness
from benchmarks.harness import BATCH, SHARDS, Bench, Row

_PENDING = 1_000_000
_SLICES = 10
_TARGETS = {"init": 0.10, "ack that leaves the tree open": 0.15, "ack that completes the tree": 0.15}
_FEW = {16: None, 8: 0.6, 4: None, 2: None, 1: 2.0}
_EDGE = np.uint64(0x5555)
_VALUE = b"a" * harness.BLOCK_BYTES

_Measured = dict[str, list[tuple[float, float]]]


@harness.benchmark("ledger")
def run(bench: Bench) -> Iterator[Row]:
    """Measure init up to 1 000 000 pending roots, then acks with 1 000 000 pending, of whole blocks and of parts."""
    count = bench.size(_PENDING, _SLICES * SLOTS * 40) // (_SLICES * SLOTS) * _SLICES * SLOTS
    client = bench.redis()
    with bench.acker("minted", empty=True) as acker:
        roots = acker.new_roots(count).view(np.uint64)
        yield from _rows(bench, "32 to a block", _updates(client, acker, roots, SLOTS), _TARGETS)
        yield from _few(bench, client, acker, roots)
    with bench.acker("alone", empty=True) as acker:
        yield from _rows(bench, "alone", _updates(client, acker, harness.random_ids(count, seed=1), 1), {})
    client.close()


def _updates(client: RedisClient, acker: Acker, roots: UInt64Array, together: int) -> _Measured:
    """Return the CPU of each kind of update and of the HSET beside it, slice by slice.

    The acks have another order than the inits.
    """
    measured: _Measured = {name: [] for name in _TARGETS}
    for part in np.split(roots, _SLICES):
        ours = _cpu(client, len(part), acker.init_many, part, _vals(part), 0)
        measured["init"].append((ours, hset_micros(client, part)))
    shuffled = np.random.default_rng(7).permutation(roots.reshape(-1, together)).ravel()
    for part in np.split(shuffled, _SLICES):
        edge = np.full(len(part), _EDGE, np.uint64)
        opening = _cpu(client, len(part), acker.ack_many, part, edge)
        overwriting = hset_micros(client, part)
        completing = _cpu(client, len(part), acker.ack_many, part, _vals(part) ^ edge)
        measured["ack that leaves the tree open"].append((opening, overwriting))
        measured["ack that completes the tree"].append((completing, overwriting))
        acker.init_many(part, _vals(part), 0)  # back to the full number
    return measured


def _few(bench: Bench, client: RedisClient, acker: Acker, roots: UInt64Array) -> Iterator[Row]:
    """Measure open acks of some roots of each block."""
    slots = roots.reshape(-1, SLOTS)
    for count, target in _FEW.items():
        measured = []
        for part in np.split(slots, _SLICES):
            touched = part[:, :: SLOTS // count].ravel()
            ours = _cpu(client, len(touched), acker.ack_many, touched, np.full(len(touched), _EDGE, np.uint64))
            measured.append((ours, hset_micros(client, touched)))
        name = "ack that leaves the tree open"
        yield from _rows(bench, f"{count} of 32 in a block", {name: measured}, {name: target})


def _rows(
    bench: Bench, case: str, measured: _Measured, targets: dict[str, float | None] | dict[str, float]
) -> Iterator[Row]:
    for update, pairs in measured.items():
        ours, theirs = zip(*pairs, strict=True)
        ratios = [a / b for a, b in pairs]
        context = f"{np.median(ours):.2f} µs, HSET {np.median(theirs):.2f} µs"
        yield bench.row(
            f"server CPU: {update} / HSET, roots {case}", ratios, "x", target=targets.get(update), context=context
        )


def _vals(roots: UInt64Array) -> UInt64Array:
    return ids.mix64(roots) | np.uint64(1 << 63)  # anything but 0 and _EDGE


def _cpu(client: RedisClient, count: int, work: Callable[..., Any], *args: Any) -> float:
    """Return the server CPU per root of work(*args), in microseconds."""
    before = harness.cpu_micros(client)
    work(*args)
    return (harness.cpu_micros(client) - before) / count


def hset_micros(client: RedisClient, roots: UInt64Array) -> float:
    """Return the server CPU per root of one command each, in microseconds.

    The commands are in pipelines of 1 000, over the hashes in turn, as a program sends them.
    """
    fields = harness.packed_fields(roots)

    def write() -> None:
        for start in range(0, len(fields), BATCH):
            pipe = client.pipeline(transaction=False)
            for i, field in enumerate(fields[start : start + BATCH], start):
                pipe.execute_command("HSET", f"hset:{i % SHARDS}", field, _VALUE)
            pipe.execute()

    return _cpu(client, len(roots), write)
