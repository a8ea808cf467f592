"""Rows in a table of a real PostgreSQL, once."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from acker_redis import AckerError, BadConfigError
from acker_redis.spark import Tracker, postgres
from acker_redis.spark.worker.postgres import StoreFunctions
from tests.spark.runs.test_once import failing, once
from tests.spark.runs.test_once_stores import end_before, end_behind
from tests.support.postgres import postgres as postgres_server
from tests.support.spark.cases import MakeCase
from tests.support.targets import N, run_section

pytestmark = [pytest.mark.spark, pytest.mark.classic("output once needs a classic session")]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server() as jdbc:
        yield jdbc.replace("jdbc:postgresql://", "postgresql://tests@")


@pytest.fixture
def items(server: str) -> Iterator[str]:
    """A table in a schema, which makes numbers and a column itself, checks rows, and has a default."""
    query(
        server,
        """
        CREATE SCHEMA sales;
        CREATE TABLE sales."Items"(
            number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id bigint NOT NULL, child int CHECK (child < 9),
            twice bigint GENERATED ALWAYS AS (id * 2) STORED, note text DEFAULT 'none')
        """,
    )
    yield 'sales."Items"'
    query(server, "DROP SCHEMA sales CASCADE")


def query(url: str, text: Any) -> list[Any]:
    with psycopg.connect(url) as connection:
        cursor = connection.execute(text)
        return [] if cursor.description is None else cursor.fetchall()


def into(functions: StoreFunctions, bad: set[int]) -> Any:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.flat_map(messages, partial(failing, bad), "id bigint, child int")
        tracker.write_staged(rows, *functions, name="items")

    return pipeline


def check(url: str, messages: set[int]) -> None:
    found = query(url, 'SELECT id, child, twice, note FROM sales."Items" ORDER BY id, child')
    assert found == sorted((id, child, 2 * id, "none") for id in messages for child in range(id % 3))
    assert query(url, 'SELECT * FROM sales."Items_acker_staged"') == [], "what failed is gone, too"


def test_rows_of_accepted_messages_are_in_the_table_once(case: MakeCase, server: str, items: str) -> None:
    run, bad = case(n=60), {7, 50}
    once(run)
    ended = run.done(into(postgres(server, items), bad), max_spout_pending=25)
    assert (ended.acked, set(ended.letters)) == (set(range(60)) - bad, bad)
    check(server, ended.acked)
    assert run.done(into(postgres(server, items), set())).acked == set()
    check(server, ended.acked)


@pytest.mark.parametrize("commits", [False, True])
def test_next_run_publishes_once(case: MakeCase, server: str, items: str, *, commits: bool) -> None:
    run, functions = case(n=30), postgres(server, items)
    once(run)
    ending = partial(end_behind, functions.publish) if commits else end_before
    run.refused(into(functions._replace(publish=ending), set()), AckerError)
    assert len(query(server, 'SELECT 1 FROM sales."Items"')) == (30 if commits else 0)
    run.done(into(functions, set()))
    check(server, set(range(30)))


def test_row_that_the_table_refuses_is_its_messages_letter(case: MakeCase, server: str, items: str) -> None:
    """PostgreSQL refuses it when it is staged, so nothing that was accepted is in its way."""
    run = case(n=20)
    once(run)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = messages.selectExpr(
            "_share", "_roots", "id", "IF(id = 7, 99, 1) AS child", "named_struct('a', id) AS note"
        )
        tracker.write_staged(rows, *postgres(server, items), name="items")

    ended = run.done(pipeline)
    assert (ended.acked, set(ended.letters)) == (set(range(20)) - {7}, {7})
    assert "violates check constraint" in str(ended.letters[7].detail)
    found = query(server, 'SELECT id, note FROM sales."Items" ORDER BY id')
    assert found == [(id, f'{{"a": {id}}}') for id in range(20) if id != 7]


def test_staged_rows_that_somebody_changed_are_not_published(server: str, items: str) -> None:
    functions = postgres(server, items)
    batch = pa.RecordBatch.from_pydict({"id": [1, 2], "child": [0, 0]})
    functions.stage(iter([batch]), "log-1-0-0")
    with pytest.raises(AckerError, match="has 2 rows to publish in place of 3"):
        functions.publish("log-1", {"log-1-0-0": 3})
    assert query(server, "SELECT 1 FROM sales.acker_published") == []
    functions.stage(iter([batch]), "other-1-0-0")
    functions.publish("log-1", {"log-1-0-0": 2})
    functions.publish("log-1", {"log-1-0-0": 2})
    assert query(server, 'SELECT id FROM sales."Items" ORDER BY id') == [(1,), (2,)]
    assert query(server, 'SELECT DISTINCT acker_part FROM sales."Items_acker_staged"') == [("other-1-0-0",)]


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        ("id bigint PRIMARY KEY", "keyed_pkey"),
        ("id bigint, UNIQUE (id)", "keyed_id_key"),
        ("id bigint REFERENCES others", "keyed_id_fkey"),
    ],
)
def test_table_whose_keys_may_refuse_rows_is_refused(server: str, columns: str, key: str) -> None:
    query(server, f"CREATE TABLE others(id bigint PRIMARY KEY); CREATE TABLE keyed({columns})")
    try:
        with pytest.raises(BadConfigError, match=f"has keys: {key}"):
            postgres(server, "keyed")
        assert query(server, "SELECT to_regclass('keyed_acker_staged')") == [(None,)]
    finally:
        query(server, "DROP TABLE keyed, others")


@pytest.mark.parametrize(("table", "what"), [("nowhere", "doesn't exist"), ("pg_tables", "is no table")])
def test_what_is_no_table_is_refused(server: str, table: str, what: str) -> None:
    with pytest.raises(BadConfigError, match=f"'{table}' {what}"):
        postgres(server, table)


def test_documented_program_runs(case: MakeCase, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_section(case(n=N), "PostgreSQL with each row once", frozenset(), database=server)


def test_password_is_not_shown(server: str, items: str) -> None:
    assert "tests@" not in repr(postgres(server, items))
