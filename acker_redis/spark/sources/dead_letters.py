"""Dead letters as a DataFrame, to query with SQL or to store as a table."""

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
from acker_redis.spark.protocol.message_json import FROM_JSON
from acker_redis.spark.runtime.executor_check import check_url
from acker_redis.spark.runtime.sessions import parallelism
from acker_redis.spark.worker.dead_letters import SCHEMA, ReadDeadLetters
from acker_redis.store.dead_letter import check_time, millis

_LETTERS_PER_PARTITION = 10_000


def read_dead_letters(
    spark: SparkSession,
    acker: Acker,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    payload_schema: str | StructType | None = None,
    executor_url: str | None = None,
) -> DataFrame:
    """Read the dead letters of an app as a DataFrame.

        letters = read_dead_letters(spark, acker, since=datetime(2026, 1, 31, tzinfo=UTC))
        letters.groupBy("reason", "last_component").count().show()

    A row has the time at which a letter was written, and every field of `DeadLetter`. Each action reads the letters again:
    executors read one span of time each. Letters are not removed, so two actions may differ if letters were deleted in
    between. Letters written after this call are not included. Damaged entries are skipped and logged.

    Args:
        spark: session.
        acker: acker for the app.
        since: earliest time of the letters, with a time zone or in this machine's. None: no limit.
        until: time before which the letters were written; None: now.
        payload_schema: schema of JSON payloads, as DDL or StructType. It adds a column `message` with the parsed payload,
            and nulls where a payload is something else.
        executor_url: URL of the acker's server for executors, if theirs differs from this process's.

    Raises:
        BadConfigError: `since` is not before `until`, a time is not a datetime, or an executor can't reach the acker.
    """
    check_time("since", since)
    check_time("until", until)
    if since is not None and until is not None and millis(since) >= millis(until):
        raise BadConfigError(f"since={since} is not before until={until}. Use an earlier since, or a later until.")
    url = check_url(spark, acker.url if executor_url is None else executor_url, acker)
    first = acker.dead_letters.first_ms()
    begin = max(0 if since is None else millis(since), first or 0)
    end = acker.dead_letters.now_ms() + 1 if until is None else millis(until)
    parts = max(1, min(parallelism(spark), acker.dead_letters.count() // _LETTERS_PER_PARTITION))
    edges = np.linspace(begin, end, parts + 1).astype(np.int64).tolist() if first is not None else []
    spans = [(start, stop - 1) for start, stop in pairwise(edges) if start < stop]
    columns = [pa.array([span[side] for span in spans], pa.int64()) for side in (0, 1)]
    # The schema is for Spark Connect, which takes none from an empty table.
    frame = spark.createDataFrame(pa.table(columns, names=["begin", "end"]), "begin bigint, end bigint").repartition(
        parts
    )
    letters = frame.mapInArrow(
        ReadDeadLetters(url, acker.config.app), from_arrow_schema(SCHEMA, prefer_timestamp_ntz=True)
    )
    return (
        letters
        if payload_schema is None
        else letters.withColumn("message", F.from_json("payload", payload_schema, FROM_JSON))
    )
