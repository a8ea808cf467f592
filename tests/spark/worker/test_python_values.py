"""Values of Arrow in Python: maps are dicts, at any depth."""

from typing import Any

import pyarrow as pa
import pytest

from acker_redis.spark.worker.python_values import rows_of, values_of

MAP = pa.map_(pa.string(), pa.int64())


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (MAP, [{"a": 1, "b": None}, {}, None]),
        (pa.list_(MAP), [[{"a": 1}, None], [], None]),
        (pa.large_list(MAP), [[{"a": 1}]]),
        (pa.struct({"m": MAP, "n": pa.int64()}), [{"m": {"a": 1}, "n": 2}, {"m": None, "n": None}, None]),
        (pa.map_(pa.int64(), MAP), [{7: {"a": 1}, 8: None}]),
        (pa.map_(pa.struct({"k": pa.int64()}), MAP), [[({"k": 1}, {"a": 1})]]),
        (pa.list_(pa.int64()), [[1], None]),
    ],
)
def test_maps_are_dicts(kind: pa.DataType, values: list[Any]) -> None:
    column = pa.array(values, kind)
    assert values_of(column) == values
    assert values_of(column.slice(1)) == values[1:]


def test_rows_are_dicts_by_column() -> None:
    batch = pa.record_batch({"id": pa.array([1, 2]), "m": pa.array([{"a": 1}, None], MAP)})
    assert rows_of(batch) == [{"id": 1, "m": {"a": 1}}, {"id": 2, "m": None}]
    assert rows_of(batch.select(["id"])) == [{"id": 1}, {"id": 2}]
    assert rows_of(batch.slice(0, 0)) == []
