"""`check_pipeline`: what a run would refuse, which rows fail where, and nothing written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import AckerError, BadConfigError, InexactPipelineError, PipelineError
from acker_redis.spark import Tracker, check_pipeline, read_files
from acker_redis.spark.runs.check_pipeline import FailedMessage, PipelineCheck
from tests.support.spark.cases import consume
from tests.support.spark.files_source import RowsToFiles
from tests.support.spark.stored_rows import stored_rdds

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is asked for anything."""

    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("a server was asked")

    monkeypatch.setattr("redis.connection.AbstractConnection.connect", refuse)


def split(row: dict[str, Any]) -> list[tuple[int, int]]:
    if row["id"] == 4:
        raise ValueError("four")
    return [(row["id"], item) for item in range(2)]


def never(*given: Any) -> None:
    raise AssertionError("it was called")


def test_check_pipeline_lists_writes_and_failures(spark: Any, tmp_path: Path) -> None:
    before = stored_rdds(spark)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        good = tracker.fail_where(messages, "id = 2", "two", name="look")
        items = tracker.flat_map(good, split, "id bigint, item bigint")
        tracker.write(items, lambda writer: writer.mode("append").parquet(str(tmp_path / "out")), name="save")
        tracker.write_dataframe(items, never)
        tracker.write_partitions(items, never)
        tracker.write_data_source(items, RowsToFiles, options={"folder": str(tmp_path)})
        tracker.export(items, lambda writer: writer.parquet(str(tmp_path / "exported")), name="out")

    found = check_pipeline(spark.range(0, 1000, 1, 4), pipeline, rows=6, ids="id")
    assert found.rows == 6
    assert found.written == dict.fromkeys(("save", "write_dataframe", "never", "write_data_source", "out"), 8)
    assert found.failed == ((2, "look", "two"), (4, "split", "ValueError: four"))
    assert str(found).splitlines() == [
        "Tried 6 messages. Nothing was written.",
        *(
            f"  {sink!r} would write 8 rows"
            for sink in ("save", "write_dataframe", "never", "write_data_source", "out")
        ),
        "  message 2 failed in 'look': two",
        "  message 4 failed in 'split': ValueError: four",
    ]
    assert list(tmp_path.iterdir()) == []
    assert stored_rdds(spark) <= before


@pytest.mark.parametrize(
    ("sink", "kind", "told"),
    [
        (lambda t, rows: t.write(rows, lambda w: w.mode("overwrite").parquet("x")), PipelineError, "mode 'overwrite'"),
        (
            lambda t, rows: t.write(rows, lambda w: w.mode("append")),
            InexactPipelineError,
            "called no method of the writer that writes",
        ),
        (lambda t, rows: t.write_dataframe(rows.limit(2), never), InexactPipelineError, "missing or duplicated"),
        (lambda t, rows: t.group_by(rows, "half", F.count("*").alias("n")), PipelineError, "partial=True"),
        (lambda t, rows: t.filter(rows, "half = 0"), InexactPipelineError, "ran no sink"),
        (lambda t, rows: t.filter(rows.select("id"), "id = 0"), PipelineError, "isn't tracked"),
    ],
)
def test_check_pipeline_refuses_invalid_pipelines(
    spark: Any, sink: Callable[[Tracker, DataFrame], object], kind: type[AckerError], told: str
) -> None:
    with pytest.raises(kind, match=told):
        check_pipeline(spark.range(9).withColumn("half", F.col("id") % 2), sink, ids="id")


@pytest.mark.parametrize(
    ("messages", "options", "told"),
    [
        (lambda spark: spark.range(5).selectExpr("id % 2 AS id"), {"ids": "id"}, "repeat the id of another"),
        (lambda spark: spark.range(5), {"ids": "no"}, "column 'no' not found"),
        (lambda spark: None, {"ids": "id"}, "messages=None is not a DataFrame"),
        (lambda spark: spark.range(5), {}, r"not found in \['id'\], so there are no message ids\. Set ids="),
        (lambda spark: spark.range(5), {"ids": "id", "rows": 0}, "rows=0"),
        (lambda spark: spark.range(5), {"ids": 5}, "check_pipeline: ids=5 is not a source of message ids"),
        (lambda spark: spark.range(5), {"ids": "id", "output": "all"}, "output='all'"),
    ],
)
def test_check_pipeline_refuses_invalid_messages_and_options(
    spark: Any, messages: Any, options: Any, told: str
) -> None:
    with pytest.raises((PipelineError, BadConfigError), match=told):
        check_pipeline(messages(spark), lambda t, rows: t.write_partitions(rows, consume), **options)


def test_check_pipeline_of_whole_output_writes_nothing(spark: Any) -> None:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        groups = tracker.group_by(messages, (F.col("id") % 2).alias("key"), F.count("*").alias("n"))
        tracker.write(groups, lambda writer: writer.mode("overwrite").saveAsTable("nowhere"))

    found = check_pipeline(spark.range(9), pipeline, ids="id", output="whole")
    assert (found.rows, found.written, found.failed) == (9, {"write": 2}, ())
    assert not spark.catalog.tableExists("nowhere")


def test_check_pipeline_lists_corrupt_rows_as_failed(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "orders.json").write_text('{"order": 1}\n{broken\n{"order": 2}\n')

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.write(messages, lambda writer: writer.mode("append").parquet("x"))

    found = check_pipeline(read_files(spark, str(tmp_path), "json", "order bigint"), pipeline)
    assert found.written == {"write": 2}
    assert [one.reason.partition(":")[0] for one in found.failed] != []


def test_check_pipeline_text_merges_equal_failures_and_hints() -> None:
    failed = tuple(FailedMessage(number, "split", "KeyError: 'ordr'") for number in range(10))
    assert str(PipelineCheck(10, {}, failed)).splitlines()[1:] == [
        "  10 messages (0, 1 ...) failed in 'split': KeyError: 'ordr'",
        "  Every message failed in 'split'. The operator may be broken, not the data.",
    ]
