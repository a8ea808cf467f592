"""Dry run of a pipeline with a few messages: no server, no output, the same checks as a run."""

import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from pyspark.sql import DataFrame

from acker_redis.errors import BadConfigError
from acker_redis.model.roots import root_ids
from acker_redis.spark import checks
from acker_redis.spark.emission.corrupt_records import check_corrupt_records
from acker_redis.spark.emission.messages import RunMessages, with_message_ids
from acker_redis.spark.emission.pipeline_run import Pipeline, PipelineRun, names
from acker_redis.spark.proof.id_lineage import check_id_lineage
from acker_redis.spark.runs.options import MessageIds, check_messages, message_ids
from acker_redis.spark.runtime.jobs import running
from acker_redis.spark.runtime.worker_errors import own_errors
from acker_redis.spark.sinks.output_modes import Output, check_output
from acker_redis.spark.sinks.outputs import Outputs
from acker_redis.spark.sinks.replaced_sources import WrittenTables
from acker_redis.spout.in_flight import Emission

_APP = "check"


class FailedMessage(NamedTuple):
    """A message that failed.

    Attributes:
        message_id: id of the message.
        operator: name of the operator that failed it.
        reason: reason of the failure.
    """

    message_id: int
    operator: str
    reason: str


@dataclass(frozen=True)
class PipelineCheck:
    """Result of `check_pipeline`; `print` it for a summary.

    Attributes:
        rows: number of messages that were read.
        written: sink -> number of rows that it would write.
        failed: messages that failed, ordered by id. A message may have failed in several operators.
    """

    rows: int
    written: Mapping[str, int]
    failed: tuple[FailedMessage, ...]

    def __str__(self) -> str:
        """Return a line per sink, and a line per operator and failure reason."""
        lines = [f"Tried {_count(self.rows, 'message')}. Nothing was written."]
        lines += [f"  {sink!r} would write {_count(rows, 'row')}" for sink, rows in self.written.items()]
        alike: dict[tuple[str, str], list[int]] = {}
        for failed in self.failed:
            alike.setdefault((failed.operator, failed.reason), []).append(failed.message_id)
        for (operator, reason), ids in alike.items():
            messages = f"message {ids[0]}" if len(ids) == 1 else f"{len(ids)} messages ({ids[0]}, {ids[1]} ...)"
            lines.append(f"  {messages} failed in {operator!r}: {reason}")
        operators = {failed.operator for failed in self.failed}
        broken = [
            name for name in operators if len({f.message_id for f in self.failed if f.operator == name}) == self.rows
        ]
        lines += [
            f"  Every message failed in {name!r}. The operator may be broken, not the data." for name in sorted(broken)
        ]
        return "\n".join(lines)


def check_pipeline(
    messages: DataFrame,
    pipeline: Pipeline,
    rows: int = 10,
    *,
    ids: str | MessageIds | None = None,
    output: Output = "by_message",
) -> PipelineCheck:
    """Try a pipeline with a few messages, without Redis and without writing anything.

        print(check_pipeline(orders, pipeline, ids="order"))

    Operators run as in a real run. Sinks compute their rows and prove that none is missing or duplicated, but write nothing.
    Functions passed to `write` and `export` are called with a writer that writes nothing. Functions passed to other sinks are
    not called.

    Args:
        messages: one row per message.
        pipeline: function of a tracker and tracked messages.
        rows: number of rows to try, from the beginning of `messages`.
        ids: name of the message id column, or `MessageIds.offsets(...)`, whose offset file is not changed. None: ids are
            derived from the columns `file` and `row` of `read_files`.
        output: output mode of the run, `by_message` or `whole`.

    Raises:
        AckerError: a run would refuse the message ids, a column, an operator, the mode of a writer, or rows without a sink.
        Exception: the pipeline raised, or a Spark job failed.
    """
    check_output(output)
    wanted = message_ids("check_pipeline", ids)
    if rows < 1:
        raise BadConfigError(f"rows={rows} is out of range. Use 1 or more.")
    checks.check_function(pipeline, "check_pipeline", "a function of a tracker and its messages", count=2)
    check_messages(messages)
    checks.check_column_names(messages.columns, "check_pipeline")
    check_corrupt_records(messages)
    spark, run_id = messages.sparkSession, uuid.uuid4().hex
    frame, column = with_message_ids(messages, wanted.id_column, wanted.partition, wanted.offset)
    check_id_lineage(frame, column, "check_pipeline")
    tables = None if output == "whole" else WrittenTables(frame).of_emission()
    outputs = Outputs(output, only_checked=True, tables=tables)
    with running(spark, names(_APP, run_id, 0)[1]), own_errors(), ExitStack() as releasing:
        releasing.callback(outputs.release)
        outputs.check_read("messages", frame)
        # A checkpoint has the same rows, whenever they are computed.
        frame = outputs.keep_checkpoint(frame.limit(rows).localCheckpoint())
        known = RunMessages(frame, column).read_ids(None, wanted.partition, wanted.offset)
        roots = root_ids(_APP, run_id, known, 0)
        run = PipelineRun(spark, Emission(0, known, np.zeros_like(known), roots), _APP, run_id, outputs)
        releasing.callback(run.release)
        run.prove(pipeline, frame, column)
        message_of = dict(zip(roots.tolist(), known.tolist(), strict=True))
        failed = {
            FailedMessage(message_of[root], failure.component, reason.text)
            for failure in run.proof.failures()
            for reason, packed in failure.reasons.items()
            for root in np.frombuffer(packed, np.int64).tolist()
            if root in message_of
        }
    return PipelineCheck(len(known), dict(outputs.counts), tuple(sorted(failed)))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
