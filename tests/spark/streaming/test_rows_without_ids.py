"""Rows of a stream without an id: broken lines become dead letters, and a broken schema ends the query."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from acker_redis import Acker, OperatorBrokenError
from acker_redis.spark import TrackedBatches, Tracker
from acker_redis.spark.emission.operator_health import MANY_FAILED
from acker_redis.spark.streaming.rows_without_ids import RowsWithoutIds
from acker_redis.testing import fake_acker

BROKEN = '{"id": 2, "item": '


def rows_of(*, stop_if_broken: bool = True) -> RowsWithoutIds:
    return RowsWithoutIds(fake_acker(), dead_letter_bytes=0, stop_if_broken=stop_if_broken)


def test_many_rows_without_an_id_and_no_other_end_the_query() -> None:
    rows = rows_of()
    rows.check("id", 0, MANY_FAILED - 1)
    with pytest.raises(OperatorBrokenError, match="20 rows have no id in column 'id'"):
        rows.check("id", 0, 1)


@pytest.mark.parametrize(("stops", "with_id"), [(True, 1), (False, 0)])
def test_many_rows_without_an_id_are_accepted_beside_another_or_by_choice(stops: bool, with_id: int) -> None:
    rows = rows_of(stop_if_broken=stops)
    rows.check("id", with_id, 0)
    rows.check("id", 0, MANY_FAILED)


def write(tracker: Tracker, messages: DataFrame, out: Path) -> None:
    tracker.write(messages, lambda writer: writer.mode("append").parquet(str(out)))


@pytest.mark.spark
@pytest.mark.classic("foreachBatch runs in the server")
@pytest.mark.parametrize("keeps_text", [True, False])
def test_a_broken_line_becomes_a_dead_letter_and_the_others_are_written(
    spark: Any, url: str, tmp_path: Path, keeps_text: bool
) -> None:
    (tmp_path / "in").mkdir()
    lines = ['{"id": 1, "item": "tea"}', BROKEN, BROKEN, '{"id": 3, "item": "milk"}']
    (tmp_path / "in" / "1.json").write_text("\n".join(lines))
    schema = "id bigint, item string" + (", _corrupt_record string" if keeps_text else "")
    with (
        Acker.connect(url, app="broken", shards=1, message_timeout_secs=60) as acker,
        TrackedBatches(
            partial(write, out=tmp_path / "out"), acker=acker, ids="id", parking_location=str(tmp_path / "parked")
        ) as batches,
    ):
        stream = spark.readStream.schema(schema).json(str(tmp_path / "in")).writeStream.foreachBatch(batches)
        query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        counts, letters = batches.status().counts, acker.dead_letters.read()
    assert (counts.acked, counts.dead_lettered) == (2, 2)
    assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "out")).collect()) == [1, 3]
    assert {letter.reason for letter in letters} == {"corrupt"}
    assert len({letter.message_id for letter in letters}) == 2
    payloads = [json.loads(letter.payload or b"null") for letter in letters]
    assert payloads == [{"_corrupt_record": BROKEN} if keeps_text else {}] * 2
    assert all(("the text is lost" in str(letter.detail)) is not keeps_text for letter in letters)
