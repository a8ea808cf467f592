"""Options of runs: message ids, replays, and the settings that all kinds of run share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pyspark.sql import DataFrame, SparkSession

from acker_redis.acker import Acker
from acker_redis.errors import BadConfigError
from acker_redis.kafka.consumer import check_group, consumer_settings
from acker_redis.model import ids
from acker_redis.model.arrays import Int64Array
from acker_redis.model.config import check_bound, check_finite
from acker_redis.model.types import MAX_PAYLOAD_BYTES
from acker_redis.spark import checks
from acker_redis.spark.emission.messages import Fetch
from acker_redis.spark.runs.once import Once, check_ids
from acker_redis.spark.runtime.executor_check import check_url
from acker_redis.spark.sources.files import FILE, ROW
from acker_redis.spout.offset_file import OffsetFile
from acker_redis.spout.retry import RetryPolicy
from acker_redis.store.dead_letter import DeadLetterFilter


@dataclass(frozen=True)
class MessageIds:
    """Source of message ids. Create it with `column` or `offsets`.

    Attributes:
        id_column: name of an integer column with message ids; None: ids are derived from partition and offset.
        partition: name of a string column.
        offset: name of an integer column.
        offset_file: file of completed offsets; None: they are not kept.
    """

    id_column: str | None
    partition: str
    offset: str
    offset_file: OffsetFile | None

    @classmethod
    def column(cls, name: str) -> Self:
        """Use an integer column with distinct ids and no nulls.

        Passing the column's name alone means the same.

            run_tracked(orders, pipeline, acker=acker, ids="order")

        Raises:
            BadConfigError: `name` is not a string, or empty.

        >>> MessageIds.column("order").id_column
        'order'
        """
        return cls(_column_name("MessageIds.column: name", name), FILE, ROW, None)

    @classmethod
    def offsets(cls, partition: str = FILE, offset: str = ROW, *, offset_file: OffsetFile | None = None) -> Self:
        """Derive ids from partition and offset, in a new column `message_id`.

        Rows of `read_files` have both columns. So have rows of Spark's source of Kafka, with the columns `topic`, `partition`
        and `offset`: there the partition is made of topic and number, as in `orders/0`.

            ids = MessageIds.offsets("topic_partition", "offset", offset_file=OffsetFile("progress.json"))
            run_tracked(messages, pipeline, acker=acker, ids=ids)

        Args:
            partition: name of a string column.
            offset: name of an integer column that counts within a partition.
            offset_file: file of completed offsets. A restarted run skips completed messages and repeats the rest under new
                roots. The run opens the file for the acker's app and these columns, and closes it at the end.

        Raises:
            BadConfigError: a name is not a string or is empty, or `offset_file` is not an `OffsetFile`.

        >>> MessageIds.offsets("topic_partition", "offset").partition
        'topic_partition'
        """
        _column_name("MessageIds.offsets: partition", partition)
        _column_name("MessageIds.offsets: offset", offset)
        if offset_file is not None and not isinstance(offset_file, OffsetFile):
            raise BadConfigError(
                f"MessageIds.offsets: offset_file={offset_file!r} is not an OffsetFile. Pass one, such as "
                'OffsetFile("progress.json").'
            )
        return cls(None, partition, offset, offset_file)


@dataclass(frozen=True)
class ReplayFrom:
    """Source from which failed messages are read again. Create it with `source`, `redis` or `fetch`.

    Attributes:
        max_bytes: longest message that is kept in Redis, in bytes; 0: none is kept.
        fetch_messages: function that returns messages by id; None: they are read from the DataFrame of the run.
    """

    max_bytes: int
    fetch_messages: Fetch | None = field(repr=False)

    @classmethod
    def source(cls) -> Self:
        """Read failed messages from the DataFrame of the run again.

        The DataFrame is computed again, and must return the same rows.

        >>> ReplayFrom.source().max_bytes
        0
        """
        return cls(0, None)

    @classmethod
    def redis(cls, *, max_bytes: int, else_fetch: Fetch | None = None) -> Self:
        """Keep exact copies of messages in Redis until they are done, and replay these.

            replay = ReplayFrom.redis(max_bytes=10_000)
            run_tracked(orders, pipeline, acker=acker, ids="order", replay=replay)

        Executors write the messages. If the app's `Limits.max_payload_bytes` is smaller than `max_bytes`, it applies.

        Args:
            max_bytes: longest message to keep, in bytes, at most 1 MiB. Longer messages are read from elsewhere.
            else_fetch: function that returns longer messages, as in `fetch`; None: they are read from the DataFrame of the
                run.

        Raises:
            BadConfigError: `max_bytes` is out of range, or `else_fetch` is not callable.

        >>> ReplayFrom.redis(max_bytes=10_000).max_bytes
        10000
        """
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or not 1 <= max_bytes <= MAX_PAYLOAD_BYTES:
            raise BadConfigError(
                f"ReplayFrom.redis: max_bytes={max_bytes!r} is not valid. Set it to the longest message to keep, in "
                f"bytes, from 1 to {MAX_PAYLOAD_BYTES}."
            )
        return cls(max_bytes, None if else_fetch is None else _fetch("ReplayFrom.redis: else_fetch", else_fetch))

    @classmethod
    def fetch(cls, fetch_messages: Fetch) -> Self:
        """Look up failed messages by id, for sources that can't be computed again.

            def fetch(message_ids):
                return orders.where(col("order").isin(message_ids))

            run_tracked(orders, pipeline, acker=acker, ids="order", replay=ReplayFrom.fetch(fetch))

        Args:
            fetch_messages: function of message ids that returns a DataFrame of these messages, with all their original
                columns. Messages it omits become dead letters with reason `lost`.

        Raises:
            BadConfigError: `fetch_messages` is not callable.

        >>> ReplayFrom.fetch(lambda message_ids: orders.where(col("order").isin(message_ids))).max_bytes
        0
        """
        return cls(0, _fetch("ReplayFrom.fetch", fetch_messages))


@dataclass(frozen=True)
class RunSettings:
    """Checked settings of any kind of run. `run_tracked` describes them."""

    acker: Acker
    executor_url: str | None = field(repr=False)  # may hold a password
    spout_id: int
    retry: RetryPolicy
    stop_if_broken: bool
    emit_timeout_secs: float | None
    max_spout_pending: int | None
    dead_letter_bytes: int

    def url(self, spark: SparkSession, *, is_needed: bool = False) -> str | None:
        """Return the URL of the acker's server for executors.

        An executor tries it if it is set explicitly, or if `is_needed`.

        Raises:
            BadConfigError: an executor can't reach the acker with it.
        """
        if self.executor_url is None and not is_needed:
            return self.acker.url
        return check_url(spark, self.acker.url if self.executor_url is None else self.executor_url, self.acker)


@dataclass(frozen=True)
class GroupSettings:
    """Checked consumer group of `TrackedBatches`, which describes it."""

    name: str
    client: dict[str, Any] = field(repr=False)  # may hold passwords


@dataclass(frozen=True)
class StreamSettings(RunSettings):
    """Checked settings of `TrackedBatches`, which describes them."""

    ids: MessageIds
    max_parked: int
    batch_wait_secs: float
    on_messages_done: Callable[[Int64Array], object] | None
    kafka_group: GroupSettings | None
    parked_columns: Mapping[str, str | None]
    once: Once | None = None

    def __post_init__(self) -> None:
        """Check that a log can tell the messages apart, if one decides.

        Raises:
            BadConfigError: it can't.
        """
        if self.once is not None:
            check_ids(self.once, self.ids.id_column, is_stream=True)


@dataclass(frozen=True)
class KafkaPolicies:
    """Checked settings of the records of `run_kafka`, which describes them."""

    on_lost: Literal["letter", "raise"]
    on_recreated: Literal["raise", "restart"]
    start: Literal["earliest", "latest"]
    group: str
    dead_letter_bytes: int
    max_pending_bytes: int

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            BadConfigError: one is not among its values, or out of range.
        """
        allowed = {
            "on_lost": ("letter", "raise"),
            "on_recreated": ("raise", "restart"),
            "start": ("earliest", "latest"),
        }
        for name, values in allowed.items():
            if (given := getattr(self, name)) not in values:
                raise BadConfigError(f"run_kafka: {name}={given!r} is unknown. Use {' or '.join(map(repr, values))}.")
        if self.max_pending_bytes is None:
            raise BadConfigError(
                "run_kafka: max_pending_bytes=None is no limit. Records would fill the memory. Set one."
            )
        check_bound("max_pending_bytes", self.max_pending_bytes, may_be_none=False)


_ENDLESS = ("run_kafka", "run_redis_stream")
"""Calls that need a bound, because messages would fill the memory."""


def run_settings(
    call: str,
    pipeline: object,
    *,
    acker: Acker,
    executor_url: str | None,
    spout_id: int,
    retry: RetryPolicy | None,
    stop_if_broken: bool,
    emit_timeout_secs: float | None,
    max_spout_pending: int | None,
    dead_letter_bytes: int,
    **callbacks: object,
) -> RunSettings:
    """Check the arguments of `call`, such as `run_tracked`.

    Raises:
        BadConfigError: an argument is out of range or of the wrong type.
        BadIdError: `spout_id` is out of range.
    """
    checks.check_run(call, pipeline, acker, retry)
    if executor_url is not None and not isinstance(executor_url, str):
        raise BadConfigError(
            f"{call}: executor_url={executor_url!r} is not a URL. Pass one, such as redis://server:6379/0."
        )
    if not isinstance(stop_if_broken, bool):
        raise BadConfigError(f"{call}: stop_if_broken={stop_if_broken!r} is not a bool. Set it to True or False.")
    if emit_timeout_secs is not None:
        check_finite("emit_timeout_secs", emit_timeout_secs)
        if not emit_timeout_secs:
            raise BadConfigError(
                f"emit_timeout_secs={emit_timeout_secs} is out of range. Use a number above 0, or None."
            )
    check_bound("max_spout_pending", max_spout_pending, may_be_none=call not in _ENDLESS)
    check_dead_letter_bytes(dead_letter_bytes)
    for name, callback in callbacks.items():
        if callback is not None and not callable(callback):
            raise BadConfigError(f"{call}: {name}={callback!r} is not callable. Pass a function, or omit it.")
    return RunSettings(
        acker, executor_url, ids.to_spout_id(spout_id), RetryPolicy() if retry is None else retry, stop_if_broken,
        emit_timeout_secs, max_spout_pending, dead_letter_bytes,
    )  # fmt: skip


def check_messages(messages: object) -> None:
    """Check that messages are a DataFrame.

    Raises:
        BadConfigError: they aren't.
    """
    if not isinstance(messages, DataFrame):
        raise BadConfigError(f"messages={messages!r:.100} is not a DataFrame. Pass one with a row per message.")


def check_endless(call: str, spark: object, stop: object) -> None:
    """Check the session and the event of a run that goes on until it is stopped.

    Raises:
        BadConfigError: one of them is of the wrong type.
    """
    if not callable(getattr(spark, "createDataFrame", None)):
        raise BadConfigError(f"{call}: spark={spark!r:.100} is not a SparkSession. Pass one as the first argument.")
    if not callable(getattr(stop, "is_set", None)):
        raise BadConfigError(
            f"{call}: stop={stop!r:.100} is not an event, so it can't end the run. Pass a threading.Event."
        )


def group_settings(
    call: str, kafka_group: str | None, kafka: Mapping[str, object] | None, ids: MessageIds
) -> GroupSettings | None:
    """Check the options `kafka_group` and `kafka`.

    Raises:
        BadConfigError: one of them is missing, or invalid; or message ids come from a column.
        PipelineError: confluent-kafka is not installed.
    """
    if kafka_group is None and kafka is None:
        return None
    if kafka_group is None or kafka is None:
        given, missing = ("kafka", "kafka_group") if kafka_group is None else ("kafka_group", "kafka")
        raise BadConfigError(
            f"{call}: {given} has no effect without {missing}. A commit needs the group and the brokers. Pass both, or none."
        )
    check_group(call, kafka_group)
    if ids.id_column is not None:
        raise BadConfigError(
            f"{call}: ids={ids.id_column!r} can't be used with kafka_group. Offsets are completed record by record, so the "
            "ids have to be those of records. Omit ids."
        )
    return GroupSettings(kafka_group, consumer_settings(kafka, kafka_group))


def check_dead_letter_bytes(longest: object) -> None:
    """Check the option `dead_letter_bytes`.

    Raises:
        BadConfigError: it is out of range.
    """
    if not isinstance(longest, int) or isinstance(longest, bool) or not 0 <= longest <= MAX_PAYLOAD_BYTES:
        raise BadConfigError(
            f"dead_letter_bytes={longest!r} is not valid. Set it to the longest message that a dead letter "
            f"keeps, in bytes, from 0 (none) to {MAX_PAYLOAD_BYTES}."
        )


def check_max_dead_letters(most: object, output: str) -> None:
    """Check the option `max_dead_letters`.

    Raises:
        BadConfigError: it is neither None, a number of messages nor a share of them; or the output is not a whole.
    """
    if most is None:
        return
    is_number = isinstance(most, int) and not isinstance(most, bool) and most >= 0
    if not is_number and not (isinstance(most, float) and 0 <= most < 1):
        raise BadConfigError(
            f"max_dead_letters={most!r} is neither a number nor a share of messages. Use an integer of 0 or more, or a float "
            "from 0.0 to below 1.0, such as 0.01."
        )
    if output != "whole":
        raise BadConfigError(
            f"max_dead_letters={most!r} has no effect with output={output!r}. Other messages are written before one becomes a "
            'dead letter. Check result.counts.dead_lettered, or use output="whole".'
        )


def check_only_dead_letters(wanted: object, output: str, ids: MessageIds) -> None:
    """Check the option `only_dead_letters`.

    Raises:
        BadConfigError: it is neither None nor a filter with a run id, or can't be combined with the output or the offset file.
    """
    if wanted is None:
        return
    if not isinstance(wanted, DeadLetterFilter):
        raise BadConfigError(
            f"only_dead_letters={wanted!r:.100} is not a DeadLetterFilter. Pass one, such as "
            'DeadLetterFilter(run_id="orders-of-monday").'
        )
    if wanted.run_id is None:
        raise BadConfigError(
            f"only_dead_letters={wanted!r:.100} names no run. Ids alone don't tell the messages of two sources apart, so "
            "letters of another source could be deleted. Set run_id, which is in each letter and in the result of its run."
        )
    if output == "whole":
        raise BadConfigError(
            'only_dead_letters can\'t be combined with output="whole". The rows of these messages alone would replace the '
            'whole output. Run all messages, or use output="by_message".'
        )
    if ids.offset_file is not None:
        raise BadConfigError(
            "only_dead_letters can't be combined with an offset_file. It has dead letters as done, so the run "
            "would skip them. Omit offset_file."
        )


def message_ids(call: str, ids: object) -> MessageIds:
    """Convert the option `ids`.

    Raises:
        BadConfigError: `ids` is neither a column name nor `MessageIds`.
    """
    if ids is None:
        return MessageIds.offsets()
    if isinstance(ids, MessageIds):
        return ids
    if isinstance(ids, str):
        return MessageIds.column(ids)
    hint = "Pass the file as MessageIds.offsets(offset_file=...)." if isinstance(ids, OffsetFile) else ""
    raise BadConfigError(
        f"{call}: ids={ids!r} is not a source of message ids. "
        + (hint or 'Pass the name of a column, such as "order", or MessageIds.offsets("file", "row").')
    )


def replay_from(call: str, replay: object) -> ReplayFrom:
    """Convert the option `replay`.

    Raises:
        BadConfigError: `replay` is not a `ReplayFrom`.
    """
    if replay is None:
        return ReplayFrom.source()
    if not isinstance(replay, ReplayFrom):
        raise BadConfigError(
            f"{call}: replay={replay!r} is not a ReplayFrom. Pass ReplayFrom.source(), "
            "ReplayFrom.redis(max_bytes=10_000) or ReplayFrom.fetch(function)."
        )
    return replay


def _column_name(option: str, name: object) -> str:
    if not isinstance(name, str) or not name:
        raise BadConfigError(f"{option}={name!r} is not a column name. Pass a non-empty string.")
    return name


def _fetch(option: str, given: Fetch) -> Fetch:
    if not callable(given):
        raise BadConfigError(
            f"{option}={given!r} is not callable. Pass a function of message ids that returns a DataFrame."
        )
    return given
