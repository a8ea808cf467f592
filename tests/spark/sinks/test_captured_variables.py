"""What a function that runs later uses, and whether it changed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from acker_redis.spark.sinks.captured_variables import MOST, CapturedVariables, snapshot

TABLE = "a"


@dataclass
class Settings:
    table: str = "a"


class Saver:
    def __init__(self) -> None:
        self.table, self.options = "a", {"x": [1]}

    def save(self, rows: object) -> object:
        return rows, self.table

    def __call__(self, rows: object) -> object:
        return rows, self.table


class Odd:
    """Can be called, and not be looked at."""

    def __getattribute__(self, name: str) -> Any:
        raise ValueError(name)

    def __call__(self, rows: object) -> object:
        return rows

    def __eq__(self, other: object) -> bool:
        raise ValueError

    __hash__ = None  # type: ignore[assignment]


def save(rows: object) -> object:
    return rows, TABLE


def test_changed_module_variable_of_called_function_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    used = CapturedVariables(lambda rows: [save(row) for row in rows])
    assert used.changed() == []
    monkeypatch.setitem(globals(), "TABLE", "b")
    assert used.changed() == ["TABLE"]


@pytest.mark.parametrize(
    ("change", "make"),
    [
        (lambda it: it.__setitem__("x", 2), lambda it: lambda rows: (rows, it)),
        (lambda it: it["deep"][0].append(1), lambda it: lambda rows: (rows, it)),
        (lambda it: it["set"].add(1), lambda it: lambda rows: (rows, it)),
        (lambda it: it["deep"].clear(), lambda it: partial(print, it)),
        (lambda it: it.pop("x"), lambda it: partial(print, end=it)),
        (lambda it: setattr(it["settings"], "table", "b"), lambda it: lambda rows: (rows, it)),
        (lambda it: setattr(it["space"], "table", "b"), lambda it: lambda rows: (rows, it)),
        (lambda it: setattr(it["saver"], "table", "b"), lambda it: it["saver"].save),
        (lambda it: it["saver"].options["x"].append(2), lambda it: it["saver"].save),
        (lambda it: setattr(it["saver"], "table", "b"), lambda it: it["saver"]),
        (lambda it: setattr(it["saver"], "table", "b"), lambda it: partial(it["saver"].save)),
    ],
)
def test_changes_inside_captured_objects_are_detected(
    change: Callable[[Any], object], make: Callable[[Any], object]
) -> None:
    it = {
        "x": 1, "deep": [[0]], "set": {0}, "settings": Settings(), "space": SimpleNamespace(table="a"), "saver": Saver(),
    }  # fmt: skip
    used = CapturedVariables(make(it))
    assert used.changed() == []
    change(it)
    assert len(used.changed()) == 1


def test_captured_variable_set_to_equal_value_is_unchanged() -> None:
    table, names, log = "a", ["x"], object()

    def write(rows: object) -> object:
        return rows, table, names, log

    used = CapturedVariables(write)
    table, names = "".join("a"), list(names)
    assert used.changed() == []
    log = object()
    assert used.changed() == ["log"]
    table = b"a"  # type: ignore[assignment]
    assert used.changed() == ["log", "table"]


def test_captured_variables_of_any_kind_raise_no_error() -> None:
    turning: list[object] = []
    turning.append(turning)
    odd, array, many = Odd(), np.arange(3), list(range(2 * MOST))

    def write(rows: object) -> object:
        return later(rows), odd, array, many, turning

    used = [CapturedVariables(one) for one in (write, odd, print, "".join, Odd, partial(write, odd), np.add)]

    def later(rows: object) -> object:
        return rows

    assert [one.changed() for one in used] == [[]] * len(used)
    many.append(1)
    array = np.arange(3)
    assert used[0].changed() == ["array", "many"]
    assert snapshot({1: odd}) == snapshot({1: odd})
