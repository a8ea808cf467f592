"""So many failed rows that a job could not report them all."""

from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import RowFailedError
from acker_redis.spark import Tracker
from acker_redis.spark.operators import rows as operators
from acker_redis.spark.proof import meters, proof
from acker_redis.spark.runtime.collected import collected_bytes_per_task
from tests.support.spark.cases import IDS, MakeCase

pytestmark = pytest.mark.spark


def bounded(monkeypatch: pytest.MonkeyPatch, max_bytes: int) -> None:
    monkeypatch.setattr(proof, "collected_bytes_per_task", lambda session: max_bytes)


def refuse_odd(row: dict[str, Any]) -> list[tuple[int]]:
    if row["id"] % 2:
        raise RowFailedError("odd", retry=False)
    return [(row["id"],)]


@pytest.mark.parametrize("max_bytes", [70, 40])
def test_unreported_messages_go_out_again_without_an_attempt(
    case: MakeCase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, max_bytes: int
) -> None:
    """Each emission fails as many as it can name. All others are neither acked nor blamed, and no one is searched for."""
    bounded(monkeypatch, max_bytes)
    run = case(n=640)
    ended = run.done(lambda t, m: t.write(t.flat_map(m, refuse_odd, IDS), run.append()))
    assert ended.acked == set(range(0, 640, 2))
    assert ended.reasons == {("odd", "refuse_odd"): 320}
    assert {letter.attempts for letter in ended.letters.values()} == {1}
    ended.check({id: [(id,)] for id in range(640)}, run.written())
    assert ended.emissions > 2
    told = [record.getMessage() for record in caplog.records if "too many rows failed" in record.getMessage()]
    assert len(told) == ended.emissions - 1


def test_a_partition_sink_reports_a_part_of_its_rows(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    bounded(monkeypatch, 200)
    run = case(n=640)

    def full(batches: Any, partition: int) -> None:
        sum(batch.num_rows for batch in batches)
        if partition == 1:
            raise RowFailedError("full", retry=False)

    ended = run.done(lambda t, m: t.write_partitions(m.repartitionByRange(2, "id"), full, on_error="fail"))
    assert len(ended.letters) > 200
    assert {letter.detail for letter in ended.letters.values()} == {"full"}
    assert len(ended.acked) + len(ended.letters) == 640


@pytest.mark.parametrize("rows", [100_000, pytest.param(1_000_000, marks=pytest.mark.chaos)])
def test_a_million_failed_rows_fit(case: MakeCase, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """In Python, where each task packs them, and in SQL, where each row is collected. The short form has less room."""
    run = case(n=rows, partitions=4)
    monkeypatch.setattr(
        proof, "collected_bytes_per_task", lambda session: collected_bytes_per_task(session) * rows // 1_000_000
    )
    monkeypatch.setattr(operators, "MAX_TEXTS", operators.MAX_TEXTS * rows // 1_000_000)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        def refuse(batch: Any) -> Any:
            from acker_redis.spark import FlatMapOutput

            return FlatMapOutput(
                batch.slice(0, 0),
                np.array([], np.int64),
                dict.fromkeys(range(batch.num_rows), RowFailedError("no", retry=False)),
            )

        low = tracker.flat_map_arrow(tracker.filter(messages, f"id < {rows // 2}"), refuse, IDS)
        reason = F.concat(F.repeat(F.lit("x"), 180), F.col("id").cast("string"))
        high = tracker.fail_where(tracker.filter(messages, f"id >= {rows // 2}"), "true", reason, retry=False)
        tracker.write(tracker.union_by_name(low, high), run.append())

    from acker_redis.spark import run_tracked

    result = run_tracked(run.messages, pipeline, acker=run.acker, ids="id")
    assert (result.counts.acked, result.counts.dead_lettered, result.counts.emitted) == (0, rows, rows)


def test_failures_of_all_tasks_together_have_a_limit(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may report all of its rows, but not all tasks may."""
    monkeypatch.setattr(meters, "MOST_FAILURE_BYTES", 400)
    run = case(n=640, partitions=8)
    ended = run.done(lambda t, m: t.write(t.flat_map(m, refuse_odd, IDS), run.append()))
    assert ended.acked == set(range(0, 640, 2))
    assert ended.reasons == {("odd", "refuse_odd"): 320}
    assert {letter.attempts for letter in ended.letters.values()} == {1}
    assert ended.emissions > 1


def test_failed_roots_of_sql_have_a_limit(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MOST_FAILED_ROOTS", 30)
    run = case(n=100)
    ended = run.done(lambda t, m: t.write(t.fail_where(m, "id % 2 = 1", "odd", retry=False), run.append()))
    assert ended.acked == set(range(0, 100, 2))
    assert ended.reasons == {("odd", "fail_where"): 50}
    assert {letter.attempts for letter in ended.letters.values()} == {1}
    assert ended.emissions == 2


def test_texts_of_many_rows_of_one_message_have_a_limit(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "MAX_TEXTS", 10)
    run = case(n=1)
    found: list[int] = []
    read = meters.read_failed

    def noted(sums: meters.Metrics, meter: str, operator: str, *, retry: bool) -> meters.Removed | None:
        found.append(sums[meter]["texts"].count(",") + 1)
        return read(sums, meter, operator, retry=retry)

    monkeypatch.setattr(meters, "read_failed", noted)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.explode(messages, "transform(sequence(1, 50), n -> struct(id, n))")
        reason = F.concat(F.lit("bad "), F.col("n").cast("string"))
        tracker.write(tracker.fail_where(rows, "true", reason, retry=False), run.append())

    assert set(run.done(pipeline).letters) == {0}
    assert found == [10]


def test_many_reasons_in_sql_keep_a_part_of_the_texts(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "MAX_TEXTS", 10)
    run = case(n=40)
    reason = F.concat(F.lit("bad "), F.col("id").cast("string"))
    ended = run.done(lambda t, m: t.write(t.fail_where(m, "id < 30", reason, retry=False), run.append()))
    texts = {id: letter.detail for id, letter in ended.letters.items()}
    assert texts.keys() == set(range(30))
    named = {id for id, text in texts.items() if text == f"bad {id}"}
    assert 1 <= len(named) < 25
    assert {text for id, text in texts.items() if id not in named} == {meters.OTHER_TEXTS}


def test_reason_of_sql_is_cut_and_may_be_null_or_odd(case: MakeCase) -> None:
    run = case(n=4)
    reason = F.expr("CASE id WHEN 0 THEN NULL WHEN 1 THEN repeat('ä', 300) WHEN 2 THEN 'a \"b\", \\n[c]' END")
    ended = run.done(lambda t, m: t.write(t.fail_where(m, "id < 3", reason, retry=False), run.append()))
    assert {id: letter.detail for id, letter in ended.letters.items()} == {
        0: None, 1: "ä" * operators.MAX_TEXT_CHARS, 2: 'a "b", \n[c]',
    }  # fmt: skip
