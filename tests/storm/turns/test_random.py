"""Random topologies on Spark, with an oracle: no false ack, no second outcome, nothing lost, exact sinks."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.storm.turns.drawn import GROUPINGS, Expected, Plan, build, draw, draw_with_holders
from tests.storm.turns.parts import Heard
from tests.support.spark import parquet

ENDS = {"ack": "ack", "drawn": "fail", "timeout": "forget"}


def append(path: str, writer: Any) -> None:
    writer.mode("append").parquet(path)


def test_random_topologies_have_everything() -> None:
    plans = [draw(seed) for seed in range(12)]
    assert {grouping for plan in plans for bolt in plan.bolts for _, _, grouping in bolt.inputs} == GROUPINGS.keys()
    assert {end for plan in plans for end in Expected(plan).ends.values()} == {"ack", "fail", "forget"}
    assert sum(rows.total() for plan in plans for rows in Expected(plan).rows.values()) > 500


def check(
    run: Any, spark: Any, plan: Plan | int, folder: Path, *, turn_tuples: int, mark: str | None, rows: bool = False
) -> None:
    plan, heard = draw(plan) if isinstance(plan, int) else plan, Heard()
    expected = Expected(plan)
    sinks = {sink: partial(append, str(folder / "-".join(sink))) for sink in plan.sinks}
    run(build(plan, heard, mark, spark if rows else None), sinks=sinks, turn_tuples=turn_tuples)
    of_rows = "s0-" if rows else " "
    tracked = {
        path: end for path, end in expected.ends.items() if path.startswith(of_rows) or int(path.partition("-")[2]) % 7
    }
    assert Counter(call[1] for call in heard) == Counter(tracked.keys()), "one outcome for each message"
    assert {call[1]: ENDS["ack" if call[0] == "ack" else call[2]] for call in heard} == tracked
    for sink, wanted in expected.rows.items():
        path = folder / "-".join(sink)
        found = Counter(row for (row,) in parquet.rows(path, "path")) if path.exists() else Counter()
        if any(bolt.holds for bolt in plan.bolts):  # a run ends when a failed message has tuples that are held
            assert not found - wanted
            failed = {path for path, end in tracked.items() if end == "fail"}
            found, wanted = (
                Counter({path: n for path, n in of.items() if path.partition("/")[0] not in failed})
                for of in (found, wanted)
            )
        assert found == wanted


@pytest.mark.parametrize("seed", range(12))
def test_messages_of_random_topologies_end_as_the_oracle_says(run: Any, spark: Any, tmp_path: Path, seed: int) -> None:
    check(run, spark, seed, tmp_path, turn_tuples=25, mark=None)


@pytest.mark.parametrize("seed", range(100, 106))
def test_random_topologies_with_a_killed_worker_end_as_the_oracle_says(
    run: Any, spark: Any, tmp_path: Path, seed: int
) -> None:
    check(run, spark, seed, tmp_path, turn_tuples=1000, mark=str(tmp_path / "mark"))


@pytest.mark.parametrize("seed", range(200, 206))
def test_rows_of_random_topologies_with_a_killed_worker_end_as_the_oracle_says(
    run: Any, spark: Any, tmp_path: Path, seed: int
) -> None:
    check(run, spark, seed, tmp_path, turn_tuples=25 if seed % 2 else 1000, mark=str(tmp_path / "mark"), rows=True)


@pytest.mark.parametrize("seed", range(304, 308))
def test_held_tuples_of_random_topologies_end_as_the_oracle_says(
    run: Any, spark: Any, tmp_path: Path, seed: int
) -> None:
    """Workers die at a tuple, and at a tick of held ones."""
    mark = tmp_path / "mark"
    check(run, spark, draw_with_holders(seed), tmp_path, turn_tuples=20, mark=str(mark))
    assert (tmp_path / "mark-tick").exists()


def test_random_topologies_end_the_same_without_adaptive_execution(run: Any, spark: Any, tmp_path: Path) -> None:
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        check(run, spark, 3, tmp_path, turn_tuples=1000, mark=None)
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", before)
