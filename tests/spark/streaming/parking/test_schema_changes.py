"""Parked rows in the columns that a stream has now."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from acker_redis import BadConfigError
from acker_redis.spark import checks
from acker_redis.spark.streaming.parking.schema_changes import SchemaChange
from acker_redis.spark.worker import row_codec

INT, TEXT = IntegerType(), StringType()
ANY_CASE = SchemaChange(case_sensitive=False)


def of(nullable: bool = True, **columns: DataType) -> StructType:
    return StructType([StructField(name, kind, nullable) for name, kind in columns.items()])


def refitted(
    old: StructType, new: StructType, row: dict[str, Any], *, change: SchemaChange = ANY_CASE
) -> dict[str, Any]:
    """Through their bytes, as they are parked."""
    (payload,) = row_codec.to_bytes(pa.array([row], pa.struct(list(checks.arrow_schema(old)))), 1 << 31)
    found = change.converter(old, new)
    assert payload is not None
    payload = payload if found is None else row_codec.refit(payload, found)
    (row,) = row_codec.from_bytes([payload], checks.arrow_schema(new)).to_pylist()
    return row


@pytest.mark.parametrize(
    ("old", "new", "row", "wanted"),
    [
        (of(a=INT, b=TEXT), of(b=TEXT, a=INT), {"a": 1, "b": "x"}, {"b": "x", "a": 1}),
        (of(a=INT, b=TEXT), of(b=TEXT), {"a": 1, "b": "x"}, {"b": "x"}),
        (of(a=INT), of(a=INT, n=INT), {"a": 1}, {"a": 1, "n": None}),
        (of(Name=TEXT), of(name=TEXT, n=INT), {"Name": "x"}, {"name": "x", "n": None}),
        (of(a=INT, A=INT), of(A=INT, a=INT), {"a": 1, "A": 2}, {"A": 2, "a": 1}),
        (of(a=INT, A=INT), of(A=INT), {"a": 1, "A": 2}, {"A": 2}),
        (of(s=of(a=INT, b=TEXT)), of(s=of(B=TEXT, c=INT, a=INT)),
         {"s": {"a": 1, "b": "x"}}, {"s": {"B": "x", "c": None, "a": 1}}),
        (of(s=of(a=INT)), of(s=of(a=INT, b=INT)), {"s": None}, {"s": None}),
        (of(s=ArrayType(of(a=INT))), of(s=ArrayType(of(b=INT, a=INT))),
         {"s": [{"a": 1}, None]}, {"s": [{"b": None, "a": 1}, None]}),
        (of(s=MapType(TEXT, of(a=INT))), of(s=MapType(TEXT, of(a=INT, b=INT))),
         {"s": [("k", {"a": 1}), ("l", None)]}, {"s": [("k", {"a": 1, "b": None}), ("l", None)]}),
    ],
)  # fmt: skip
def test_parked_row_keeps_its_values_when_columns_change(
    old: StructType, new: StructType, row: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert refitted(old, new, row) == wanted


def test_columns_of_other_case_differ_if_case_sensitive() -> None:
    assert refitted(of(a=INT), of(A=INT), {"a": 1}, change=SchemaChange(case_sensitive=True)) == {"A": None}


def test_column_that_became_not_null_is_no_schema_change() -> None:
    assert (
        SchemaChange(case_sensitive=False).converter(of(a=INT), of(a=INT, nullable=False)) is None
    )  # the frame has them nullable


@pytest.mark.parametrize(
    ("old", "new", "row", "lost"),
    [
        (of(a=INT, b=TEXT), of(b=TEXT), {"a": 1, "b": "x"}, {"a": 1}),
        (of(a=INT, b=TEXT), of(b=TEXT), {"a": None, "b": "x"}, {}),
        (of(v=TEXT), of(text=TEXT), {"v": "x"}, {"v": 1}),
        (of(a=INT), of(A=INT), {"a": 1}, {}),
        (of(s=of(a=INT, b=TEXT)), of(s=of(a=INT)), {"s": {"a": 1, "b": "x"}}, {"s.b": 1}),
        (of(s=of(a=INT, b=TEXT)), of(s=of(a=INT)), {"s": None}, {}),
        (of(s=ArrayType(of(a=INT, b=INT))), of(s=ArrayType(of(a=INT))),
         {"s": [{"a": 1, "b": 2}, {"a": 1, "b": None}, {"a": 1, "b": 3}]}, {"s.element.b": 2}),
    ],
)  # fmt: skip
def test_values_of_columns_that_are_gone_are_counted_as_lost(
    old: StructType, new: StructType, row: dict[str, Any], lost: dict[str, int]
) -> None:
    change = SchemaChange(case_sensitive=False)
    refitted(old, new, row, change=change)
    assert change.lost == lost


@pytest.mark.parametrize(
    ("old", "new", "names", "row", "wanted"),
    [
        (of(v=TEXT), of(text=TEXT), {"v": "text"}, {"v": "x"}, {"text": "x"}),
        (of(V=TEXT), of(Text=TEXT), {"v": "text"}, {"V": "x"}, {"Text": "x"}),
        (of(text=TEXT), of(text=TEXT), {"v": "text"}, {"text": "x"}, {"text": "x"}),
        (of(v=TEXT), of(v=TEXT), {"v": "text"}, {"v": "x"}, {"v": "x"}),
        (of(v=TEXT), of(v=TEXT, text=TEXT), {"v": "text"}, {"v": "x"}, {"v": None, "text": "x"}),
        (of(v=TEXT, text=TEXT), of(v=TEXT, text=TEXT), {"v": "text"}, {"v": "x", "text": "y"}, {"v": "x", "text": "y"}),
        (of(a=INT, v=TEXT), of(a=INT), {"v": None}, {"a": 1, "v": "x"}, {"a": 1}),
        (of(v=TEXT), of(v=TEXT), {"v": None}, {"v": "x"}, {"v": "x"}),
        (of(o=of(v=TEXT)), of(order=of(text=TEXT)), {"o": "order", "o.v": "order.text"},
         {"o": {"v": "x"}}, {"order": {"text": "x"}}),
        (of(s=ArrayType(of(v=INT))), of(s=ArrayType(of(w=INT))), {"s.element.v": "s.element.w"},
         {"s": [{"v": 1}, None]}, {"s": [{"w": 1}, None]}),
        # names that are passed on, or given twice
        (of(a=INT, b=INT), of(b=INT, c=INT), {"a": "b", "b": "c"}, {"a": 1, "b": 2}, {"b": 1, "c": 2}),
        (of(A=INT, B=INT), of(b=INT, C=INT), {"a": "B", "b": "c"}, {"A": 1, "B": 2}, {"b": 1, "C": 2}),
        (of(a=INT, b=INT, c=INT), of(b=INT, c=INT, d=INT), {"b": "c", "c": "d", "a": "b"},
         {"a": 1, "b": 2, "c": 3}, {"b": 1, "c": 2, "d": 3}),
        (of(a=INT, b=INT), of(b=INT), {"a": "b", "b": None}, {"a": 1, "b": 2}, {"b": 1}),
        (of(v=TEXT), of(body=TEXT), {"v": "text", "text": "body"}, {"v": "x"}, {"body": "x"}),
        (of(text=TEXT), of(body=TEXT), {"v": "text", "text": "body"}, {"text": "x"}, {"body": "x"}),
        (of(v=TEXT, a=INT), of(a=INT), {"v": "text", "text": None}, {"v": "x", "a": 1}, {"a": 1}),
        (of(s=of(a=INT, b=INT)), of(t=of(b=INT, c=INT)), {"s": "t", "s.a": "t.b", "s.b": "t.c"},
         {"s": {"a": 1, "b": 2}}, {"t": {"b": 1, "c": 2}}),
        # and rows of after the change
        (of(b=INT, c=INT), of(b=INT, c=INT, d=INT), {"a": "b", "b": "c"}, {"b": 1, "c": 2}, {"b": 1, "c": 2, "d": None}),
        (of(b=INT), of(b=INT, d=INT), {"a": "b", "b": None}, {"b": 1}, {"b": 1, "d": None}),
        (of(a=INT, b=INT), of(a=INT, b=INT, d=INT), {"x": "a", "a": "b", "b": None},
         {"a": 1, "b": 2}, {"a": 1, "b": 2, "d": None}),
        (of(x=INT, a=INT, b=INT), of(a=INT, b=INT), {"x": "a", "a": "b", "b": None},
         {"x": 1, "a": 2, "b": 3}, {"a": 1, "b": 2}),
    ],
)  # fmt: skip
def test_renamed_columns_keep_their_values(
    old: StructType, new: StructType, names: dict[str, str | None], row: dict[str, Any], wanted: dict[str, Any]
) -> None:
    change = SchemaChange(case_sensitive=False, names=names)
    assert refitted(old, new, row, change=change) == wanted
    change.check_lost()


def test_mapping_to_a_column_that_is_not_there_saves_no_value() -> None:
    change = SchemaChange(case_sensitive=False, names={"v": "text"})
    refitted(of(v=TEXT, a=INT), of(a=INT), {"v": "x", "a": 1}, change=change)
    told = (
        r"1 values in column 'v', which the stream has no more.*gives 'text' as its present name, but that isn't a "
        r"column of the stream.*\{'v': None\}"
    )
    with pytest.raises(BadConfigError, match=told) as caught:
        change.check_lost()
    assert "'v': 'text'" not in str(caught.value) and "NEW_NAME" not in str(caught.value)


def test_mapping_to_a_name_that_parked_rows_have_saves_no_value() -> None:
    change = SchemaChange(case_sensitive=False, names={"v": "text"})
    assert refitted(of(v=TEXT, text=TEXT), of(text=TEXT), {"v": "x", "text": "y"}, change=change) == {"text": "y"}
    with pytest.raises(BadConfigError, match=r"column 'v'.*the rows have a column of that name, too.*\{'v': None\}"):
        change.check_lost()


SHIFT: dict[str, str | None] = {"a": "b", "b": "c"}


@pytest.mark.parametrize(
    ("letter", "new", "names", "keys"),
    [
        ({"text": "x"}, of(text=TEXT, n=INT), {}, ["text", None]),
        ({"Text": "x"}, of(text=TEXT), {}, ["Text"]),
        ({"v": "x"}, of(text=TEXT), {"v": "text"}, ["v"]),
        ({"text": "x"}, of(text=TEXT), {"v": "text"}, ["text"]),
        ({"v": "x"}, of(body=TEXT), {"v": "text", "text": "body"}, ["v"]),
        ({"v": "x", "n": 1}, of(n=INT), {"v": None}, ["n"]),
        ({"v": None, "n": 1}, of(n=INT), {}, ["n"]),
        ({"a": 1, "b": 2}, of(b=INT, c=INT), SHIFT, ["a", "b"]),
        ({"a": 1}, of(b=INT, c=INT), SHIFT, ["a", None]),
        ({"b": 1, "c": 2}, of(b=INT, c=INT), SHIFT, ["b", "c"]),
        ({"a": 1, "b": 2}, of(b=INT), {"a": "b", "b": None}, ["a"]),
        ({"o": {"n": 1, "v": "x"}}, of(order=of(n=INT)), {"o": "order", "o.v": None}, ["o"]),
        ({"m": {"k": [{"n": 1}, None]}}, of(m=MapType(TEXT, ArrayType(of(n=INT, v=TEXT)))), {}, ["m"]),
    ],
)
def test_letter_is_read_by_the_names_of_its_columns(
    letter: dict[str, object], new: StructType, names: dict[str, str | None], keys: list[str | None]
) -> None:
    assert SchemaChange(case_sensitive=False, names=names).letter_keys(letter, new) == keys


@pytest.mark.parametrize(
    ("letter", "new", "names", "told"),
    [
        ({"v": "x"}, of(text=TEXT), {}, r"'v' would be lost.*\{'v': 'NEW_NAME'\}"),
        ({"v": "x"}, of(body=TEXT), {"v": "text"}, "'v' would be lost.*gives 'text'.*isn't a column of the stream"),
        ({"s": {"v": 1}}, of(s=of(w=INT)), {}, r"'s\.v' would be lost"),
        ({"s": {"v": 1}}, of(s=of(w=INT)), {"s.v": "s.w"}, r"'s\.v' would be lost, because renamed fields"),
        ({"s": {"W": 1}}, of(s=of(w=INT)), {}, r"'s\.W' would be lost, because renamed fields"),
        (
            {"m": {"k": [{"v": 1}]}},
            of(m=MapType(TEXT, ArrayType(of(w=INT)))),
            {},
            r"'m\.value\.element\.v' would be lost",
        ),
        ({"ab": 1, "AB": 2}, of(Ab=INT), {}, "differ only in case"),
        # with a null in `a` it is of before the change, and with one in `c` of after it
        ({"b": 1}, of(b=INT, c=INT), SHIFT, "known whether the value in column 'b' is of before or after.*without 'b'"),
        ({"b": 1}, of(b=INT), {"a": "b", "b": None}, "known whether the value in column 'b' is of before or after"),
        (
            {"v": "x"},
            of(v=TEXT, text=TEXT),
            {"v": "text"},
            "known whether the value in column 'v' is of before or after",
        ),
    ],
)
def test_letter_that_would_lose_a_value_is_refused(
    letter: dict[str, object], new: StructType, names: dict[str, str | None], told: str
) -> None:
    with pytest.raises(BadConfigError, match=told):
        SchemaChange(case_sensitive=False, names=names).letter_keys(letter, new)


def test_letter_with_a_column_in_another_case_is_refused_if_case_sensitive() -> None:
    with pytest.raises(BadConfigError, match="'Text' would be lost"):
        SchemaChange(case_sensitive=True).letter_keys({"Text": "x"}, of(text=TEXT))


def nested(nullable: bool) -> list[StructType]:
    types = of(nullable, a=INT), ArrayType(LongType(), nullable), MapType(TEXT, LongType(), nullable)
    return [of(s=one) for one in types]


def test_nested_fields_may_become_nullable_but_not_required() -> None:
    for null, never in zip(nested(True), nested(False), strict=True):
        assert SchemaChange(case_sensitive=False).converter(never, null) is None
        with pytest.raises(BadConfigError, match=r"Column 's\.\w+' is not nullable now.*drain"):
            SchemaChange(case_sensitive=False).converter(null, never)
    with pytest.raises(BadConfigError, match=r"'s\.b' is not nullable now"):
        SchemaChange(case_sensitive=False).converter(
            of(s=of(a=INT)), of(s=StructType([*of(a=INT), StructField("b", INT, False)]))
        )


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (of(a=INT), of(a=TEXT), "'a' is int in parked rows, but string in the stream now"),
        (of(a=INT), of(A=LongType()), "'A' is int in"),
        (of(a=TimestampType()), of(a=TimestampNTZType()), "'a' is timestamp in"),
        (of(s=of(a=ArrayType(INT))), of(s=of(a=ArrayType(TEXT))), r"'s\.a\.element' is int in"),
        (of(s=of(a=INT)), of(s=INT), "'s' is struct<a:int> in"),
        (of(ab=INT, AB=INT), of(Ab=INT), r"\['ab', 'AB'\] of parked rows and \['Ab'\] of the stream now"),
        (of(ab=INT), of(Ab=INT, AB=INT), r"\['ab'\] of parked rows and \['Ab', 'AB'\] of the stream now"),
    ],
)
def test_incompatible_or_ambiguous_columns_are_refused(old: StructType, new: StructType, told: str) -> None:
    with pytest.raises(BadConfigError, match=f"{told}.*drain"):
        SchemaChange(case_sensitive=False).converter(old, new)


def test_string_with_another_collation_is_no_schema_change() -> None:
    assert SchemaChange(case_sensitive=False).converter(of(a=TEXT), of(a=StringType("UNICODE_CI"))) is None
