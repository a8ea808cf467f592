"""Random messages: nulls, duplicates, nested types, skew, wide rows. All frames of a pipeline have the same columns."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from acker_redis.spark.checks import arrow_schema

Row = dict[str, Any]
"""A row by column name. `path` says how it was derived from which messages, and tells nearly all rows apart."""

Value = tuple[Any, ...]
"""A row that can be compared and counted: the values in the order of their columns, whatever a sink made of them."""

COLUMNS = {
    "id": "bigint",
    "n": "bigint",
    "k": "string",
    "tags": "array<string>",
    "box": "struct<a: bigint, inner: array<bigint>>",
    "pad": "string",
    "at": "timestamp",
    "path": "string",
    "marks": "map<string, bigint>",
}

MONO = "monotonically_increasing_id()"
BY_PATH = "cast(row_number() OVER (ORDER BY path) AS bigint)"
BY_KEY = "cast(row_number() OVER (ORDER BY k) AS bigint)"

NUMBERED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "mono": lambda rows: rows.withColumn("id", F.expr(MONO)),
    "mono, shuffled later": lambda rows: rows.withColumn("id", F.expr(MONO)).repartition(3),
    "row_number by path": lambda rows: rows.withColumn("id", F.expr(BY_PATH)),
    "mono behind a shuffle, kept": lambda rows: rows.repartition(3).withColumn("id", F.expr(MONO)).localCheckpoint(),
    "mono behind kept rows": lambda rows: rows.repartition(3).localCheckpoint().withColumn("id", F.expr(MONO)),
}
"""Ways in which Spark may number the messages -> what they do. Each job gives the ids to the same rows."""

REFUSED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "mono behind repartition": lambda rows: rows.repartition(3).withColumn("id", F.expr(MONO)),
    "mono behind orderBy": lambda rows: rows.orderBy("k").withColumn("id", F.expr(MONO)),
    "mono behind distinct paths": lambda rows: rows.dropDuplicates(["path"]).withColumn("id", F.expr(MONO)),
    "row_number behind repartition": lambda rows: rows.repartition(3).withColumn("id", F.expr(BY_KEY)),
}
"""The same, but another job may give the ids to other rows."""

_BEGIN = datetime(1970, 1, 1, tzinfo=UTC)

_KEYS = ("b", "c", "", "1", "01", "it's", 'q"\\', "ü", None)


@dataclass(frozen=True)
class Data:
    """What messages look like, and how Spark gets them.

    Attributes:
        seed: of the rows.
        count: of messages.
        partitions: files that they are read from, of which some may be empty; 0: none, they are part of the plan.
        skew: share of the messages that have the same key.
        wide: longest text in a row.
        marks: whether there is a column of maps, which can't be compared, sorted or grouped by.
        in_range: whether the ids are a range. Otherwise most are, and some lie anywhere.
        numbered: way in which Spark numbers the messages; None: they have ids of their own.
    """

    seed: int
    count: int
    partitions: int
    skew: float
    wide: int
    marks: bool
    in_range: bool = False
    numbered: str | None = None

    @property
    def columns(self) -> list[str]:
        """Names of all columns."""
        return [name for name in COLUMNS if name != "marks" or self.marks]

    @property
    def schema(self) -> StructType:
        """Of all columns."""
        found = StructType.fromDDL(", ".join(f"{name} {COLUMNS[name]}" for name in self.columns))
        assert isinstance(found, StructType)
        return found

    def rows(self) -> list[Row]:
        """The messages."""
        chance = random.Random(self.seed)
        ids: set[int] = set()
        first = chance.choice([0, -40, chance.getrandbits(62), -(1 << 63)])
        while len(ids) < self.count:
            ids.add(first + len(ids) if self.in_range or chance.random() < 0.7 else chance.getrandbits(64) - (1 << 63))
        return [self._row(message, chance) for message in chance.sample(sorted(ids), self.count)]

    def _row(self, message: int, chance: random.Random) -> Row:
        maybe = chance.random() < 0.8
        row: Row = {
            "id": message,
            "n": None if chance.random() < 0.1 else chance.randrange(12),
            "k": "a" if chance.random() < self.skew else chance.choice(_KEYS),
            "tags": [chance.choice(("x", "y", "", None)) for _ in range(chance.randrange(4))] if maybe else None,
            "box": {"a": chance.choice((1, None)), "inner": chance.choice((None, [], [1, None, 3]))}
            if chance.random() < 0.8
            else None,
            "pad": "x" * chance.randrange(self.wide + 1),
            "at": None if message % 7 == 0 else _BEGIN + timedelta(seconds=message % (1 << 30)),
            "path": str(message),
            "marks": {chance.choice("pqr"): chance.choice((1, None)) for _ in range(chance.randrange(3))},
        }
        return {name: row[name] for name in self.columns}

    def frame(self, session: SparkSession, folder: Path) -> DataFrame:
        """The messages on Spark: the same rows whenever they are read, but for ids that are refused."""
        rows = self._frame(session, folder)
        return rows if self.numbered is None else {**NUMBERED, **REFUSED}[self.numbered](rows)

    def messages_in(self, frame: DataFrame) -> list[Row]:
        """The messages, with the ids that they have in a frame. Their paths don't change."""
        if self.numbered is None:
            return self.rows()
        ids = {row["path"]: row["id"] for row in frame.select("path", "id").collect()}
        return [{**row, "id": ids[row["path"]]} for row in self.rows()]

    def _frame(self, session: SparkSession, folder: Path) -> DataFrame:
        kind = self.schema
        rows, parts = self.rows(), max(1, self.partitions)
        tables = [
            pa.Table.from_pylist([_arrow(row) for row in rows[i::parts]], arrow_schema(kind)) for i in range(parts)
        ]
        if not self.partitions:
            return session.createDataFrame(tables[0], kind)
        folder.mkdir()
        for i, table in enumerate(tables):
            pq.write_table(table, folder / f"{i}.parquet")
        return session.read.schema(kind).parquet(str(folder))


def draw(chance: random.Random) -> Data:
    """Draw one."""
    return Data(
        seed=chance.randrange(1 << 30),
        count=chance.choice((0, 1, 7, 20, 40, 40, 90)),
        partitions=chance.choice((0, 0, 1, 2, 5)),
        skew=chance.choice((0.1, 0.5, 0.9)),
        wide=chance.choice((0, 20, 20, 5000)),
        marks=chance.random() < 0.4,
    )


def comparable(row: Row) -> Value:
    """The row as a value, whether it comes from Python, Arrow, JSON or Spark."""
    return tuple(_comparable(row.get(name), kind) for name, kind in COLUMNS.items())


def _comparable(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind.startswith("map"):
        return tuple(sorted(dict(value).items()))
    if kind == "timestamp":
        instant = datetime.fromisoformat(value) if isinstance(value, str) else value
        return instant.replace(tzinfo=instant.tzinfo or UTC).astimezone(UTC).isoformat()
    if kind.startswith("array"):
        return tuple(value)
    if kind.startswith("struct"):
        found = value if isinstance(value, dict) else value.asDict()
        inner = found.get("inner")
        return found.get("a"), None if inner is None else tuple(inner)
    return value


def _arrow(row: Row) -> Row:
    return {**row, "marks": list(row["marks"].items())} if "marks" in row else row
