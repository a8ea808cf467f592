"""Settings of output once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from acker_redis.errors import BadConfigError
from acker_redis.model.arrays import Int64Array
from acker_redis.publishing.files import LocalFiles, local_folder, short_name
from acker_redis.publishing.log_folder import LocalLogFolder
from acker_redis.publishing.messages import MessageNames
from acker_redis.publishing.publish_log import PublishLog
from acker_redis.publishing.records import Owner
from acker_redis.spark.emission.once_output import OnceOutput
from acker_redis.spark.runtime.jvm import java_context
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.spout.spout import Spout

_DEFAULT_FS = "fs.defaultFS"


@dataclass(frozen=True)
class Once:
    """Let each message's rows be in the tables once: those of one attempt.

    The rows wait in a stage until a log has accepted their messages. Then they are moved into the tables.

    Attributes:
        location: folder of the log and the stage, on the file system of the tables, and in none of them.
        data: name of the set of messages, such as a day. Each set has a log of its own.
    """

    location: str
    data: str

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            BadConfigError: one is invalid.
        """
        if not isinstance(self.location, str) or not self.location:
            raise BadConfigError(f"Once(location={self.location!r}) is no folder. Pass the path of one.")
        if not isinstance(self.data, str) or not self.data or not set(self.data) <= _NAME_CHARS or self.data[0] in ".-":
            raise BadConfigError(
                f"Once(data={self.data!r}) can't be the name of a folder. Use letters, digits, dots, dashes and underscores, "
                "such as '2026-11-27'."
            )

    def check(self, spark: SparkSession, given: Mapping[str, bool]) -> None:
        """Check that a run or stream can write once.

        Args:
            spark: its session.
            given: names of settings that can't be combined with this, and whether they are set.

        Raises:
            BadConfigError: it can't.
        """
        given = {**given, "Spark Connect": is_connect(spark)}
        if refused := [name for name, is_given in given.items() if is_given]:
            raise BadConfigError(
                f"once= can't be combined with {', '.join(refused)}. Its log decides alone which messages are done. Remove "
                "one of them."
            )
        default = str(java_context(spark.sparkContext).hadoopConfiguration().get(_DEFAULT_FS, "file:///"))
        if not default.startswith("file:"):
            raise BadConfigError(
                f"once= can't write to {default}, where paths without a scheme are. It needs local disks as yet. Set "
                "spark.hadoop.fs.defaultFS to file:///."
            )

    def open(self, spout: Spout, id_columns: Sequence[str], names: Callable[[Int64Array], MessageNames]) -> OnceOutput:
        """Open the log for a run that holds its lane. `names` are the lasting names of messages, by id.

        Raises:
            BadConfigError: the log belongs to another app or spout.
            DamagedDataError: the log can't be read.
        """
        location = local_folder(self.location, "The publish log") / self.data
        log = PublishLog(LocalLogFolder(location))
        files = LocalFiles(short_name(str(location), None))
        owner = Owner(spout.acker.config.app, spout.spout_id, tuple(id_columns))
        output = OnceOutput(spout, log, files, location, names, owner, spout.retry.outage_secs)
        output.begin()
        spout.state.letter_log = output
        return output


_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
