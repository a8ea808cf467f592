"""Tools of all benchmarks: registration, result rows, servers, timers."""

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import redis

from acker_redis import Acker, AckerConfig
from acker_redis.client.connection import RedisClient
from acker_redis.errors import ServerNotFoundError
from acker_redis.model import ids
from acker_redis.model.arrays import UInt64Array
from acker_redis.testing.server import Server, find_program

BATCH = 1000
"""Number of rows per script call, and of commands per pipeline in comparisons."""

SHARDS = 8
BLOCK_BYTES = 22
"""Length of the block of a single root, and so of the values that the compared HSET writes."""


@dataclass(frozen=True)
class Row:
    """Result of one measurement.

    Attributes:
        benchmark: name of the benchmark.
        server: name and version of the server.
        measure: name of the measured figure.
        value: median of the repeats.
        unit: unit of value, low and high.
        low: lowest repeat.
        high: highest repeat.
        target: bound for value. None means that the figure is context.
        at_least: True if target is a lower bound.
        context: absolute figures behind a ratio.
    """

    benchmark: str
    server: str
    measure: str
    value: float
    unit: str
    low: float
    high: float
    target: float | None = None
    at_least: bool = False
    context: str = ""

    @property
    def met(self) -> bool | None:
        """Return True if the target is met, or None without a target."""
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target


@dataclass(frozen=True)
class Bench:
    """Environment of a benchmark.

    Attributes:
        name: name of the benchmark.
        server: name and version of the server, for the rows.
        url: URL of a fresh server. Empty for a benchmark that starts its own servers.
        is_valkey: True for Valkey, False for Redis.
        scale: factor for sizes. 1.0 means the real sizes; tests use a thousandth.
    """

    name: str
    server: str
    url: str
    is_valkey: bool
    scale: float

    def size(self, full: int, least: int = BATCH) -> int:
        """Return a number of rows, scaled."""
        return max(least, int(full * self.scale))

    def redis(self) -> RedisClient:
        """Return a plain client of the server."""
        return redis.Redis.from_url(self.url)

    def acker(self, app: str, *, empty: bool = False) -> Acker:
        """Return an acker with the default settings and a very long timeout. `empty` flushes the server first."""
        if empty:
            client = self.redis()
            client.execute_command("FLUSHALL", "SYNC")
            client.close()
        return Acker.connect(self.url, AckerConfig(app=app, shards=SHARDS, message_timeout_secs=3600))

    def row(
        self,
        measure: str,
        repeats: Sequence[float],
        unit: str,
        *,
        target: float | None = None,
        at_least: bool = False,
        context: str = "",
    ) -> Row:
        """Return a row with the repeats of one measurement."""
        return Row(
            self.name, self.server, measure, statistics.median(repeats), unit, min(repeats), max(repeats), target,
            at_least, context,
        )  # fmt: skip


Run = Callable[[Bench], Iterator[Row]]


@dataclass(frozen=True)
class Benchmark:
    """Registered benchmark. `per_server` runs it once per kind of server."""

    name: str
    run: Run
    per_server: bool


REGISTERED: dict[str, Benchmark] = {}


def benchmark(name: str, *, per_server: bool = True) -> Callable[[Run], Run]:
    """Register a function as a benchmark."""

    def register(run: Run) -> Run:
        REGISTERED[name] = Benchmark(name, run, per_server)
        return run

    return register


@dataclass(frozen=True)
class ServerKind:
    """Kind of server to measure on."""

    name: str
    program: str

    def server(self) -> Server:
        """Return a new server that isn't started.

        Raises:
            ServerNotFoundError: if it is not installed.
        """
        try:
            return Server(find_program(self.program))
        except ServerNotFoundError as exc:
            raise ServerNotFoundError(f"{self.name} left out: {exc}") from exc


SERVER_KINDS = (ServerKind("valkey", "embedded"), ServerKind("redis", "redis-server"))


def version(url: str) -> tuple[str, bool]:
    """Return a server's name and version, and True if it is Valkey."""
    client = redis.Redis.from_url(url)
    info: dict[str, Any] = client.info("server")
    client.close()
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}", True
    return f"Redis {info['redis_version']}", False


def cpu_micros(client: RedisClient) -> float:
    """Return the CPU time that the server has used, user and system, in microseconds."""
    info: dict[str, Any] = client.info("cpu")
    return (float(info["used_cpu_user"]) + float(info["used_cpu_sys"])) * 1e6


def cpu_secs() -> float:
    """Return the CPU time of this process and all its descendants, in seconds. 0 without /proc."""
    spent: dict[int, tuple[int, float]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended since
            continue
        spent[int(stat.parent.name)] = int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    children: dict[int, list[int]] = {}
    for process, (parent, _) in spent.items():
        children.setdefault(parent, []).append(process)
    total, left = 0.0, [os.getpid()]
    while left:
        process = left.pop()
        total += spent.get(process, (0, 0.0))[1]
        left.extend(children.get(process, ()))
    return total


def random_ids(count: int, seed: int) -> UInt64Array:
    """Return distinct non-zero random ids, the same in every run."""
    return ids.mix64(np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 40))


def packed_fields(roots: UInt64Array) -> list[bytes]:
    """Return the 8 bytes that identify each root in the ledger."""
    packed = roots.astype(">u8").tobytes()
    return [packed[i : i + 8] for i in range(0, len(packed), 8)]
