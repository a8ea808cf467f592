"""Attributes of bolts that change after `initialize` are found, whatever they are, unless the bolt says that they may."""

import copy
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from acker_redis.storm import Bolt, Tuple
from acker_redis.storm.turns import attributes
from acker_redis.storm.turns.attributes import Attributes


class Plain(Bolt):
    total = 0
    names: list[str] = []

    def process(self, tup: Tuple) -> None: ...


def of(**values: Any) -> Any:
    """A bolt of a class of its own with these attributes."""
    bolt = type("Own", (Plain,), {"total": 0, "names": []})()
    vars(bolt).update(values)
    return bolt


def helper() -> Any:
    """An object of a class that only cloudpickle can serialise, such as one of a program's main module."""

    class Helper:
        n = 0

    return Helper()


def count(bolt: Any) -> None:
    bolt.counts["a"] += 1


CHANGES: dict[str, tuple[dict[str, Any], Callable[[Any], object], str]] = {
    "Counter": ({"counts": Counter()}, count, "counts"),
    "defaultdict of a lambda": ({"counts": defaultdict(lambda: 0)}, count, "counts"),
    "object": ({"helper": helper()}, lambda bolt: setattr(bolt.helper, "n", 1), "helper"),
    "new": ({}, lambda bolt: setattr(bolt, "seen", 1), "seen"),
    "deleted": ({"seen": 1}, lambda bolt: delattr(bolt, "seen"), "seen"),
    "number of the class": ({}, lambda bolt: setattr(type(bolt), "total", 1), "Own.total"),
    "list of the class": ({}, lambda bolt: type(bolt).names.append("a"), "Own.names"),
    "another connection": ({"lock": threading.Lock()}, lambda bolt: setattr(bolt, "lock", threading.Lock()), "lock"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_found(what: str) -> None:
    values, change, name = CHANGES[what]
    bolt = of(**values)
    own = Attributes(bolt)
    assert own.changed() is None
    change(bolt)
    assert own.changed() == name


def test_what_cant_be_serialised_may_change_inside() -> None:
    lock = threading.Lock()
    own = Attributes(of(lock=lock))
    with lock:
        assert own.changed() is None


def test_what_python_caches_in_a_class_is_no_attribute_of_the_bolt() -> None:
    """`copy` and `pickle` put `__slotnames__` into the class of an object, such as that of a base class in another task."""

    class Base(Bolt):
        def process(self, tup: Tuple) -> None: ...

    class Derived(Base): ...

    own = Attributes(Derived())
    copy.deepcopy(Base())
    assert "__slotnames__" in vars(Base) and own.changed() is None


def test_only_true_says_that_attributes_are_a_cache() -> None:
    class Says(Plain):
        cache = True

    says, keeps = Says(), Plain()
    owns = Attributes(says), Attributes(keeps)
    for bolt in (says, keeps):
        vars(bolt)["cache"] = {"a": 1}
    assert [own.changed() for own in owns] == [None, "cache"]
    assert [owns[0].changed() for _ in range(5)] == [None] * 5, "in any turn"


def test_large_attributes_are_compared_as_often_as_they_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here each comparison takes a second, and may take a fiftieth of the time."""
    now, fingerprint = 0.0, attributes._fingerprint

    def slow(value: Any) -> object:
        nonlocal now
        now += 1.0 if value == "large" else 0.0
        return fingerprint(value)

    monkeypatch.setattr(attributes, "_fingerprint", slow)
    monkeypatch.setattr(attributes, "perf_counter", lambda: now)
    bolt = of(model="large", counts=Counter())
    own = Attributes(bolt)
    assert own.changed() is own.changed() is None
    count(bolt)
    assert own.changed() is None, "it was compared a moment ago"
    now += 49
    assert own.changed() is None
    now += 1
    assert own.changed() == "counts"
