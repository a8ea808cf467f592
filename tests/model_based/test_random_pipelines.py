"""Pipelines drawn from seeds, held against what is really in their sinks; `make chaos` draws for long."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SEEDS = (4, 5, 7, 8, 10, 12, 13, 23, 27, 28, 30, 89, 107)
"""Harmless and harmful ones, diamonds, each of the tracker's operators, and sinks that fail in each of the ways. Spark numbers
the messages of some.
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_random_pipeline_has_exact_outcomes(
    seed: int, spark: "SparkSession", url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """No false completion, nothing dead-lettered that was written, one outcome per root, harmless operators do no harm."""
    from tests.model_based.pipelines.judge import judge
    from tests.model_based.pipelines.pipeline import draw
    from tests.model_based.pipelines.play import play

    pipeline = draw(seed)
    if pipeline.loses_shuffle_files:
        request.getfixturevalue("loses_executor")
    faults = judge(pipeline, play(pipeline, spark, url, tmp_path / "run"))
    assert not faults, "\n".join(["", str(pipeline), *map(str, faults[:5])])


@pytest.mark.classic("a client can't see the plan that ran, so it reads the ids first")
@pytest.mark.parametrize("seed", [8, 12, 23, 28, 30])
def test_random_pipeline_that_tells_its_ids_ends_as_if_they_were_read_first(
    seed: int, spark: "SparkSession", url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Both ways are exact, and their messages end alike."""
    from tests.model_based.pipelines.judge import judge
    from tests.model_based.pipelines.pipeline import draw
    from tests.model_based.pipelines.play import play

    pipeline = draw(seed).with_ids_in_range()
    if pipeline.loses_shuffle_files:
        request.getfixturevalue("loses_executor")
    ends = []
    for reads_ids in (False, True):
        played = play(pipeline, spark, url, tmp_path / str(reads_ids), reads_ids=reads_ids)
        faults = judge(pipeline, played)
        assert not faults, "\n".join(["", str(pipeline), *map(str, faults[:5])])
        letters = None if played.result is None else sorted(played.result.dead_letters)
        ends.append((type(played.error), letters))
    assert ends[0] == ends[1]


def test_judge_detects_missing_duplicate_and_wrong_outcomes(spark: "SparkSession", url: str, tmp_path: Path) -> None:
    """A judge that never finds a fault would be worth nothing."""
    from tests.model_based.pipelines import judge, operators, pipeline, play, sinks
    from tests.model_based.pipelines.data import Data

    data = Data(seed=3, count=20, partitions=0, skew=0.5, wide=5, marks=False)
    steps = (pipeline.Step(operators.Explode("tags"), (0,)),)
    one = pipeline.Pipeline(0, data, steps, ((sinks.Partitions(), 1), (sinks.Files("parquet"), 0)))
    played = play.play(one, spark, url, tmp_path / "run")
    assert judge.judge(one, played) == []
    (emitted,) = played.emissions
    message = next(iter(emitted.outcomes))

    def kinds() -> set[str]:
        return {fault.kind for fault in judge.judge(one, played)}

    emitted.outcomes[message] = ["failed"]
    assert "failed though all was written" in kinds()
    emitted.outcomes[message] = ["ack", "failed"]
    assert "not one outcome" in kinds()
    emitted.outcomes[message] = ["ack"]
    emitted.broken_off = "why"
    assert kinds() == {"acked though its emission failed", "harmless emission failed"}
    emitted.broken_off = None
    (emitted.folder / "sink1").rename(emitted.folder / "elsewhere")
    assert kinds() == {"false completion"}
