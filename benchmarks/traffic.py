"""Bytes per update in the append-only file, and so in replication: for roots 32 to a block, and for single roots.

This is the growth of INFO's aof_current_size without a rewrite. The server replicates a script's writes, not the call of the
script: an update of one root of a block sends the whole block.
"""

from collections.abc import Callable, Iterator

import numpy as np

from acker_redis.client.connection import RedisClient
from acker_redis.model.ids import SLOTS
from benchmarks import harness
from benchmarks.harness import Bench, Row

_ROOTS = 200_000
_TARGET_SHARE = 0.4
_EDGE = np.uint64(0x5555)


@harness.benchmark("traffic")
def run(bench: Bench) -> Iterator[Row]:
    """Measure init, open ack and completing ack for both, and an open ack of one root of each block."""
    count = bench.size(_ROOTS, 32 * SLOTS) // SLOTS * SLOTS
    client = bench.redis()
    client.config_set("appendonly", "yes")
    client.config_set("auto-aof-rewrite-percentage", 0)
    by_case: dict[str, dict[str, float]] = {}
    for case in ("alone", "32 to a block"):
        with bench.acker("traffic", empty=True) as acker:
            minted = case != "alone"
            roots = acker.new_roots(count).view(np.uint64) if minted else harness.random_ids(count, seed=3)
            edges, firsts = np.full(count, _EDGE, np.uint64), roots[::SLOTS]
            measured = by_case[case] = {}
            measured["init"] = _bytes(client, count, lambda: acker.init_many(roots, roots, 0))  # noqa: B023
            measured["open ack"] = _bytes(client, count, lambda: acker.ack_many(roots, edges))  # noqa: B023
            if minted:
                one_root = _bytes(client, len(firsts), lambda: acker.ack_many(firsts, firsts))  # noqa: B023
                acker.ack_many(firsts, firsts)  # undone
            measured["completing ack"] = _bytes(client, count, lambda: acker.ack_many(roots, roots ^ edges))  # noqa: B023
    client.config_set("appendonly", "no")
    client.close()
    for update, alone in by_case["alone"].items():
        together = by_case["32 to a block"][update]
        yield bench.row(
            f"bytes written per {update}: roots 32 to a block / alone", [together / alone], "x", target=_TARGET_SHARE,
            context=f"{together:.1f} B / {alone:.1f} B",
        )  # fmt: skip
    yield bench.row("bytes written per open ack of one root of a block of 32", [one_root], "B")


def _bytes(client: RedisClient, count: int, work: Callable[[], object]) -> float:
    before = _written(client)
    work()
    return (_written(client) - before) / count


def _written(client: RedisClient) -> int:
    return int(client.info("persistence")["aof_current_size"])
