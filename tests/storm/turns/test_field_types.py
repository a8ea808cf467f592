"""A value fits the type of a field if its sink would write it as it is."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from acker_redis.storm.turns.field_types import advice, column_of, fit

HERE, NOWHERE = datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 12)  # noqa: DTZ001  # naive on purpose
STRUCT = pa.struct([("a", pa.int64()), ("b", pa.string())])
CASES: list[tuple[Any, list[Any], list[Any]]] = [
    (pa.int64(), [0, -(1 << 63), np.int64(3)], [1 << 63, True, 1.0, "1", np.float64(1)]),
    (pa.int8(), [127, -128], [128, np.int64(300)]),
    (pa.float64(), [1.5, 1, np.float64(1), np.float32(1), 1 << 53], [True, (1 << 53) + 1, "1", np.bool_(1)]),
    (pa.float32(), [1.5, 5, 1 << 24], [True, (1 << 24) + 1]),
    (pa.string(), ["a", "é", np.str_("a")], [b"a", 1, "\ud800"]),
    (pa.bool_(), [True, np.bool_(0)], [1, 0, "true"]),
    (pa.binary(), [b"a", bytearray(b"a")], ["a", 1]),
    (pa.date32(), [date(2026, 1, 1)], [HERE, NOWHERE, 5, "2026-01-01"]),
    (pa.timestamp("us", tz="UTC"), [HERE], [NOWHERE, date(2026, 1, 1), 5]),
    (pa.timestamp("us"), [NOWHERE], [HERE, date(2026, 1, 1), 5]),
    (pa.decimal128(5, 1), [Decimal("1.5"), 1], [Decimal("1.25"), 1.5, True, "1"]),
    (pa.list_(pa.float64()), [[1.5, 1, None], (1.5,), np.array([1.0]), []], [[True], [1, "a"], {1.5}, "ab"]),
    (pa.map_(pa.string(), pa.int64()), [{"a": 1, "b": None}], [{"a": "b"}, {None: 1}, [("a", 1)]]),
    (STRUCT, [{"a": 1, "b": "x"}, {"a": None}, {}, (1, "x")], [{"a": 1, "c": 2}, {"b": 1}, [("a", 1)], (1,), ("x", 1)]),
    (pa.list_(STRUCT), [[{"a": 1}, None], [(1, "x"), (None, "y")], None], [[{"c": 1}], [("x",)]]),
    (pa.map_(pa.string(), STRUCT), [{"k": (1, "x"), "l": None}, {"k": {"a": 1}}], [{"k": (1,)}]),
    (pa.struct([("s", STRUCT)]), [((1, "x"),), {"s": (1, "x")}, {"s": {"a": 1}}], [((1,),)]),
    (pa.duration("us"), [timedelta(1)], ["a", True]),
]


@pytest.mark.parametrize(("kind", "fitting", "others"), CASES, ids=[str(kind) for kind, *_ in CASES])
def test_values_fit_a_type_if_nothing_of_them_would_change(kind: Any, fitting: list[Any], others: list[Any]) -> None:
    fits = fit(kind)
    assert all(fits(one) for one in fitting if one is not None)
    assert not any(map(fits, others))
    assert len(column_of(fitting, kind)) == len(fitting), "the sink can write them, together"


def test_advice_says_what_to_emit() -> None:
    assert advice(pa.timestamp("us", tz="UTC")) == "Emit a datetime with a time zone"
    assert advice(STRUCT) == "Emit a dict with these keys, or a tuple in this order: a, b"
    assert advice(pa.int64()) == "Emit a value of this type"
