"""A table of PostgreSQL whose rows wait in a table beside it, for `Tracker.write_staged`."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple

import pyarrow as pa

from acker_redis.errors import AckerError, BadConfigError
from acker_redis.extras import install_hint
from acker_redis.spark.worker.staged_parts import PublishParts, StagePart

if TYPE_CHECKING:
    import psycopg

PART = "acker_part"
_LONGEST_NAME = 63
_STAGED, _PUBLISHED = "_acker_staged", "acker_published"

_FIND = """
SELECT n.nspname, c.relname, c.relkind = 'r' OR c.relkind = 'p'
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""

_KEYS = """
SELECT i.indexrelid::regclass::text FROM pg_index i
WHERE i.indrelid = to_regclass(%(table)s) AND (i.indisunique OR i.indisexclusion) AND NOT EXISTS (
    SELECT FROM unnest(i.indkey) AS k(number) JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
    WHERE a.atthasdef OR a.attidentity <> ''
)
UNION ALL SELECT conname::text FROM pg_constraint WHERE conrelid = to_regclass(%(table)s) AND contype = 'f'
"""
"""Constraints that depend on other rows than the one that is written. A default gives a key of its own."""

_MADE_BY_TABLE = """
SELECT attname FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND (attidentity <> '' OR attgenerated <> '')
"""

_COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND attname <> %s ORDER BY attnum
"""


class StoreFunctions(NamedTuple):
    """The functions of a store, in the order in which `Tracker.write_staged` takes them.

    Attributes:
        stage: writes rows of a partition where no reader sees them.
        publish: puts the rows of some parts into the table.
    """

    stage: StagePart
    publish: PublishParts


def postgres(url: str, table: str) -> StoreFunctions:
    """Return the functions that write each row into a table of PostgreSQL once, with `once=`.

        tracker.write_staged(items, *postgres("postgresql://app@db/sales", "items"), name="items")

    Rows wait in the table `items_acker_staged`, which has the columns and checks of the table. One transaction moves them,
    and writes a key into the table `acker_published`. Both are made in the schema of the table, by this call. Columns that
    the rows lack get their defaults, and those that PostgreSQL makes itself are made when the rows are published.

    A row that the table's checks refuse fails when it is staged. Unique keys and foreign keys depend on other rows, and would
    refuse rows only after they were accepted. So a table that has some, other than keys that it makes itself, is refused.

    Args:
        url: URL or connection string of libpq. It goes to the workers, so keep passwords in a file or service of libpq.
        table: name of the table, with or without its schema, as in SQL.

    Raises:
        BadConfigError: psycopg isn't installed, the table doesn't exist, or its keys may refuse rows.
        psycopg.Error: the server can't be reached, or refuses to make the tables.
    """
    functions = _Table(url, *_prepared(url, table))
    return StoreFunctions(functions.stage, functions.publish)


@dataclass(frozen=True)
class _Table:
    url: str = field(repr=False)  # may hold a password
    schema: str
    name: str

    def stage(self, batches: Iterator[pa.RecordBatch], part: str) -> None:
        """Copy rows of a partition into the table of staged rows."""
        from psycopg import sql

        with _transaction(self.url) as connection:
            for batch in batches:
                columns = sql.SQL(", ").join(map(sql.Identifier, (PART, *batch.schema.names)))
                copy = sql.SQL("COPY {} ({}) FROM STDIN").format(self._identifier(_staged(self.name)), columns)
                with connection.cursor() as cursor, cursor.copy(copy) as rows:
                    for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                        rows.write_row((part, *map(_value, row)))

    def publish(self, key: str, parts: Mapping[str, int]) -> None:
        """Move rows of parts into the table, unless the key was published.

        Raises:
            AckerError: the table of staged rows lacks some. Nothing was moved.
        """
        from psycopg import sql

        staged, published = self._identifier(_staged(self.name)), self._identifier(_PUBLISHED)
        with _transaction(self.url) as connection:
            new = sql.SQL("INSERT INTO {} (key) VALUES (%s) ON CONFLICT DO NOTHING").format(published)
            if not connection.execute(new, [key]).rowcount:
                return
            found = connection.execute(_COLUMNS, [staged.as_string(), PART]).fetchall()
            columns = sql.SQL(", ").join(sql.Identifier(name) for (name,) in found)
            move = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} WHERE {} = ANY(%s)").format(
                self._identifier(self.name), columns, columns, staged, sql.Identifier(PART)
            )
            moved = connection.execute(move, [list(parts)]).rowcount
            if moved != sum(parts.values()):
                raise AckerError(
                    f"{staged.as_string()} has {moved:,} rows to publish in place of {sum(parts.values()):,}. Another "
                    f"program has changed it, so nothing was moved. Restore it, or give the rows up by acker-redis once skip."
                )
            # Also those of earlier emissions that were never published. Names of parts begin with their key.
            log = key.partition("-")[0]
            delete = sql.SQL("DELETE FROM {} WHERE {} > %s AND {} < %s")
            connection.execute(
                delete.format(staged, sql.Identifier(PART), sql.Identifier(PART)), [log, f"{key}."]
            )  # a point follows the hyphen

    def _identifier(self, name: str) -> Any:
        from psycopg import sql

        return sql.Identifier(self.schema, name)


def _prepared(url: str, table: str) -> tuple[str, str]:
    """Check a table, and make those that its rows need. Return its schema and name."""
    try:
        from psycopg import sql
    except ImportError as exc:
        raise BadConfigError(f"postgres() needs psycopg, which is not installed. {install_hint('postgres')}") from exc
    with _transaction(url) as connection:
        found = connection.execute(_FIND, [table]).fetchone()
        if found is None or not found[2]:
            what = "doesn't exist" if found is None else "is no table"
            raise BadConfigError(
                f"postgres: {table!r} {what} for this user of the database. So its rows can't be checked. Create it first."
            )
        schema, name = str(found[0]), str(found[1])
        target = sql.Identifier(schema, name)
        keys = [row[0] for row in connection.execute(_KEYS, {"table": target.as_string()})]
        if keys:
            raise BadConfigError(
                f"postgres: the table {table!r} has keys: {', '.join(keys)}. They may refuse rows only after these were "
                "accepted, and nothing behind them would be published. Upsert by these keys in tracker.write_partitions, or "
                "write to a table without them."
            )
        staged = sql.Identifier(schema, _staged(name))
        # Two drivers may begin at the same time, and IF NOT EXISTS isn't safe then.
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('acker-redis'), hashtext(%s))", [staged.as_string()])
        connection.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} (key text PRIMARY KEY, at timestamptz DEFAULT now())").format(
                sql.Identifier(schema, _PUBLISHED)
            )
        )
        is_there = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [staged.as_string()]).fetchone()
        if is_there is None or not is_there[0]:
            _make_staged(connection, staged, target)
    return schema, name


def _make_staged(connection: "psycopg.Connection[Any]", staged: Any, target: Any) -> None:
    from psycopg import sql

    connection.execute(
        sql.SQL(
            'CREATE TABLE {} ({} text COLLATE "C" NOT NULL, LIKE {} INCLUDING CONSTRAINTS INCLUDING DEFAULTS)'
        ).format(staged, sql.Identifier(PART), target)
    )
    for (column,) in connection.execute(_MADE_BY_TABLE, [target.as_string()]).fetchall():
        connection.execute(sql.SQL("ALTER TABLE {} DROP COLUMN {} CASCADE").format(staged, sql.Identifier(column)))
    connection.execute(sql.SQL("CREATE INDEX ON {} ({})").format(staged, sql.Identifier(PART)))


def _staged(name: str) -> str:
    return name.encode()[: _LONGEST_NAME - len(_STAGED)].decode(errors="ignore") + _STAGED


@contextmanager
def _transaction(url: str) -> "Iterator[psycopg.Connection[Any]]":
    """Connect for one transaction, which is on the server's disk when it ends."""
    import psycopg

    durable: LiteralString = "SET LOCAL synchronous_commit = on"
    with psycopg.connect(url) as connection:
        connection.execute(durable)
        yield connection


def _value(value: Any) -> Any:
    """Return a value as psycopg takes it: structs and maps are JSON."""
    return json.dumps(value, default=str) if isinstance(value, dict) else value
