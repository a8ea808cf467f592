"""The benchmarks run, in a tiny size; what they measure is not judged here."""

import math

import pytest

from benchmarks import __main__ as program
from benchmarks import (
    client,
    delivery,
    expiry,
    growth,
    harness,
    latency,
    ledger,
    memory,
    record_keys,
    topologies,
    traffic,
)

MODULES = (client, delivery, expiry, growth, latency, ledger, memory, record_keys, topologies, traffic)


@pytest.mark.parametrize("name", [module.__name__.rpartition(".")[2].replace("_", "-") for module in MODULES])
def test_benchmark_yields_valid_rows_for_its_servers(name: str) -> None:
    rows = list(program.rows_of(harness.REGISTERED[name], scale=0.001))
    assert {row.server.partition(" ")[0] for row in rows} <= {"Valkey", "Redis"}
    assert rows
    for row in rows:
        assert row.benchmark == name
        assert math.isfinite(row.value)
        assert row.low <= row.value <= row.high
    assert program.table(rows).count("\n") == len(rows) + 1
