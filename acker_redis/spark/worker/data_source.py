"""Python data sources as sinks, whose writers must consume each partition to its end."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from acker_redis.errors import InexactPipelineError
from acker_redis.spark.worker.failures import naming


def consuming(source: type[DataSource], component: str) -> type[DataSource]:
    """Derive a data source whose writers must consume their partitions to the end.

    Args:
        source: the user's data source.
        component: name of the sink, for the errors of its writers.
    """

    class Consuming(source):  # type: ignore[valid-type, misc]
        @classmethod
        def name(cls) -> str:
            return f"{source.name()}_tracked"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            inner = source.writer(self, schema, overwrite)
            return (_ArrowWriter if isinstance(inner, DataSourceArrowWriter) else _RowWriter)(
                inner, source.name(), component
            )

    return Consuming


class _Writer:
    def __init__(self, inner: Any, source: str, component: str) -> None:
        self.inner, self.source, self.component = inner, source, component

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.inner.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.inner.abort(messages)

    def _write(self, rows: Iterator[Any]) -> WriterCommitMessage:
        with naming(self.component):
            message: WriterCommitMessage = self.inner.write(rows)
        if any(not isinstance(row, pa.RecordBatch) or row.num_rows for row in rows):  # rows, or batches of them
            raise InexactPipelineError(
                f"data source {self.source!r}: its writer returned before it had consumed its partition. Nothing is acked. "
                "Iterate over all rows in it, and drop rows with tracker.filter before the sink."
            )
        return message


class _ArrowWriter(_Writer, DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator)


class _RowWriter(_Writer, DataSourceWriter):
    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return self._write(iterator)
