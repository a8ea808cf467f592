"""Rows that are kept come back bit by bit."""

import os
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_redis.spark.worker.row_codec import from_bytes, to_bytes
from tests.support.arrow_values import IN_SPARK, NAMES, VARIANT, array, kinds, values, values_of

KINDS = kinds([*IN_SPARK, VARIANT, pa.large_string(), pa.large_binary()], [*NAMES, "A", ""], twice=True)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[pa.DataType], list[tuple[Any, ...]]]:
    columns = draw(st.lists(KINDS, min_size=1, max_size=4))
    return columns, draw(st.lists(st.tuples(*map(values, columns)), max_size=4))


@given(table=tables(), start=st.integers(0, 3))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_row_survives_encoding_and_decoding(table: tuple[list[pa.DataType], list[tuple[Any, ...]]], start: int) -> None:
    types, rows = table
    schema = pa.schema([(f"c{at % 2}", kind) for at, kind in enumerate(types)])
    columns = [array(kind, [row[at] for row in rows]) for at, kind in enumerate(types)]
    kept = to_bytes(pa.StructArray.from_arrays(columns, fields=list(schema)).slice(start), 1 << 20)
    again = from_bytes([row for row in kept if row is not None], schema)
    again.validate(full=True)
    assert again.schema == schema
    assert values_of(again.to_struct_array()) == rows[start:]


def test_null_rows_and_long_rows_are_not_kept() -> None:
    rows = pa.array([{"t": "x"}, None, {"t": None}, {"t": "x" * 100}])
    one, null, empty, long = to_bytes(rows, 100)
    assert (null, long) == (None, None)
    assert one is not None and empty is not None
    assert from_bytes([empty, one], pa.schema([("t", pa.string())])).to_pylist() == [{"t": None}, {"t": "x"}]
    assert to_bytes(rows, len(one))[0] == one
    assert to_bytes(rows, len(one) - 1)[0] is None


def test_invalid_utf_8_and_float_bits_survive_row_codec() -> None:
    text = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    floats = pa.array(np.array([0x7FF8000000000001, 1 << 63], np.uint64).view(np.float64))
    (kept, zero) = to_bytes(pa.StructArray.from_arrays([pa.concat_arrays([text, text]), floats], ["t", "f"]), 100)
    assert kept is not None and zero is not None
    again = from_bytes([kept, zero], pa.schema([("t", pa.string()), ("f", pa.float64())]))
    assert again.column("t").view(pa.binary()).to_pylist() == [b"\xff\xfe"] * 2
    assert again.column("f").view(pa.uint64()).to_pylist() == [0x7FF8000000000001, 1 << 63]


def test_foreign_pickle_is_refused_without_running_code() -> None:
    with pytest.raises(pickle.UnpicklingError, match="no spout wrote it"):
        from_bytes([pickle.dumps((os.getcwd,))], pa.schema([("t", pa.string())]))
