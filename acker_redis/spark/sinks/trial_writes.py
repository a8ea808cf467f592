"""Trial of a source over Spark Connect: does the server report the rows that a write consumes?

A client can't look into a source. So it appends no rows: a filter above the meter drops them all. A source whose writes are
reported counts each of them once. JDBC with the option numPartitions counts none, and a table that is distributed by range
counts each twice before Spark 4.3.
"""

import uuid
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis.errors import PipelineError
from acker_redis.spark.proof.meters import PREFIX
from acker_redis.spark.proof.responses import responses_of
from acker_redis.spark.sinks.source_checks import must_try, unreported

_NO_ROW = "spark_partition_id() < 0"
"""A condition that the optimizer can't evaluate. It would remove the meter below one that it can, such as `false`."""

_ROWS = 4
"""Rows that reach the meter. A plan with one row isn't distributed at all."""

_TRIALS = 3
"""A server may lose sums when it is busy. A wrong count is believed at once."""

_reported: "WeakKeyDictionary[Any, set[str]]" = WeakKeyDictionary()
"""Client -> the writes that were tried, and reported."""


def check_by_trial(
    rows: DataFrame,
    sink: str,
    source: str | None,
    path: str | None,
    mode: str,
    write: object,
    append: Callable[[DataFrame], object],
) -> None:
    """Check that the server reports each row of a write once, if only a trial shows that. A write is tried once per session.

    Args:
        rows: rows to write, of which only the columns are used.
        sink: name of the sink.
        source: format of the writer; None: the session's default.
        path: path that it writes to; None: it writes elsewhere.
        mode: mode of the write.
        write: value whose text identifies the write.
        append: function that appends rows to the target.

    Raises:
        PipelineError: it doesn't, or the mode allows no trial.
    """
    session: Any = rows.sparkSession
    if not must_try(session, source, path):
        return
    if mode.lower() not in ("append", "overwrite"):
        raise PipelineError(
            f"{sink!r}: the source {source!r} is unknown over Spark Connect. An append of no rows would show "
            f'whether its writes are reported, but mode {mode!r} would then find the target written. Use mode("append").'
        )
    known = _reported.setdefault(session.client, set())
    text = repr(write)
    if text not in known:
        if not _counts_once(rows, append):
            raise unreported(session, sink, source)
        known.add(text)


def _counts_once(rows: DataFrame, append: Callable[[DataFrame], object]) -> bool:
    session = rows.sparkSession
    responses = responses_of(session)
    columns = [F.lit(None).cast(column.dataType).alias(column.name) for column in rows.schema]
    for _ in range(_TRIALS):
        meter = f"{PREFIX}trial:{uuid.uuid4().hex}#1"
        append(session.range(_ROWS).select(columns).observe(meter, F.count(F.lit(1)).alias("rows")).where(_NO_ROW))
        found = responses.find(lambda execution, meter=meter: meter in execution.metrics, session)  # type: ignore[misc]
        responses.forget(meter)
        if found:
            return [execution.metrics[meter]["rows"] for execution in found] == [_ROWS]
    return False
