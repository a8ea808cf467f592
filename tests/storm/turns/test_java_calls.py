"""A turn makes few calls of Java. Their number is the same on any machine, unlike the time that they take."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.java_calls import counted_calls
from tests.storm.turns.parts import Heard, Passing, chain, numbered, spout_of

pytestmark = [pytest.mark.spark, pytest.mark.classic("a client of Spark Connect calls no Java")]

MOST = 220
"""The package's calls of a turn with two levels and a sink, without the releases of objects: 200 on Spark 4.3."""


class Typed(Passing):
    outputs = ["value string"]


def test_turn_makes_few_calls_of_java(run: Any, tmp_path: Path) -> None:
    def calls_of(turns: int) -> int:
        topology = chain(spout_of(numbered(["a"] * turns), Heard()), Passing, Typed)
        with counted_calls() as calls:
            run(
                topology, turn_tuples=1,
                sinks={"b": lambda writer: writer.mode("append").parquet(str(tmp_path / "out"))},
            )  # fmt: skip
        return calls.own

    calls_of(1)  # what is made once
    few, many = calls_of(2), calls_of(7)
    assert 0 < (many - few) / 5 <= MOST
