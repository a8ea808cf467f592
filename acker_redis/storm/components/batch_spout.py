"""Spouts whose messages are the rows of a stream's micro-batches. Only `Topology.run` can run them. No import of Spark."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from acker_redis.errors import BadConfigError
from acker_redis.spout.retry import RetryPolicy
from acker_redis.storm.components.dataframe import DataFrameSpout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class BatchSpout(DataFrameSpout):
    """Spout whose messages are the rows of a stream, one micro-batch of Structured Streaming after the other.

    `Topology.run` starts the streaming query, and stops it at its end. The spout is the query's `foreachBatch`: it emits the
    rows of a micro-batch, and Spark commits the batch once each of them was acked or is a dead letter. The run ends with the
    query, and the query with the run. An error of one is raised by the other.

    Guarantee: each message of a batch that Spark commits was acked or is a dead letter, no matter when the driver dies. The
    next run with this checkpoint begins with the batch that wasn't committed.

    Not guaranteed: that a message is processed once. A batch that wasn't committed is repeated whole, with the same rows, as
    by a transactional spout of Trident.

    Derive a class to hear of `ack` and `fail`. Both get the id of a row.

    Attributes:
        frame: the stream.
        checkpoint_location: path of the query's checkpoint.
        trigger: arguments of `DataStreamWriter.trigger`; None: Spark's default.
        ids: source of the message ids.
        dead_letter_bytes: longest row that a dead letter keeps.

    >>> orders = BatchSpout(stream, "orders/checkpoint", ids="order").spec()
    >>> once = BatchSpout(stream, "orders/checkpoint", ids="order", trigger={"availableNow": True}).spec()
    """

    def __init__(
        self,
        stream: "DataFrame",
        checkpoint_location: str,
        *,
        ids: Any = None,
        trigger: Mapping[str, Any] | None = None,
        retry: RetryPolicy | None = None,
        dead_letter_bytes: int = 0,
    ) -> None:
        """Declare the columns as the fields of the default stream.

        Args:
            stream: DataFrame of a stream, one row per message, such as `spark.readStream.format("kafka").load()`.
            checkpoint_location: path or URI of the query's option `checkpointLocation`. Use it for this spout only.
            ids: name of an integer column with message ids, not null and distinct within a micro-batch; or
                `MessageIds.offsets(...)`, without `offset_file`. None: ids are derived from the
                columns `file` and `row`.
            trigger: arguments of `DataStreamWriter.trigger`, such as `{"availableNow": True}`, with which the run ends once
                all that is there was processed. None: a micro-batch begins as soon as the last one is done.
            retry: policy for emitting again. None: that of the class. The stream waits for the last attempt of a row.
            dead_letter_bytes: longest row that a dead letter keeps as JSON, in bytes; 0: only its id.

        Raises:
            BadConfigError: `stream` is not a stream, `checkpoint_location` no path, `trigger` no mapping, or `retry` no
                policy.
            InvalidTopologyError: a column's name can't be that of a field.
        """
        if getattr(stream, "isStreaming", None) is not True:
            raise BadConfigError(
                f"stream={stream!r:.100} is not the DataFrame of a stream, so it has no micro-batches. Pass one, such as "
                "spark.readStream.table(name), or use DataFrameSpout."
            )
        super().__init__(stream, ids=ids, retry=retry, dead_letter_bytes=dead_letter_bytes)
        if not isinstance(checkpoint_location, str) or not checkpoint_location:
            raise BadConfigError(
                f"checkpoint_location={checkpoint_location!r:.100} is not a path. A restart finds its place in the stream "
                "there. Pass the path of a folder."
            )
        if trigger is not None and not isinstance(trigger, Mapping):
            raise BadConfigError(
                f"trigger={trigger!r:.100} is not a dict of arguments. Pass those of DataStreamWriter.trigger, such as "
                '{"availableNow": True}.'
            )
        self.checkpoint_location = checkpoint_location
        self.trigger = None if trigger is None else dict(trigger)
