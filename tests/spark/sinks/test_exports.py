"""Exports whose tasks break off: Spark ends the input of a step as if it were complete when the step before it dies."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from acker_redis.spark import FlatMapOutput, Progress, Tracker
from acker_redis.spark.worker.export import ExportStep
from acker_redis.spout.retry import RetryPolicy
from tests.support.spark.cases import CHILD, Case, MakeCase
from tests.support.spark.faults import fan_out, kill_self, once, wait_for

BATCH_ROWS, CHILDREN = 50, 100
"""The children of a batch are more than Spark's buffers hold, so the export sees them before the next batch."""

_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"


@dataclass(frozen=True)
class NotesInput(ExportStep):
    """Makes a file when rows have arrived. All rows leave at the end, as few rows do: Spark waits for the first of them."""

    mark: str = ""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def noted() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                Path(self.mark).touch()
                yield batch

        yield from list(super().__call__(noted()))


def ack_exported(run: Case) -> int:
    """Do what another application does with all exported rows."""
    anchors = pq.read_table(run.out).column("anchors").combine_chunks().values.to_numpy()
    run.acker.ack_many(anchors[::2], anchors[1::2])
    return len(anchors) // 2


@pytest.mark.spark
@pytest.mark.chaos
def test_worker_killed_before_an_export_costs_an_emission_and_no_attempt(
    case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The export introduced the edges of the rows that had arrived. The run doesn't end for that."""
    run = case(n=6 * BATCH_ROWS, partitions=1)
    seen, died = run.folder / "seen", run.folder / "died"
    monkeypatch.setattr("acker_redis.spark.sinks.exports.ExportStep", partial(NotesInput, mark=str(seen)))

    def die() -> None:
        wait_for(seen)
        kill_self()

    def split(batch: pa.RecordBatch) -> FlatMapOutput:
        if batch.column("id").to_numpy().max() >= 4 * BATCH_ROWS:
            once(died, die)
        return fan_out(CHILDREN, batch)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.export(tracker.flat_map_arrow(messages, split, CHILD), run.append(), encoding="array")

    acked: list[int] = []

    def progress(now: Progress) -> None:
        if not now.is_emitting and not acked and (Path(run.out) / "_SUCCESS").exists():
            acked.append(ack_exported(run))

    before = run.spark.conf.get(_RECORDS)
    run.spark.conf.set(_RECORDS, str(BATCH_ROWS))
    try:
        ended = run.done(pipeline, progress=progress, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    finally:
        run.spark.conf.set(_RECORDS, before)
    assert died.exists() and acked == [(run.n - 1) * CHILDREN]
    assert (ended.letters, ended.acked) == ({}, set(range(run.n)))
    assert ended.emissions == 2
    assert run.acker.stats().acked == run.n
