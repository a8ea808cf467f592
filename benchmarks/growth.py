"""Growth: server CPU per update with more pending roots, shards and cluster nodes.

With roots 32 to a block, 200 000 of them are initialised, acked and completed on top of those pending. The longest of these
calls is the server's own figure, from its slow log. One process sends the pipelines. On this machine nodes share the cores,
so a cluster shows its cost, not its gain.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np
import redis

from acker_redis import Acker, AckerConfig
from acker_redis.client.connection import RedisClient
from acker_redis.model.arrays import UInt64Array
from acker_redis.model.ids import SLOTS
from acker_redis.testing.server import Server, find_program
from benchmarks import cluster, harness
from benchmarks.harness import Bench, Row

_PENDING_M = (1, 10, 50)
_SHARDS = (1, 8, 64)
_NODES = (1, 3)
_UPDATED = 200_000
_AT_ONCE = 32_000
_EDGE = np.uint64(0x5555)
_TARGET_MS = 5.0
_TARGET_AT_M = 10
_LOG_OVER_MICROS = 500
_LOG_ENTRIES = 100_000


@harness.benchmark("growth")
def run(bench: Bench) -> Iterator[Row]:
    """Measure pending roots in 8 shards, then shards with 1 M pending, then nodes with 8 shards."""
    client = bench.redis()
    with _opened(bench.url, harness.SHARDS, client) as acker:
        filled = 0
        for millions in _PENDING_M:
            wanted = bench.size(millions * 10**6, SLOTS)
            _fill(acker, wanted - filled)
            filled = wanted
            target = _TARGET_MS if millions == _TARGET_AT_M else None
            yield from _rows(bench, f"{millions} M pending", acker, [client], target)
    for shards in _SHARDS:
        with _opened(bench.url, shards, client) as acker:
            _fill(acker, bench.size(10**6, SLOTS))
            yield from _rows(bench, f"{shards} shards", acker, [client])
    server = next(kind.program for kind in harness.SERVER_KINDS if (kind.name == "valkey") == bench.is_valkey)
    program = find_program(server)
    for count in _NODES:
        with ExitStack() as stack:
            nodes: list[Server] = [stack.enter_context(cluster.node(program)) for _ in range(count)]
            cluster.join(nodes)
            clients = [stack.enter_context(redis.Redis(port=server_node.port)) for server_node in nodes]
            with _opened(nodes[0].url, harness.SHARDS) as acker:
                _fill(acker, bench.size(10**6, SLOTS))
                yield from _rows(
                    bench, f"a cluster of {count} nodes" if count > 1 else "a cluster of one node", acker, clients
                )
    client.close()


def _opened(url: str, shards: int, client: RedisClient | None = None) -> Acker:
    if client is not None:
        client.execute_command("FLUSHALL", "SYNC")
    return Acker.connect(url, AckerConfig(app="growth", shards=shards, message_timeout_secs=3600))


def _fill(acker: Acker, count: int) -> None:
    for _ in range(0, count, _AT_ONCE):
        roots = acker.new_roots(_AT_ONCE)
        acker.init_many(roots, roots, 0)


def _rows(
    bench: Bench, case: str, acker: Acker, clients: Sequence[RedisClient], target: float | None = None
) -> Iterator[Row]:
    roots = acker.new_roots(bench.size(_UPDATED, SLOTS) // SLOTS * SLOTS).view(np.uint64)
    edges = np.full(len(roots), _EDGE, np.uint64)
    for update, work in {
        "init": lambda part: acker.init_many(roots[part], roots[part], 0),
        "open ack": lambda part: acker.ack_many(roots[part], edges[part]),
        "completing ack": lambda part: acker.ack_many(roots[part], roots[part] ^ edges[part]),
    }.items():
        for client in clients:
            client.config_set("slowlog-log-slower-than", _LOG_OVER_MICROS)
            client.config_set("slowlog-max-len", _LOG_ENTRIES)
            client.slowlog_reset()
        micros, rate = _measured(clients, roots, work)
        context = f"{rate:,.0f} roots/s"
        yield bench.row(f"server CPU per {update}, {case}", [micros], "µs", context=context)
        calls = [
            entry["duration"]
            for client in clients
            for entry in client.slowlog_get(_LOG_ENTRIES)
            if entry["command"].startswith((b"EVAL", b"FCALL"))  # INFO and the log's own commands are no calls of ours
        ]
        longest = max(calls, default=0)
        yield bench.row(
            f"longest call of {update}, {case}", [max(longest, _LOG_OVER_MICROS) / 1000], "ms", target=target
        )


def _measured(
    clients: Sequence[RedisClient], roots: UInt64Array, work: Callable[[slice], object]
) -> tuple[float, float]:
    """Return the CPU of all servers per root, in microseconds, and the roots per second."""
    before, start = sum(map(harness.cpu_micros, clients)), time.perf_counter()
    for first in range(0, len(roots), _AT_ONCE):
        work(slice(first, first + _AT_ONCE))
    secs = time.perf_counter() - start
    return (sum(map(harness.cpu_micros, clients)) - before) / len(roots), len(roots) / secs
