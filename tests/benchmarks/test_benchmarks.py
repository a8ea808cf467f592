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


def _row(measure: str, low: float, high: float, *, at_least: bool = False, target: float | None = 1.1) -> harness.Row:
    return harness.Row("jobs", "Valkey 9.1.2", measure, (low + high) / 2, "x", low, high, target, at_least)


def test_rows_that_got_worse_are_named() -> None:
    published = [_row("cost", 1.0, 1.1), _row("rate", 5, 6, at_least=True), _row("size", 1.0, 1.1, target=None)]
    same = [
        _row("cost", 1.08, 1.3),
        _row("rate", 2, 5, at_least=True),
        _row("size", 2, 3, target=None),
        _row("new", 9, 9),
    ]
    assert program.worse(same, published) == []
    worse = [_row("cost", 1.2, 1.4), _row("rate", 2, 4, at_least=True)]
    assert program.worse(worse, published) == [
        "Worse: jobs, Valkey 9.1.2: cost: 1.30 x, where the documentation has 1.05 x.",
        "Worse: jobs, Valkey 9.1.2: rate: 3.00 x, where the documentation has 5.50 x.",
    ]
