"""Python data sources as sinks, whose writers must consume each partition to its end."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from acker_redis.errors import InexactPipelineError


def consuming(source: type[DataSource]) -> type[DataSource]:
    """Derive a data source whose writers must consume their partitions to the end."""

    class Consuming(source):  # type: ignore[valid-type, misc]
        @classmethod
        def name(cls) -> str:
            return f"{source.name()}_tracked"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            inner = source.writer(self, schema, overwrite)
            return (_ArrowWriter if isinstance(inner, DataSourceArrowWriter) else _RowWriter)(inner, source.name())

    return Consuming


class _Writer:
    def __init__(self, inner: Any, source: str) -> None:
        self.inner, self.source = inner, source

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.inner.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.inner.abort(messages)

    def _write(self, rows: Iterator[Any]) -> WriterCommitMessage:
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
