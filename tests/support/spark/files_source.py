"""Python data sources that write nothing but counts, and fail as told."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType


@dataclass
class Count(WriterCommitMessage):
    rows: int


class RowsToFiles(DataSource):
    """Counts rows; the sum of those of all its commits it writes into `committed`. May fail as told."""

    @classmethod
    def name(cls) -> str:
        return "rows_to_files"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return FileWriter(Path(self.options["folder"]), self.options.get("fail", ""), schema.names)


class FileWriter(DataSourceWriter):
    def __init__(self, folder: Path, fail: str, names: list[str]) -> None:
        self.folder, self.fail, self.names = folder, fail, names

    def write(self, iterator: Iterator[Row]) -> Count:
        rows = list(iterator)
        assert all(row.__fields__ == self.names for row in rows)
        if self.fail == "write" and any(row["id"] == 0 for row in rows):
            raise OSError("disk full")
        return Count(len(rows))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        once = self.folder / "failed"
        if self.fail == "commit" or (self.fail == "first commit" and not once.exists()):
            once.touch()
            raise OSError("no commit")
        committed = self.folder / "committed"
        before = int(committed.read_text()) if committed.exists() else 0
        committed.write_text(str(before + sum(m.rows for m in messages if isinstance(m, Count))))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        (self.folder / "aborted").write_text(str(sum(m.rows for m in messages if isinstance(m, Count))))


class BatchesToFiles(RowsToFiles):
    @classmethod
    def name(cls) -> str:
        return "batches_to_files"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(Path(self.options["folder"]), self.options.get("fail", ""), schema.names)


class BatchWriter(FileWriter, DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Count:
        rows = 0
        for batch in iterator:
            assert batch.schema.names == self.names
            rows += batch.num_rows
        return Count(rows)
