"""Find out whether files of messages come or go during a run whose ids number rows in the order of files."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis.errors import InexactPipelineError
from acker_redis.spark.runtime.jvm import java_static
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.spark.sql import quoted


class NumberedFiles:
    """The files of messages, as Spark lists them for a job.

    Spark lists a table of the catalog for each job, and a folder for each request of Spark Connect. Files below cached rows
    aren't looked at.
    """

    def __init__(self, messages: DataFrame, column: str) -> None:
        """List the files.

        Args:
            messages: the messages.
            column: name of the column with ids.
        """
        self._messages, self._column = messages, column
        self._before = self._listed()

    def check(self) -> None:
        """Check that the files are the same as at the start. A later listing can't be older than that of a job before it.

        Raises:
            InexactPipelineError: they aren't.
        """
        now = self._listed()
        if now != self._before:
            raise InexactPipelineError(
                f"The messages had {self._before[0]:,} files when the run began, and have {now[0]:,} now, or other ones. The "
                f"ids in column {self._column!r} number rows in the order of files, so they belong to other rows now. Nothing "
                "of this emission was acked, but sinks may have its rows. Call localCheckpoint() or checkpoint() on the frame "
                "with the ids, or derive the ids from the data."
            )

    def _listed(self) -> tuple[int, int]:
        """Return the number of files, and a hash of their names."""
        frame = self._messages.select(F.col(quoted(self._column)))  # another frame, which Spark plans anew
        if is_connect(frame.sparkSession):
            files = frame.inputFiles()
        else:  # as one text, because py4j passes arrays on name by name
            names = frame._jdf.inputFiles()  # noqa: SLF001
            wrap = java_static(
                frame.sparkSession.sparkContext, "scala.collection.immutable.ArraySeq", "unsafeWrapArray"
            )
            files = str(wrap(names).mkString("\n")).splitlines()
        return len(files), hash(tuple(sorted(files)))
