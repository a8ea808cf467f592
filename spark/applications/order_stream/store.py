"""Where orders go: a folder of parquet files, and SQLite; and what became of each, counted from there."""

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
    """The folder given as --folder, for one program at a time: `with Store(folder) as store`.

    Attributes:
        parquet: folder of the first sink. An order may stand in several files; readers take it once.
        database: of the second, which knows orders by their numbers.
        checkpoint: Spark's.
        parked_location: the parking location of the stream.
        kill: a file; the worker that finds it dies.
    """

    def __init__(self, folder: Path) -> None:
        """Make the folder, or go on with it.

        Raises:
            AckerError: another program works in it.
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
            raise AckerError(f"{folder} is in use by another stream of orders: end that one, or give --folder") from exc
        with closing(sqlite3.connect(self.database)) as database, database:
            database.executescript(_TABLES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Let another program have the folder."""
        self._lock.close()

    def insert(self, rows: Iterable[Any]) -> None:
        """Insert orders in one transaction; one that is in the table already stays as it is."""
        with closing(sqlite3.connect(self.database)) as database, database:
            database.executemany(
                "INSERT OR IGNORE INTO orders VALUES (?, ?, ?)", [(r.id, r.item, r.cents) for r in rows]
            )

    def keep_letters(self, letters: Iterable[DeadLetter]) -> None:
        """Keep dead letters, which would go with the demo's server."""
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
        """Read the orders in parquet files."""
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
    """What became of all orders that were ever made.

    Attributes:
        made: orders.
        in_both: in both sinks.
        given_up: dead letters.
        parked: neither, and parked.
        to_come: neither, and in files that Spark has not committed yet.
        wrong: numbers of orders that are somewhere they must not be, or nowhere.
    """

    made: int
    in_both: int
    dead_letters: int
    parked: int
    to_come: int
    wrong: list[int]


def account(store: Store, made: int, must_be_dead_letters: Iterable[int], *, all_read: bool) -> Account:
    """Count, from what the sinks hold. `all_read`: nothing may be left to come."""
    both, letters = store.written() & store.inserted(), store.letters()
    bad = set(must_be_dead_letters)
    left = set(range(made)) - both - letters
    parked = left & store.parked()
    to_come = left - parked
    wrong = (both & letters) | (both & bad) | (letters - bad) | (both - set(range(made)))
    if all_read:
        wrong |= left
    return Account(made, len(both), len(letters), len(parked), len(to_come), sorted(wrong))
