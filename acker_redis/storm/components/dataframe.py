"""Spouts whose messages are rows in Spark. Only `Topology.run` can run them, and nothing here imports Spark."""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from acker_redis.errors import BadConfigError, BadTupleError, InvalidTopologyError
from acker_redis.spout.retry import RetryPolicy
from acker_redis.storm.components.spout import ReliableSpout
from acker_redis.storm.definition.streams import DEFAULT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class DataFrameSpout(ReliableSpout):
    """Spout whose messages are the rows of a DataFrame. Only their ids reach the driver. For `Topology.run`.

    A turn reads the rows of its messages from the DataFrame, and the executors send them to the bolts. A row that fails or
    times out is read and emitted again. After the last attempt it is a dead letter.

    Derive a class to hear of `ack` and `fail`. Both get the id of a row.

    Attributes:
        frame: the DataFrame.
        ids: source of the message ids.
        dead_letter_bytes: longest row that a dead letter keeps.

    >>> orders = DataFrameSpout(spark.read.parquet("orders"), ids="order").spec()
    >>> lines = DataFrameSpout(read_files(spark, "logs")).spec()
    """

    def __init__(
        self, frame: "DataFrame", *, ids: Any = None, retry: RetryPolicy | None = None, dead_letter_bytes: int = 0
    ) -> None:
        """Declare the columns as the fields of the default stream.

        Args:
            frame: one row per message. It must return the same rows each time it is computed, as files do. It is computed for
                the ids, and for the rows, which Spark then keeps until the run ends, unless you persisted it.
            ids: name of an integer column with message ids, distinct and not null; or `MessageIds.offsets(...)`, which
                derives them from partition and offset, and can keep the progress. None: ids are derived from the columns
                `file` and `row` of `read_files`.
            retry: policy for emitting again. None: that of the class.
            dead_letter_bytes: longest row that a dead letter keeps as JSON, in bytes; 0: only its id.

        Raises:
            BadConfigError: `frame` is not a DataFrame, or `retry` no policy.
            InvalidTopologyError: a column's name can't be that of a field.
        """
        fields = getattr(getattr(frame, "schema", None), "fields", None)
        if fields is None:
            raise BadConfigError(
                f"frame={frame!r:.100} is not a DataFrame. Pass one with a row per message, such as spark.read.parquet(path)."
            )
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise BadConfigError(
                f"retry={retry!r:.100} is not a RetryPolicy. Pass one, such as RetryPolicy(max_attempts=3)."
            )
        unfit = [field.name for field in fields if not field.name or any(char.isspace() for char in field.name)]
        if unfit:
            raise InvalidTopologyError(
                f"The columns {unfit} of a {type(self).__name__} have blanks in their names, so they can't be fields. Rename "
                "them."
            )
        self.frame, self.ids, self.dead_letter_bytes = frame, ids, dead_letter_bytes
        self.outputs = [f"{field.name} {field.dataType.simpleString()}" for field in fields]
        if retry is not None:
            self.retry = retry

    def next_tuple(self) -> None:
        """Emit the next row."""
        self._acker_out().emit_next()

    def emit(
        self,
        values: Sequence[Any],
        tup_id: Any = None,
        stream: str | None = DEFAULT,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None:
        """Refuse: the rows of the DataFrame are the only messages.

        Raises:
            BadTupleError: always.
        """
        raise BadTupleError(
            f"{type(self).__name__} can't emit other messages, because it reads all of them from its DataFrame. Unite the "
            "DataFrame with another one, or add a Spout."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy all but the DataFrame and its ids, which the task shares."""
        made = type(self).__new__(type(self))
        shared = {"frame": self.frame, "ids": self.ids}
        vars(made).update(copy.deepcopy({k: v for k, v in vars(self).items() if k not in shared}, memo) | shared)
        return made


def is_dataframe_spout(maker: object) -> bool:
    """Return True if a component is a `DataFrameSpout`, or its class."""
    return issubclass(maker if isinstance(maker, type) else type(maker), DataFrameSpout)
