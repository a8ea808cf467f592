"""A store with transactions, in which rows wait in parts: SQLite, in a file that workers and the driver share."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

WAIT_SECS = 60.0
TABLES = """
CREATE TABLE IF NOT EXISTS staged(part TEXT, id INTEGER, child);
CREATE TABLE IF NOT EXISTS items(id INTEGER, child);
CREATE TABLE IF NOT EXISTS published(key TEXT PRIMARY KEY);
"""


@dataclass(frozen=True)
class PartsStore:
    """A database in a file.

    Attributes:
        path: its path.
    """

    path: str

    def stage(self, batches: Iterator[pa.RecordBatch], part: str) -> None:
        with self.transaction() as database:
            for batch in batches:
                rows = [(part, row["id"], row["child"]) for row in batch.to_pylist()]
                database.executemany("INSERT INTO staged VALUES (?, ?, ?)", rows)

    def publish(self, key: str, parts: Mapping[str, int]) -> None:
        with self.transaction() as database:
            if not database.execute("INSERT OR IGNORE INTO published VALUES (?)", [key]).rowcount:
                return
            for part, rows in parts.items():
                moved = database.execute("INSERT INTO items SELECT id, child FROM staged WHERE part = ?", [part])
                assert moved.rowcount == rows, "the part has the rows that were counted"

    def items(self) -> list[tuple[int, Any]]:
        return self.rows_of("SELECT id, child FROM items ORDER BY id, child")

    def rows_of(self, query: str) -> list[tuple[Any, Any]]:
        with self.transaction() as database:
            return database.execute(query).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=WAIT_SECS, isolation_level=None)) as database:
            database.executescript(TABLES)
            database.execute("BEGIN IMMEDIATE")
            with database:
                yield database
