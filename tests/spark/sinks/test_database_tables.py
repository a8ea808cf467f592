"""Names of tables and URLs of databases: which may be the same table?"""

import pytest

from acker_redis.spark.sinks.database_tables import DatabaseTable, is_jdbc, table_of

URL = "jdbc:postgresql://db.example.com/shop"


@pytest.mark.parametrize(
    ("url", "other"),
    [
        (URL, "jdbc:postgresql://DB.example.com:5432/shop?user=me&password=secret"),
        (URL, "jdbc:postgresql://me:secret@db.example.com/shop/"),
        ("jdbc:derby:memory:x", "jdbc:derby:memory:x;create=true"),
        ("jdbc:sqlserver://db;databaseName=shop", "jdbc:sqlserver://db:1433;encrypt=true;database=Shop"),
        ("jdbc:sqlserver://db;databaseName=shop", "jdbc:sqlserver://db;user=me"),
        ("jdbc:oracle:thin:me/secret@//db:1521/shop", "jdbc:oracle:thin:@//db/shop"),
        ("jdbc:db2://db:50000/shop", "jdbc:db2://db:50000/shop:user=me;password=secret;"),
        ("jdbc:mysql://u:p@secret@host/db", "jdbc:mysql://host:3306/db"),
        ("jdbc:derby:/data/db", "jdbc:derby:directory:/data/db;create=true"),
        ("jdbc:derby:db", "jdbc:derby:/data/db"),
        ("jdbc:sqlite:x.db", "jdbc:sqlite:file:/data/x.db?mode=ro"),
        (URL, None),
    ],
)
def test_same_database(url: str, other: str | None) -> None:
    one, two = DatabaseTable(url, "totals"), DatabaseTable(other, "totals")
    assert one.may_be(two) and two.may_be(one)
    assert "secret" not in f"{one} {two}"


@pytest.mark.parametrize(
    "other",
    [
        "jdbc:postgresql://other.example.com/shop",
        "jdbc:postgresql://db.example.com:5433/shop",
        "jdbc:postgresql://db.example.com/shop_of_today",
        "jdbc:mysql://db.example.com/shop",
    ],
)
def test_other_database(other: str) -> None:
    assert not DatabaseTable(URL, "totals").may_be(DatabaseTable(other, "totals"))
    assert not DatabaseTable(URL, "(SELECT 1) t").may_be(DatabaseTable(other, "totals"))


@pytest.mark.parametrize(
    ("url", "other"),
    [
        ("jdbc:derby:/data/day=1/db", "jdbc:derby:/data/day=2/shop"),
        ("jdbc:sqlite:/data/a.db", "jdbc:sqlite:/data/b.db"),
    ],
)
def test_other_file_of_an_embedded_database(url: str, other: str) -> None:
    assert not DatabaseTable(url, "totals").may_be(DatabaseTable(other, "totals"))


def test_databases_that_parameters_name() -> None:
    one, two = (DatabaseTable(f"jdbc:sqlserver://db;databaseName={name}", "totals") for name in ("shop", "store"))
    assert not one.may_be(two)


@pytest.mark.parametrize(
    ("name", "other", "same"),
    [
        ("totals", "TOTALS", True),
        ("totals", ' "Totals" ', True),
        ("totals", "[totals]", True),
        ("totals", "`totals`", True),
        ("totals", "public.totals", True),
        ("shop.public.totals", 'PUBLIC . "totals"', True),
        ("public.totals", "private.totals", False),
        ("totals", "totals_of_today", False),
        ("public.totals", "totals.public", False),
        ('"of.today"', "today", False),
    ],
)
def test_names_of_tables(name: str, other: str, same: bool) -> None:
    one, two = DatabaseTable(URL, name), DatabaseTable(URL, other)
    assert one.may_be(two) is two.may_be(one) is same
    assert not one.is_query and not two.is_query


@pytest.mark.parametrize("query", ["(SELECT 1) t", "totals t", "a JOIN b ON a.x = b.x", "a, b", "totals;", ""])
def test_queries_may_read_every_table(query: str) -> None:
    one = DatabaseTable(URL, query)
    assert one.is_query and one.may_be(DatabaseTable(URL, "others"))


def test_options_of_queries() -> None:
    assert table_of({"url": URL, "query": "totals"}).is_query  # which is no SQL: the database raises it
    assert table_of({"url": URL, "dbtable": " totals "}) == DatabaseTable(URL, "totals")


def test_names_of_the_source() -> None:
    jdbc = (
        "jdbc",
        "JDBC",
        "org.apache.spark.sql.jdbc",
        "org.apache.spark.sql.execution.datasources.jdbc.DefaultSource",
    )
    assert all(map(is_jdbc, jdbc))
    assert not any(map(is_jdbc, ("parquet", "jdbc2", None)))
