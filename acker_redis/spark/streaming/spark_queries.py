"""Streaming queries as Spark knows them, in both kinds of sessions."""

import json
from typing import NamedTuple, Protocol

from pyspark.sql import SparkSession

from acker_redis.errors import BadConfigError
from acker_redis.spark.runtime.file_systems import file_system, uri_of_hadoop
from acker_redis.spark.runtime.jvm import java_static
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.spark.streaming.batch_reads import is_repeatable
from acker_redis.spark.streaming.parking.folder import Folder

_QUERY, _RUN = "sql.streaming.queryId", "spark.jobGroup.id"
"""Properties that Spark sets in a query's thread: the query id, which survives restarts, and the id of this start."""


class RunningQuery(NamedTuple):
    """A query that Spark runs and isn't stopping.

    Attributes:
        query: id of the query, which survives restarts.
        run: id of this start.
        checkpoint: checkpoint location, as a path or URI.
    """

    query: str
    run: str
    checkpoint: str


class SparkQueries(Protocol):
    """Finds running queries."""

    def run_of_batch(self, batch: SparkSession) -> str | None:
        """Return the id of the start of the query, in the thread that runs a micro-batch; None: unknown."""

    def of_batch(self, batch: SparkSession) -> RunningQuery | None:
        """Find the query of a micro-batch, in the thread that runs it; None: there is none.

        Raises:
            BadConfigError: `checkpoint_location` is not that of the query.
        """

    def find(self, query: str | None, run: str | None = None) -> RunningQuery | None:
        """Find a query by its id, and by that of its start if `run` is set; None: Spark doesn't run it, or is stopping it.

        Raises:
            BadConfigError: `checkpoint_location` is not that of the query.
        """

    def columns(self, query: str | None, run: str | None) -> str | None:
        """Return the columns of a query's stream, as JSON; None: unknown."""

    def is_repeatable(self, query: str | None, run: str | None) -> bool:
        """Return True if the plan of a query shows that a micro-batch has the same rows each time it is read."""


def spark_queries(spark: SparkSession, checkpoint_location: str | None) -> SparkQueries:
    """Return the queries of a session.

    Args:
        spark: session.
        checkpoint_location: checkpoint location of the query that is looked for; None: Spark's own word for it is used.

    Raises:
        BadConfigError: the session is Spark Connect's, and `checkpoint_location` is None.
    """
    if not is_connect(spark):
        return _ClassicQueries(spark, checkpoint_location)
    if checkpoint_location is None:
        raise BadConfigError(
            "TrackedBatches has no checkpoint_location. With Spark Connect, Python can't ask Spark for the checkpoint of a "
            "query. Pass the path or URI of the option checkpointLocation."
        )
    return _ConnectQueries(spark, checkpoint_location)


class _ClassicQueries:
    """Queries of a session with its JVM."""

    def __init__(self, spark: SparkSession, checkpoint_location: str | None) -> None:
        self._given = checkpoint_location
        self._active = spark._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001
        self._uuid = java_static(spark.sparkContext, "java.util.UUID", "fromString")

    def run_of_batch(self, batch: SparkSession) -> str | None:
        return batch.sparkContext.getLocalProperty(_RUN)

    def of_batch(self, batch: SparkSession) -> RunningQuery | None:
        context = batch.sparkContext
        return self.find(context.getLocalProperty(_QUERY), context.getLocalProperty(_RUN))

    def find(self, query: str | None, run: str | None = None) -> RunningQuery | None:
        active = None if query is None else self._active.get(self._uuid(query))
        if query is None or active is None or not active.isActive():
            return None
        found = active.runId().toString()
        if run is not None and run != found:
            return None
        return RunningQuery(query, found, self._checkpoint(uri_of_hadoop(str(active.resolvedCheckpointRoot()))))

    def columns(self, query: str | None, run: str | None) -> str | None:
        if query is None or self.find(query, run) is None:
            return None
        return str(self._active.get(self._uuid(query)).analyzedPlan().schema().json())

    def is_repeatable(self, query: str | None, run: str | None) -> bool:
        if query is None or self.find(query, run) is None:
            return False
        return is_repeatable(self._active.get(self._uuid(query)).analyzedPlan())

    def _checkpoint(self, resolved: str) -> str:
        if self._given is None:
            return resolved
        (system, place), (real_system, real_place) = file_system(self._given), file_system(resolved)
        if (system.type_name, place) != (real_system.type_name, real_place):
            raise BadConfigError(
                f"checkpoint_location={self._given!r} is not the checkpoint of the query, which is {resolved!r}. The wrong "
                "commit log would decide which messages are parked. Pass the path or URI of the option checkpointLocation, or "
                "leave checkpoint_location out."
            )
        return self._given


class _ConnectQueries:
    """Queries of a session of Spark Connect, in the client or in a worker on the server."""

    def __init__(self, spark: SparkSession, checkpoint_location: str) -> None:
        self._spark, self._checkpoint = spark, checkpoint_location

    def run_of_batch(self, batch: SparkSession) -> str | None:  # noqa: ARG002
        return None

    def of_batch(self, batch: SparkSession) -> RunningQuery | None:
        query = self._query_of_checkpoint()
        found = self.find(query)
        if found is None:
            raise BadConfigError(
                f"checkpoint_location={self._checkpoint!r} belongs to the query {query}, which this session doesn't run. The "
                "wrong commit log would decide which messages are parked. Pass the path or URI of the option "
                "checkpointLocation."
            )
        return found

    def find(self, query: str | None, run: str | None = None) -> RunningQuery | None:
        active = None if query is None else self._spark.streams.get(query)
        if query is None or active is None or not active.isActive or run not in (None, active.runId):
            return None
        return RunningQuery(query, str(active.runId), self._checkpoint)

    def columns(self, query: str | None, run: str | None) -> str | None:
        return None

    def is_repeatable(self, query: str | None, run: str | None) -> bool:
        return False

    def _query_of_checkpoint(self) -> str:
        """Read the id that Spark has written before the first micro-batch."""
        try:
            return str(json.loads(Folder(self._checkpoint).read("metadata"))["id"])
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise BadConfigError(
                f"checkpoint_location={self._checkpoint!r} has no readable file metadata ({exc}). So it can't be the "
                "checkpoint of a running query. Pass the path or URI of the option checkpointLocation, as Spark's server sees "
                "it."
            ) from exc
