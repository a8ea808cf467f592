"""Settings of output once: the log of a run or stream that has each message's rows in the tables once."""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from acker_redis.errors import BadConfigError
from acker_redis.model.arrays import Int64Array
from acker_redis.publishing.locations import folder_at, location_below, whole_location
from acker_redis.publishing.log_folder import SKIPPED, STAGE
from acker_redis.publishing.messages import MessageNames
from acker_redis.publishing.object_store import is_in_object_store
from acker_redis.publishing.publish_log import PublishLog
from acker_redis.publishing.records import Owner
from acker_redis.spark.emission.once_letters import OnceLetters
from acker_redis.spark.emission.once_output import OnceOutput
from acker_redis.spark.emission.once_tables import OnceTables
from acker_redis.spark.emission.run_log import RunLog
from acker_redis.spark.runtime.jvm import java_context, java_static
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.spout.spout import Spout


@dataclass(frozen=True)
class Once:
    """Log that decides which messages' rows are in the tables, so that each table has the rows of one attempt of each.

        once = Once("logs/orders", data="2026-11-27")
        run_tracked(orders, pipeline, acker=acker, ids="order", once=once)

    The rows of an emission wait in a stage folder. The driver leaves out those of failed messages, and puts one record into
    the log, which accepts the others. Then it moves their files into the tables, and acks. A run that finds messages in the
    log acks them without processing them. A run whose log has a newer writer ends with `FencedError`.

    Guarantee: readers of a table see the rows of one attempt of each acked message, and no others: none of a failed attempt,
    of a dead letter or of a run that was killed. This holds if Redis loses everything, too. Not guaranteed: one moment at
    which all tables get their rows; that calls to the outside happen once; anything after the log was lost or set back, which
    a start notices if the tables still have its newest files.

    Attributes:
        location: folder of the log and the stage, on the file system of the tables, and in none of them. Executors write
            there. A relative path is in the present folder of this process. Relative paths of tables are Spark's: in the
            folder in which its JVM began. For tables of Iceberg and stores of yours, it may be a folder of an object store,
            such as `s3://bucket/logs/orders`, with the extra `object-stores`.
        data: name of the set of messages, such as a day. Each set has a log of its own, in the folder of this name. None: the
            log has all messages that will ever come, so no two of them may have the same id, or partition and offset.
        ids_never_repeat: whether you promise that no two messages ever have the same id, or the same partition and offset.
        reopen_dead: whether messages that earlier runs made dead letters run again at this start, with all attempts, if the
            source still has them. A letter is deleted once its message was acked or has a new letter. Only for runs.

    Raises:
        BadConfigError: one is out of range or of the wrong type.

    >>> Once("/logs/orders", data="2026-11-27").data
    '2026-11-27'
    """

    location: str | os.PathLike[str]
    data: str | None = None
    ids_never_repeat: bool = False
    reopen_dead: bool = False

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            BadConfigError: one is invalid.
        """
        if not isinstance(self.location, (str, os.PathLike)) or not os.fspath(self.location):
            raise BadConfigError(f"Once(location={self.location!r}) is no folder. Pass the path of one.")
        # At once, because a later start may be in another folder.
        location = whole_location(os.fspath(self.location))
        object.__setattr__(self, "location", location)
        if not is_in_object_store(location):
            path = Path(location)
            if file := next((parent for parent in (path, *path.parents) if parent.is_file()), None):
                raise BadConfigError(f"Once(location={location!r}): {file} is a file. Pass the path of a folder.")
        if self.data is not None and not _is_folder_name(self.data):
            raise BadConfigError(
                f"Once(data={self.data!r}) can't be the name of the log's folder. Use a text of letters, digits, dots, dashes "
                f"and underscores, such as '2026-11-27'. It has up to {_LONGEST_NAME} of them, begins with no dot or dash, "
                f"and isn't {STAGE!r} or {SKIPPED!r}."
            )
        if not isinstance(self.ids_never_repeat, bool):
            raise BadConfigError(
                f"Once(ids_never_repeat={self.ids_never_repeat!r}) is no bool. An id that repeats loses rows. Set "
                "it to True or False."
            )
        if not isinstance(self.reopen_dead, bool):
            raise BadConfigError(
                f"Once(reopen_dead={self.reopen_dead!r}) is no bool. It decides whether dead messages run again. Set it to "
                "True or False."
            )


def check_once(call: str, once: object) -> Once | None:
    """Return the argument `once` of `call`, such as `run_tracked`.

    Raises:
        BadConfigError: it is neither a `Once` nor None.
    """
    if once is None or isinstance(once, Once):
        return once
    raise BadConfigError(f"{call}: once={once!r} is no Once. Pass Once(location, data=...), or omit it.")


def check_ids(once: Once, id_column: str | None, *, is_stream: bool) -> None:
    """Check that the log can tell a message from all others.

    Args:
        once: settings of the log.
        id_column: column with the ids; None: partition and offset name a message.
        is_stream: whether the messages are those of a stream, which never ends, so that `data` doesn't tell them apart.

    Raises:
        BadConfigError: it can't, or a stream is to run dead messages again, which it doesn't have.
    """
    if is_stream and once.reopen_dead:
        raise BadConfigError(
            "Once(reopen_dead=True) is for runs. A stream doesn't get the messages of its dead letters again. Ask for "
            "their replay by acker.dead_letters.replay()."
        )
    if once.ids_never_repeat:
        return
    if is_stream and id_column is not None:
        raise BadConfigError(
            f"In a stream, once= needs ids that never repeat, and those of the column {id_column!r} may. A message with "
            "the id of an earlier one would be acked, and its rows would be in no table. Use MessageIds.offsets(...), or "
            "promise it by Once(..., ids_never_repeat=True)."
        )
    if not is_stream and once.data is None:
        raise BadConfigError(
            "Once(data=None) doesn't name the messages of this run, and those of another may have the same ids. They "
            "would be acked, and their rows would be in no table. Set data=, such as '2026-11-27', or promise that ids "
            "never repeat by ids_never_repeat=True."
        )


def check_session(spark: SparkSession, given: Mapping[str, bool]) -> None:
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


def open_output(
    once: Once,
    spark: SparkSession,
    spout: Spout,
    id_columns: Sequence[str],
    names: Callable[[Int64Array], MessageNames],
) -> OnceOutput:
    """Open the log for a run that holds its lane.

    Args:
        once: settings of the log.
        spark: session of the run.
        spout: its spout.
        id_columns: columns that name a message.
        names: function of message ids to the lasting names of messages.

    Raises:
        BadConfigError: the log belongs to another app or spout.
        DamagedDataError: the log can't be read.
    """
    root = os.fspath(once.location)
    location = location_below(root, once.data or "")
    folder = folder_at(location)
    owner = Owner(spout.acker.config.app, spout.spout_id, tuple(id_columns))
    run = RunLog(spout, PublishLog(folder), location, names, spout.retry.outage_secs)
    run.wait_for(folder.check)
    stages = Path(tempfile.mkdtemp(prefix=_STAGES)) if is_in_object_store(root) else Path(location, STAGE)
    tables = OnceTables(spark, run, _folder_of_jvm(spark), root, stages)
    output = OnceOutput(run, OnceLetters(run), tables, owner)
    output.begin()
    spout.state.letter_log = output.letters
    return output


_STAGES = "acker-redis-stages-"
_LONGEST_NAME = 200
_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def _folder_of_jvm(spark: SparkSession) -> Path:
    """Return the folder in which Spark has relative paths. It stays the same when this process changes its own."""
    context = spark.sparkContext
    conf = java_context(context).hadoopConfiguration()
    disk = java_static(context, "org.apache.hadoop.fs.FileSystem", "getLocal")(conf)
    return Path(str(disk.getWorkingDirectory().toUri().getPath()))


def _is_folder_name(name: object) -> bool:
    """Return True if a folder of a log can have this name. Only the log of all messages has a stage beside the others."""
    if not isinstance(name, str) or not name or name in (STAGE, SKIPPED):
        return False
    return set(name) <= _NAME_CHARS and name[0] not in ".-" and len(name) <= _LONGEST_NAME
