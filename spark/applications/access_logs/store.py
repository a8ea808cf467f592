"""Results of the pipeline: a folder of Parquet files, and sums in SQLite that count each line once."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

_TABLES = """
CREATE TABLE IF NOT EXISTS counted (message_id INTEGER PRIMARY KEY, batch INTEGER);
CREATE TABLE IF NOT EXISTS per_minute (
    minute TEXT, section TEXT, hits INTEGER, bytes INTEGER, errors INTEGER, over_budget INTEGER, PRIMARY KEY (minute,
    section)
);
"""
_COUNT_IT = "INSERT OR IGNORE INTO counted VALUES (?, ?)"
_ADD = """
INSERT INTO per_minute VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    hits = hits + excluded.hits, bytes = bytes + excluded.bytes,
    errors = errors + excluded.errors, over_budget = over_budget + excluded.over_budget
"""


class Minute(NamedTuple):
    """Sums of one section in one minute."""

    minute: str
    section: str
    hits: int
    bytes: int
    errors: int
    over_budget: int


class Store:
    """The folder passed as --out.

    Attributes:
        hits: folder of Parquet files. A message may be in several of them.
        database: SQLite file, written by one process only.
        checkpoint: checkpoint of the query, in which Spark records the files it has read.
        parking_location: parking location of the stream.
    """

    def __init__(self, folder: Path) -> None:
        """Create the folder, or reuse it."""
        self.hits, self.database = folder / "hits", folder / "minutes.sqlite"
        self.checkpoint, self.parking_location = folder / "checkpoint", folder / "parked"
        self.hits.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self.database)) as database, database:
            database.executescript(_TABLES)

    def count(self, batch: int | None, groups: Iterable[Any]) -> None:
        """Add groups of hits to the sums, without hits that are already counted.

        Guarantee: a message counts once, no matter how often it arrives and when the process is killed. The sums and the ids
        in them change in one transaction.

        Args:
            batch: number of the micro-batch; None: outside a micro-batch.
            groups: rows with `minute`, `section` and `hits`.
        """
        with closing(sqlite3.connect(self.database)) as database, database:
            for group in groups:
                fresh = [
                    hit for hit in group["hits"] if database.execute(_COUNT_IT, (hit["message_id"], batch)).rowcount
                ]
                sums = (
                    len(fresh),
                    sum(hit["bytes"] for hit in fresh),
                    sum(hit["status"] >= 500 for hit in fresh),
                    sum(hit["over_budget"] for hit in fresh),
                )
                if fresh:
                    database.execute(_ADD, (group["minute"], group["section"], *sums))

    def minutes(self) -> list[Minute]:
        """Read the sums."""
        with closing(sqlite3.connect(self.database)) as database:
            return [Minute(*row) for row in database.execute("SELECT * FROM per_minute ORDER BY minute, section")]

    def counted(self) -> set[int]:
        """Read the ids of counted messages."""
        with closing(sqlite3.connect(self.database)) as database:
            return {message_id for (message_id,) in database.execute("SELECT message_id FROM counted")}

    def written(self) -> tuple[int, dict[int, tuple[str, int]]]:
        """Read the Parquet files. Return the number of rows, and message id -> file name and line number."""
        rows, places = 0, {}
        for path in self.hits.glob("*.parquet"):
            table = pq.read_table(path, columns=["message_id", "file", "row"])
            rows += len(table)
            for message, file, row in zip(*(column.to_pylist() for column in table.columns), strict=True):
                places[message] = (file.rpartition("/")[2], row)
        return rows, places
