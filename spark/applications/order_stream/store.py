"""Sinks of the orders (a folder of Parquet files, and SQLite), and the account of all orders from them."""

import fcntl
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from acker_redis import AckerError
from acker_redis.store.dead_letter import DeadLetter

_TABLES = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT, cents INTEGER);
CREATE TABLE IF NOT EXISTS letters (id INTEGER PRIMARY KEY, reason TEXT, detail TEXT);
"""


class Store:
    """The folder passed as --folder, for one program at a time: `with Store(folder) as store`.

    Attributes:
        parquet: folder of the first sink. An order may be in several files, so readers deduplicate.
        database: SQLite file of the second sink, with orders by number.
        checkpoint: checkpoint of the query.
        parking_location: parking location of the stream.
        kill: kill file. The worker that finds it dies.
    """

    def __init__(self, folder: Path) -> None:
        """Create the folder, or reuse it.

        Raises:
            AckerError: another program uses the folder.
        """
        self.parquet, self.database = folder / "parquet", folder / "orders.sqlite"
        self.checkpoint, self.parking_location = folder / "checkpoint", folder / "parked"
        self.kill = folder / "kill"
        self.parquet.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / "lock").open("ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            self._lock.close()
            raise AckerError(
                f"{folder} is in use by another stream of orders. Stop that one, or pass another --folder."
            ) from exc
        with closing(sqlite3.connect(self.database)) as database, database:
            database.executescript(_TABLES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Release the folder for other programs."""
        self._lock.close()

    def insert(self, rows: Iterable[Any]) -> None:
        """Insert orders in one transaction, without those that the table already has."""
        with closing(sqlite3.connect(self.database)) as database, database:
            database.executemany(
                "INSERT OR IGNORE INTO orders VALUES (?, ?, ?)", [(r.id, r.item, r.cents) for r in rows]
            )

    def keep_letters(self, letters: Iterable[DeadLetter]) -> None:
        """Store dead letters, because the demo's server loses them when it stops."""
        rows = [(letter.message_id, letter.reason, letter.detail) for letter in letters]
        with closing(sqlite3.connect(self.database)) as database, database:
            database.executemany("INSERT OR REPLACE INTO letters VALUES (?, ?, ?)", rows)

    def inserted(self) -> set[int]:
        """Read the orders in SQLite."""
        return set(self._ids("orders"))

    def letters(self) -> set[int]:
        """Read the orders that are dead letters."""
        return set(self._ids("letters"))

    def written(self) -> set[int]:
        """Read the orders in Parquet files."""
        return {
            number
            for path in self.parquet.glob("*.parquet")
            for number in pq.read_table(path, columns=["id"])["id"].to_pylist()
        }

    def parked(self) -> set[int]:
        """Read the orders in the last snapshot of the parking location."""
        last = max(self.parking_location.glob("*.parquet"), default=None)
        return set() if last is None else set(pa.array(pq.read_table(last, columns=["id"])["id"]).to_pylist())

    def _ids(self, table: str) -> Iterator[int]:
        with closing(sqlite3.connect(self.database)) as database:
            yield from (number for (number,) in database.execute(f"SELECT id FROM {table}"))  # noqa: S608


@dataclass(frozen=True)
class Account:
    """Account of all orders that were ever generated.

    Attributes:
        made: number of orders.
        in_both: number of orders in both sinks.
        dead_letters: number of orders that are dead letters.
        parked: number of other orders that are parked.
        to_come: number of other orders, in files that Spark has not committed yet.
        wrong: numbers of orders that are lost, or are where they must not be.
    """

    made: int
    in_both: int
    dead_letters: int
    parked: int
    to_come: int
    wrong: list[int]


def account(store: Store, made: int, must_be_dead_letters: Iterable[int], *, all_read: bool) -> Account:
    """Account for all orders from the contents of the sinks. With `all_read`, an unfinished order is wrong."""
    both, letters = store.written() & store.inserted(), store.letters()
    bad = set(must_be_dead_letters)
    left = set(range(made)) - both - letters
    parked = left & store.parked()
    to_come = left - parked
    wrong = (both & letters) | (both & bad) | (letters - bad) | (both - set(range(made)))
    if all_read:
        wrong |= left
    return Account(made, len(both), len(letters), len(parked), len(to_come), sorted(wrong))
