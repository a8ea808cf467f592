"""What a function uses that runs later than it was given, and whether it is still as it was.

A function that was made in a loop sees the loop's variables as they are when it runs: with output that is a whole, that is
when the loop is over. What is looked at here must never keep a good run from writing, so nothing here raises.
"""

import dis
from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType, SimpleNamespace

DEPTH = 5
"""Containers within containers are looked into so deep."""

MOST = 10_000
"""Values of one variable that are looked at; a container with more is the same as long as it is as long."""


@dataclass(frozen=True, eq=False)
class _Held:
    """A value that is not looked into: the same object, or one that says it is equal. Holding it keeps its id its own."""

    value: object

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Held) or type(self.value) is not type(other.value):
            return False
        try:
            return self.value is other.value or bool(self.value == other.value)
        except Exception:  # columns and arrays have no such truth
            return False

    __hash__ = None  # type: ignore[assignment]


def frozen(value: object) -> object:
    """What a value is now, to be compared with what it is later; containers by what is in them."""
    return _frozen(value, DEPTH, [MOST])


def _frozen(value: object, depth: int, room: list[int]) -> object:
    room[0] -= 1
    if not depth or room[0] < 0:
        return _Held(value)
    try:
        if isinstance(value, (Mapping, AbstractSet, list, tuple, deque)):
            if len(value) > room[0]:
                return type(value), _Held(value), len(value)
            if isinstance(value, AbstractSet):
                room[0] -= len(value)
                return type(value), frozenset(value)
            if isinstance(value, Mapping):
                return type(value), {key: _frozen(one, depth - 1, room) for key, one in value.items()}
            return type(value), [_frozen(one, depth - 1, room) for one in value]
        if (is_dataclass(value) or isinstance(value, SimpleNamespace)) and not isinstance(value, type):
            return type(value), {name: _frozen(one, depth - 1, room) for name, one in _attributes(value).items()}
    except Exception:  # others change it just now, or it isn't what it seems
        return _Held(value)
    return _Held(value)


class Used:
    """The variables that a function takes from around it, and their values now."""

    def __init__(self, function: object) -> None:
        """Look at a function, a method, an object that can be called, or a `partial` of them."""
        self._function = function  # ids of what it is made of are theirs as long as it lives
        self._first = self._now()

    def changed(self) -> list[str]:
        """Names of those that have other values by now."""
        now = self._now()
        return sorted({key[1] for key, value in self._first.items() if key in now and now[key] != value})

    def _now(self) -> dict[tuple[int, str], object]:
        found: dict[tuple[int, str], object] = {}
        waiting, seen = [self._function], dict[int, object]()
        while waiting and len(seen) < MOST:
            one = waiting.pop()
            if id(one) in seen:
                continue
            seen[id(one)] = one
            try:
                taken = dict(_taken(one, given=one is self._function))
            except Exception:  # noqa: S112  # an object that doesn't let itself be looked at
                continue
            for name, value in taken.items():
                found[id(one), name] = frozen(value)
                if _is_used(value, name, one):
                    waiting.append(value)
            if issubclass(type(one), MethodType):
                waiting.append(one.__func__)  # type: ignore[attr-defined]
            elif one is self._function and not issubclass(type(one), (FunctionType, partial)):
                waiting.append(getattr(type(one), "__call__", None))  # noqa: B004
        return found


def _is_used(value: object, name: str, user: object) -> bool:
    """Whether it is to be looked at like its user: the user was given it, or is of the same file. Libraries have their own."""
    kind = type(value)  # `isinstance` asks the object, which may be a proxy of what isn't there
    if not issubclass(kind, FunctionType):
        return issubclass(kind, (MethodType, partial))
    if not isinstance(user, FunctionType) or name in user.__code__.co_freevars:
        return True
    return getattr(value, "__globals__", None) is user.__globals__


def _taken(one: object, *, given: bool) -> Iterator[tuple[str, object]]:
    if isinstance(one, partial):
        yield "func", one.func
        yield from ((f"argument {at}", value) for at, value in enumerate(one.args))
        yield from one.keywords.items()
    elif isinstance(one, MethodType):
        yield from ((f"self.{name}", value) for name, value in _attributes(one.__self__).items())
    elif isinstance(one, FunctionType):
        for name, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:  # it has no value yet
                continue
        for name in _globals_of(one.__code__):
            if name in one.__globals__:
                yield name, one.__globals__[name]
    elif given:
        yield from ((f"self.{name}", value) for name, value in _attributes(one).items())


def _attributes(one: object) -> dict[str, object]:
    if is_dataclass(one):
        return {field.name: getattr(one, field.name, None) for field in fields(one)}
    return dict(getattr(one, "__dict__", {}))


def _globals_of(code: CodeType) -> set[str]:
    """Names of a module that a function reads, also in functions inside of it."""
    names = {str(one.argval) for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names |= _globals_of(inner)
    return names
