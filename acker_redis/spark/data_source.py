"""A Python data source as a sink: the user's own source, whose `commit` is followed by the acks.

The writers of all partitions hand their combined acks to the driver in their commit messages. They are sent as one batch,
under one token, after the source's own `commit` returned. So it makes no difference how rows were spread over partitions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from acker_redis import ids
from acker_redis.ids import UInt64Array
from acker_redis.spark import anchors as anchor_column
from acker_redis.spark import worker
from acker_redis.spark.anchors import Anchors
from acker_redis.spark.operators import OnWriteError, Origin
from acker_redis.spark.worker import Updates

NOT_WRITTEN = "the sink aborted its write"


@dataclass
class Acks(WriterCommitMessage):
    """What one partition wrote: the source's own message, and the acks of its rows, combined per root."""

    message: WriterCommitMessage | None
    roots: UInt64Array
    vals: UInt64Array


@dataclass(frozen=True)
class Committing:
    """Wraps a writer of the user's."""

    origin: Origin
    sink: str
    on_error: OnWriteError

    def message(self, message: WriterCommitMessage | None, acks: list[tuple[UInt64Array, UInt64Array]]) -> Acks:
        """A partition is written."""
        roots, vals = (np.concatenate([part[i] for part in acks]) if acks else np.array([], np.uint64) for i in (0, 1))
        return Acks(message, *ids.xor_by_root(roots, vals))

    def commit(self, inner: Any, messages: list[Acks | None]) -> None:
        """Everything is written: commit, then ack."""
        inner.commit([one and one.message for one in messages])
        updates = self._updates("commit")
        for one in messages:
            if one is not None:
                updates.ack(one.roots, one.vals)
        worker.send([updates], worker.Handed())

    def abort(self, inner: Any, messages: list[Acks | None]) -> None:
        """Some of it could not be written, or not committed."""
        inner.abort([one and one.message for one in messages])
        if self.on_error == "fail":
            updates = self._updates("abort")
            for one in messages:
                if one is not None and len(one.roots):
                    updates.fail(one.roots, NOT_WRITTEN)
            worker.send([updates], worker.Handed())

    def _updates(self, what: str) -> Updates:
        origin = self.origin
        token = f"{origin.run_id}:{origin.emission}:{self.sink}:{what}"
        return Updates(origin.url, origin.config, self.sink, token)


class _ArrowWriter(DataSourceArrowWriter):
    def __init__(self, inner: DataSourceArrowWriter, committing: Committing) -> None:
        self.inner, self.committing = inner, committing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Acks:
        acks: list[tuple[UInt64Array, UInt64Array]] = []

        def rows() -> Iterator[pa.RecordBatch]:
            for batch in iterator:
                anchors = Anchors.of(batch)
                acks.append((anchors.roots, anchors.edges))
                yield anchor_column.detach(batch)

        message = self.inner.write(rows())
        return self.committing.message(message, acks)

    def commit(self, messages: list[Acks | None]) -> None:  # type: ignore[override]
        self.committing.commit(self.inner, messages)

    def abort(self, messages: list[Acks | None]) -> None:  # type: ignore[override]
        self.committing.abort(self.inner, messages)


class _RowWriter(DataSourceWriter):
    def __init__(self, inner: DataSourceWriter, committing: Committing) -> None:
        self.inner, self.committing = inner, committing

    def write(self, iterator: Iterator[Row]) -> Acks:
        anchors: list[int] = []

        def rows() -> Iterator[Row]:
            for row in iterator:
                values = row.asDict()
                anchors.extend(values.pop(anchor_column.COLUMN) or ())
                yield Row(**values)

        message = self.inner.write(rows())
        pairs = np.array(anchors, np.int64).view(np.uint64).reshape(-1, 2)
        return self.committing.message(message, [(pairs[:, 0], pairs[:, 1])])

    def commit(self, messages: list[Acks | None]) -> None:  # type: ignore[override]
        self.committing.commit(self.inner, messages)

    def abort(self, messages: list[Acks | None]) -> None:  # type: ignore[override]
        self.committing.abort(self.inner, messages)


def acking(source: type[DataSource], committing: Committing) -> type[DataSource]:
    """The same data source, whose writer takes tracked rows and acks them after it committed."""

    class Acking(source):  # type: ignore[valid-type, misc]
        @classmethod
        def name(cls) -> str:
            return f"{source.name()}_acking_{committing.sink}"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            plain = StructType([field for field in schema.fields if field.name != anchor_column.COLUMN])
            inner = source.writer(self, plain, overwrite)
            wrapper = _ArrowWriter if isinstance(inner, DataSourceArrowWriter) else _RowWriter
            return wrapper(inner, committing)  # type: ignore[arg-type]

    return Acking
