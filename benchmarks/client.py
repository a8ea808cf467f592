"""Wall time per ack of one Python process, compared with the counters that people build instead.

`Acker.ack_many` on pending roots is compared with redis-py pipelines of 1 000 commands: HINCRBY of a counter per root in 8
hashes, and SADD of a 16-byte member (root, edge) per ack in 8 sets. There are two cases: one ack per root, and ten acks per
root, as a partition of a fan-out sends them. In the second, the library combines the ten by XOR before it sends them, while
the commands are sent once per ack. Counters added up in the client first would save the same. Members of a set would not.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from acker_redis import Acker
from acker_redis.client.connection import RedisClient
from acker_redis.model.arrays import UInt64Array
from benchmarks import harness
from benchmarks.harness import BATCH, SHARDS, Bench, Row

_ACKS = 100_000
_REPEATS = 7
_TARGETS = {"minted": 20.0, "alone": 5.0, "10 acks per root": 5.0}


@harness.benchmark("client")
def run(bench: Bench) -> Iterator[Row]:
    """Compare minted roots, then single roots, then a fan-out of ten, with the sides in turn."""
    acks = bench.size(_ACKS)
    alone = harness.random_ids(acks, seed=2)
    client = bench.redis()
    with bench.acker("client", empty=True) as acker:
        minted = acker.new_roots(acks).view(np.uint64)
        for roots in (minted, alone):
            acker.init_many(roots, roots, 0)
        fanned = np.repeat(alone[: acks // 10], 10)
        np.random.default_rng(3).shuffle(fanned)
        for case, acked in (("minted", minted), ("alone", alone), ("10 acks per root", fanned)):
            edges = harness.random_ids(len(acked), seed=4)
            yield from _compare(bench, acker, client, acked, edges, case)
    client.close()


def _compare(
    bench: Bench, acker: Acker, client: RedisClient, roots: UInt64Array, edges: UInt64Array, case: str
) -> Iterator[Row]:
    ours: list[float] = []
    hincrby: list[float] = []
    sadd: list[float] = []
    for _ in range(_REPEATS):
        ours.append(_wall(acker.ack_many, roots, edges))
        hincrby.append(_wall(_pipelines, client, _counters(roots)))
        sadd.append(_wall(_pipelines, client, _members(roots, edges)))
        client.delete(*(f"sadd:{shard}" for shard in range(SHARDS)))
    for name, theirs in (("HINCRBY", hincrby), ("SADD", sadd)):
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        each = 1e6 / len(roots)
        context = f"ack {np.median(ours) * each:.2f} µs, {name} {np.median(theirs) * each:.2f} µs"
        yield bench.row(
            f"wall per ack: pipelined {name} / ack_many, {case}", ratios, "x", target=_TARGETS[case], at_least=True,
            context=context,
        )  # fmt: skip


def _wall(work: Callable[..., Any], *args: Any) -> float:
    start = time.perf_counter()
    work(*args)
    return time.perf_counter() - start


def _counters(roots: UInt64Array) -> list[tuple[Any, ...]]:
    """Build the commands beforehand, so that only sending them is timed."""
    return [("HINCRBY", f"hincrby:{field[-1] % SHARDS}", field, 1) for field in harness.packed_fields(roots)]


def _members(roots: UInt64Array, edges: UInt64Array) -> list[tuple[Any, ...]]:
    packed = np.stack([roots, edges], axis=1).astype(">u8").tobytes()
    rows = [packed[i : i + 16] for i in range(0, len(packed), 16)]
    return [("SADD", f"sadd:{row[7] % SHARDS}", row) for row in rows]


def _pipelines(client: RedisClient, commands: list[tuple[Any, ...]]) -> None:
    for start in range(0, len(commands), BATCH):
        pipe = client.pipeline(transaction=False)
        for command in commands[start : start + BATCH]:
            pipe.execute_command(*command)
        pipe.execute()
