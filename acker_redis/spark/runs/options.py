"""Define each option of runs once: message ids, replays, and the settings that all kinds of run share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from pyspark.sql import SparkSession

from acker_redis.acker import Acker
from acker_redis.errors import BadConfigError
from acker_redis.model import ids
from acker_redis.model.arrays import Int64Array
from acker_redis.model.config import check_bound, check_finite
from acker_redis.model.types import MAX_PAYLOAD_BYTES
from acker_redis.spark.emission.messages import Fetch
from acker_redis.spark.protocol import arguments
from acker_redis.spark.runtime.executor_check import check_url
from acker_redis.spark.sources.files import FILE, ROW
from acker_redis.spout.offset_file import OffsetFile
from acker_redis.spout.retry import RetryPolicy


@dataclass(frozen=True)
class MessageIds:
    """Where the ids of messages come from. Make one with `column` or `offsets`.

    Attributes:
        id_column: integer column of message ids; None: they are made of partition and offset.
        partition: string column.
        offset: integer column.
        progress: file of completed offsets; None: there is none.
    """

    id_column: str | None
    partition: str
    offset: str
    progress: OffsetFile | None

    @classmethod
    def column(cls, name: str) -> Self:
        """Take ids from an integer column, distinct and not null. The column's name alone means the same.

            run_tracked(orders, pipeline, acker=acker, ids="order")

        Raises:
            BadConfigError: the name is no text.

        >>> MessageIds.column("order").id_column
        'order'
        """
        return cls(_column_name("MessageIds.column: name", name), FILE, ROW, None)

    @classmethod
    def offsets(cls, partition: str = FILE, offset: str = ROW, *, progress: OffsetFile | None = None) -> Self:
        """Make ids of partition and offset, in a column `message_id`. Rows of `read_files` have both.

            ids = MessageIds.offsets("topic_partition", "offset", progress=OffsetFile("progress.json"))
            run_tracked(messages, pipeline, acker=acker, ids=ids)

        Args:
            partition: string column.
            offset: integer column, counting within a partition.
            progress: file of completed offsets. A restarted run leaves out what is done, and repeats the
                rest under fresh roots. The file is opened for the acker's app and these columns, and closed at the end.

        Raises:
            BadConfigError: a name is no text, or `progress` no `OffsetFile`.

        >>> MessageIds.offsets("topic_partition", "offset").partition
        'topic_partition'
        """
        _column_name("MessageIds.offsets: partition", partition)
        _column_name("MessageIds.offsets: offset", offset)
        if progress is not None and not isinstance(progress, OffsetFile):
            raise BadConfigError(
                f"MessageIds.offsets: progress={progress!r} is no OffsetFile, so completed offsets could not be kept in it. "
                'Give one, such as OffsetFile("progress.json")'
            )
        return cls(None, partition, offset, progress)


@dataclass(frozen=True)
class ReplayFrom:
    """Where messages that failed are read again from. Make one with `source`, `redis` or `fetch`.

    Attributes:
        max_bytes: longest message that is kept in Redis; 0: none is.
        fetch_messages: gives messages by their ids; None: they are read from the DataFrame of the run.
    """

    max_bytes: int
    fetch_messages: Fetch | None = field(repr=False)

    @classmethod
    def source(cls) -> Self:
        """Read them from the DataFrame of the run, which is computed again; it has to give the same rows then.

        >>> ReplayFrom.source().max_bytes
        0
        """
        return cls(0, None)

    @classmethod
    def redis(cls, *, max_bytes: int, else_fetch: Fetch | None = None) -> Self:
        """Keep messages in Redis while they are not done, and replay them bit by bit as they were.

            replay = ReplayFrom.redis(max_bytes=10_000)
            run_tracked(orders, pipeline, acker=acker, ids="order", replay=replay)

        Executors write them there. The app's `Limits.max_payload_bytes` counts, too, where it is smaller.

        Args:
            max_bytes: longest message to keep, at most 1 MiB. Longer ones are read again from elsewhere.
            else_fetch: gives these, as in `fetch`; None: the DataFrame of the run does.

        Raises:
            BadConfigError: `max_bytes` is out of range, or `else_fetch` can't be called.

        >>> ReplayFrom.redis(max_bytes=10_000).max_bytes
        10000
        """
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or not 1 <= max_bytes <= MAX_PAYLOAD_BYTES:
            raise BadConfigError(
                f"ReplayFrom.redis: max_bytes={max_bytes!r} keeps no message. Give the longest message to keep, in bytes, "
                f"from 1 to {MAX_PAYLOAD_BYTES}"
            )
        return cls(max_bytes, None if else_fetch is None else _fetch("ReplayFrom.redis: else_fetch", else_fetch))

    @classmethod
    def fetch(cls, fetch_messages: Fetch) -> Self:
        """Look them up by their ids, where the source can't be computed again.

            def fetch(message_ids):
                return orders.where(col("order").isin(message_ids))

            run_tracked(orders, pipeline, acker=acker, ids="order", replay=ReplayFrom.fetch(fetch))

        Args:
            fetch_messages: called with message ids, gives the DataFrame to replay them from, with all columns they had. A
                message it leaves out is gone: it becomes a dead letter, as `lost`.

        Raises:
            BadConfigError: it can't be called.

        >>> ReplayFrom.fetch(lambda message_ids: orders.where(col("order").isin(message_ids))).max_bytes
        0
        """
        return cls(0, _fetch("ReplayFrom.fetch", fetch_messages))


@dataclass(frozen=True)
class RunSettings:
    """Hold the settings that every kind of run has, checked; `run_tracked` describes them."""

    acker: Acker
    executor_url: str | None = field(repr=False)  # may hold a password
    spout_id: int
    retry: RetryPolicy
    stop_if_all_fail: bool
    emit_timeout_secs: float | None
    max_spout_pending: int | None
    dead_letter_bytes: int

    def url(self, spark: SparkSession, *, is_needed: bool = False) -> str | None:
        """Give the acker's server as executors reach it; ask an executor where that may be another, or where it is needed.

        Raises:
            BadConfigError: an executor does not find the acker there.
        """
        if self.executor_url is None and not is_needed:
            return self.acker.url
        return check_url(spark, self.acker.url if self.executor_url is None else self.executor_url, self.acker)


@dataclass(frozen=True)
class StreamSettings(RunSettings):
    """Hold the settings of `TrackedBatches`, checked, which describes them."""

    ids: MessageIds
    max_parked: int
    batch_wait_secs: float
    on_messages_done: Callable[[Int64Array], object] | None


def run_settings(
    call: str,
    pipeline: object,
    *,
    acker: Acker,
    executor_url: str | None,
    spout_id: int,
    retry: RetryPolicy | None,
    stop_if_all_fail: bool,
    emit_timeout_secs: float | None,
    max_spout_pending: int | None,
    dead_letter_bytes: int,
    **callbacks: object,
) -> RunSettings:
    """Check what a call of this name was given.

    Raises:
        BadConfigError: something is out of range, or of another type.
        BadIdError: the spout_id is out of range.
    """
    arguments.check_run(call, pipeline, acker, retry)
    if executor_url is not None and not isinstance(executor_url, str):
        raise BadConfigError(
            f"{call}: executor_url={executor_url!r} is no URL. Give one, such as redis://server:6379/0"
        )
    if not isinstance(stop_if_all_fail, bool):
        raise BadConfigError(
            f"{call}: stop_if_all_fail={stop_if_all_fail!r} is neither True nor False. Give one of these"
        )
    if emit_timeout_secs is not None:
        check_finite("emit_timeout_secs", emit_timeout_secs)
        if not emit_timeout_secs:
            raise BadConfigError(f"emit_timeout_secs={emit_timeout_secs}: give a time above 0, or None")
    check_bound("max_spout_pending", max_spout_pending)
    is_number = isinstance(dead_letter_bytes, int) and not isinstance(dead_letter_bytes, bool)
    if not is_number or not 0 <= dead_letter_bytes <= MAX_PAYLOAD_BYTES:
        raise BadConfigError(
            f"dead_letter_bytes={dead_letter_bytes!r}: give the longest message that a dead letter keeps, in bytes; at most "
            f"{MAX_PAYLOAD_BYTES}, and 0 for none"
        )
    for name, callback in callbacks.items():
        if callback is not None and not callable(callback):
            raise BadConfigError(f"{call}: {name}={callback!r} can't be called. Give a function, or leave it out")
    return RunSettings(
        acker, executor_url, ids.to_spout_id(spout_id), RetryPolicy() if retry is None else retry, stop_if_all_fail,
        emit_timeout_secs, max_spout_pending, dead_letter_bytes,
    )  # fmt: skip


def message_ids(call: str, ids: object) -> MessageIds:
    """Read the option `ids`.

    Raises:
        BadConfigError: it names no message ids.
    """
    if ids is None:
        return MessageIds.offsets()
    if isinstance(ids, MessageIds):
        return ids
    if isinstance(ids, str):
        return MessageIds.column(ids)
    hint = ". Give it as progress: MessageIds.offsets(progress=...)" if isinstance(ids, OffsetFile) else ""
    raise BadConfigError(
        f"{call}: ids={ids!r} names no message ids"
        + (hint or '. Give the name of a column, such as "order", or MessageIds.offsets("file", "row")')
    )


def replay_from(call: str, replay: object) -> ReplayFrom:
    """Read the option `replay`.

    Raises:
        BadConfigError: it names no place to replay from.
    """
    if replay is None:
        return ReplayFrom.source()
    if not isinstance(replay, ReplayFrom):
        raise BadConfigError(
            f"{call}: replay={replay!r} does not say where messages are read again from. Give ReplayFrom.source(), "
            "ReplayFrom.redis(max_bytes=10_000) or ReplayFrom.fetch(function)"
        )
    return replay


def _column_name(option: str, name: object) -> str:
    if not isinstance(name, str) or not name:
        raise BadConfigError(f"{option}={name!r} is no column's name. Give it as a text")
    return name


def _fetch(option: str, given: Fetch) -> Fetch:
    if not callable(given):
        raise BadConfigError(
            f"{option}={given!r} can't be called. Give a function of message ids that gives a DataFrame"
        )
    return given
