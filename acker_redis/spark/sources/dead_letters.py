"""Dead letters as a DataFrame, to look into with SQL and to keep as a table."""

from datetime import datetime
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from acker_redis.acker import Acker
from acker_redis.errors import BadConfigError
from acker_redis.spark.emission.messages import PARSED
from acker_redis.spark.runtime.executor_check import check_url
from acker_redis.spark.worker.dead_letters import SCHEMA, ReadDeadLetters

_LETTERS_PER_PARTITION = 10_000


def read_dead_letters(
    session: SparkSession,
    acker: Acker,
    *,
    begin: datetime | None = None,
    end: datetime | None = None,
    payload_schema: str | StructType | None = None,
    executor_url: str | None = None,
) -> DataFrame:
    """The dead letters of an app: when each was written, and all that `DeadLetter` has.

        read_dead_letters(session, acker).groupBy("reason", "last_stage").count().show()

    They stay where they are, and are read by the executors when an action asks for them, each a span of time; so several
    actions may find different letters, if some were deleted meanwhile. Those that are written after this call are not
    among them. Entries that are no letters are left out, and logged.

    Args:
        session: Spark.
        acker: of the app.
        begin: letters written from then on; with a time zone, or in the machine's.
        end: letters written before; None: until now.
        payload_schema: of payloads that are JSON, as DDL or StructType: makes a column `message` of them, with nulls in
            it where a payload is something else.
        executor_url: the acker's server as the executors reach it, where that is not as this process does.

    Raises:
        BadConfigError: `begin` is not before `end`, or an executor does not find the acker.
    """
    url = check_url(session, acker.url if executor_url is None else executor_url, acker)
    first = acker.dead_letters.first_ms()
    bounds = max(_millis(begin), first or 0), acker.dead_letters.now_ms() + 1 if end is None else _millis(end)
    if begin is not None and end is not None and begin >= end:
        raise BadConfigError(f"begin={begin}, end={end}: give a begin that is before the end")
    parts = max(1, min(session.sparkContext.defaultParallelism, acker.dead_letters.count() // _LETTERS_PER_PARTITION))
    edges = np.linspace(*bounds, parts + 1).astype(np.int64).tolist() if first is not None else []
    spans = [(start, stop - 1) for start, stop in pairwise(edges) if start < stop]
    columns = [pa.array([span[side] for span in spans], pa.int64()) for side in (0, 1)]
    frame = session.createDataFrame(pa.table(columns, names=["begin", "end"])).repartition(parts)
    letters = frame.mapInArrow(ReadDeadLetters(url, acker.config.app), from_arrow_schema(SCHEMA))
    return (
        letters
        if payload_schema is None
        else letters.withColumn("message", F.from_json("payload", payload_schema, PARSED))
    )


def _millis(time: datetime | None) -> int:
    return 0 if time is None else round(time.timestamp() * 1000)
