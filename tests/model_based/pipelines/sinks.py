"""Sinks: how rows are written, and what is really there afterwards. Some can't write half of the rows."""

import json
import os
import pickle
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tests.model_based.pipelines.data import Value, comparable
from tests.model_based.pipelines.faults import Away, Fault
from tests.model_based.pipelines.operators import Playing

Found = Counter[Value]
"""How often each row is there."""


@dataclass(frozen=True)
class Sink:
    """The end of a way."""

    def write(self, playing: Playing, frame: DataFrame, folder: Path) -> None:
        """Run the tracker's action."""
        raise NotImplementedError

    def read(self, folder: Path) -> Found:
        """What is there."""
        raise NotImplementedError


@dataclass(frozen=True)
class Files(Sink):
    """`tracker.write` to parquet, JSON or a table, or `write_dataframe`."""

    form: str

    def write(self, playing: Playing, frame: DataFrame, folder: Path) -> None:
        tracker, path = playing.tracker, str(folder)
        if self.form == "with":
            tracker.write_dataframe(frame, lambda rows: rows.write.mode("append").parquet(path))
        elif self.form == "table":
            name = f"s_{playing.tracker.run_id}_{folder.parent.name}_{folder.name}"
            tracker.write(frame, lambda writer: writer.mode("append").option("path", path).saveAsTable(name))
        elif self.form == "json":
            tracker.write(frame, lambda writer: writer.mode("append").json(path))
        else:
            tracker.write(frame, lambda writer: writer.mode("append").parquet(path))

    def read(self, folder: Path) -> Found:
        if self.form == "json":
            lines = (line for file in folder.glob("part-*") for line in file.read_text().splitlines())
            return Counter(comparable(json.loads(line)) for line in lines)
        return _from_parquet(folder.glob("part-*"))


@dataclass(frozen=True)
class Blocked(Sink):
    """`tracker.write_dataframe`, of which the job fails at its first row; the messages of its rows fail."""

    def write(self, playing: Playing, frame: DataFrame, folder: Path) -> None:
        playing.tracker.write_dataframe(
            frame, lambda rows: rows.selectExpr("raise_error('full')").collect(), on_error="fail"
        )

    def read(self, folder: Path) -> Found:
        return Counter()


@dataclass(frozen=True)
class _WritePartition:
    sink: "Partitions"
    emission: int
    folder: str
    marks: str
    local: str

    def __call__(self, batches: Iterator[pa.RecordBatch], partition: int) -> None:
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        taken = []
        for number, batch in enumerate(batches):
            paths = batch.column("path").to_pylist()
            for path in paths:
                if self.sink.fault is not None:
                    self.sink.fault.strike(self.emission, path, self.marks, self.local)
                if self.sink.away is not None:
                    self.sink.away.ask(self.emission, path)
                if self.sink.refuses and zlib.crc32((path or "").encode()) % self.sink.refuses == 0:
                    raise OSError(f"row {path} can't be written")
            if self.sink.refuses == -1 and partition % 2 and number == 0:
                raise OSError("every second partition can't be written")
            taken.append(batch)
        if taken:
            file = folder / f".{partition}-{os.getpid()}"
            pq.write_table(pa.Table.from_batches(taken), file)
            file.replace(folder / f"part-{partition}")


@dataclass(frozen=True)
class Partitions(Sink):
    """`tracker.write_partitions`; a partition that can't be written is not there at all.

    Attributes:
        on_error: as there.
        refuses: a partition with one of so many rows can't be written; -1: every second can't; 0: all can.
        fault: strikes before the partition is written.
        away: the store is away before the partition is written.
    """

    on_error: str = "raise"
    refuses: int = 0
    fault: Fault | None = None
    away: Away | None = None

    def write(self, playing: Playing, frame: DataFrame, folder: Path) -> None:
        run = _WritePartition(self, playing.tracker.emission, str(folder), playing.marks, playing.local)
        playing.tracker.write_partitions(frame, run, on_error=self.on_error)  # type: ignore[arg-type]

    def read(self, folder: Path) -> Found:
        return _from_parquet(folder.glob("part-*"))


@dataclass
class _Written(WriterCommitMessage):
    file: str


class _Writer(DataSourceWriter):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self.folder, self.refuses = options["folder"], int(options["refuses"])

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        rows = []
        for row in iterator:
            if self.refuses and zlib.crc32((row["path"] or "").encode()) % self.refuses == 0:
                raise OSError(f"row {row['path']} can't be written")
            at = row["at"] and row["at"].astimezone(UTC)  # Spark gives it without a zone, as this process sees it
            rows.append({**row.asDict(), "at": at})
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{os.getpid()}-{random.SystemRandom().getrandbits(60)}"
        file.write_bytes(pickle.dumps(rows))
        return _Written(file.name)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        names = [one.file for one in messages if isinstance(one, _Written)]
        (Path(self.folder) / "manifest").write_text(json.dumps(names))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        pass


class Store(DataSource):
    """A Python data source: what it committed counts."""

    @classmethod
    def name(cls) -> str:
        return "store"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002
        return _Writer(dict(self.options), schema)


@dataclass(frozen=True)
class Source(Sink):
    """`tracker.write_data_source`."""

    refuses: int = 0

    def write(self, playing: Playing, frame: DataFrame, folder: Path) -> None:
        options = {"folder": str(folder), "refuses": str(self.refuses)}
        playing.tracker.write_data_source(frame, Store, options=options, on_error="fail" if self.refuses else "raise")

    def read(self, folder: Path) -> Found:
        manifest = folder / "manifest"
        names = json.loads(manifest.read_text()) if manifest.exists() else []
        return Counter(comparable(row) for name in names for row in pickle.loads((folder / name).read_bytes()))


def _from_parquet(files: Iterator[Path]) -> Found:
    found: Found = Counter()
    for file in files:
        table: Any = pq.read_table(file, partitioning=None)
        found.update(comparable(row) for row in table.to_pylist())
    return found


def draw(chance: random.Random, *, fails: bool) -> Sink:
    """Draw one; `fails`: whether it may fail messages."""
    choices: list[Callable[[], Sink]] = [
        *(lambda form=form: Files(form) for form in ("parquet", "parquet", "json", "table", "with")),
        Partitions,
        Partitions,
        Source,
    ]
    if fails:
        choices += [
            Blocked,
            lambda: Partitions("fail", chance.choice((-1, 2, 50))),
            lambda: Partitions("fail", chance.choice((-1, 2, 50))),
            lambda: Source(chance.choice((2, 1000))),
        ]
    return chance.choice(choices)()
