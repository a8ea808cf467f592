"""The session of a query's micro-batches, set up for emissions once instead of by each micro-batch."""

from contextlib import ExitStack

from pyspark.sql import DataFrame, SparkSession

from acker_redis.spark.runtime.jobs import metrics_kept
from acker_redis.spark.runtime.sessions import in_session


class BatchSession:
    """Session that Spark clones for each start of a query."""

    def __init__(self) -> None:
        """Wait for the first micro-batch."""
        self._session: SparkSession | None = None
        self._set_up = ExitStack()

    def adopt(self, batch: DataFrame) -> DataFrame:
        """Return a micro-batch with the known object for its session. A new session is set up, until `close`."""
        if self._session is not None:
            batch = in_session(batch, self._session)
        if batch.sparkSession is not self._session:
            self.close()
            self._set_up.enter_context(metrics_kept(batch.sparkSession))
            self._session = batch.sparkSession
        return batch

    def close(self) -> None:
        """Restore the session's settings, if it still exists."""
        self._set_up.close()
