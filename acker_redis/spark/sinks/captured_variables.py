"""Detect changes in the variables of a function that runs later than it was passed.

A function made in a loop sees the loop's variables as they are when it runs. With `output="whole"` it runs after the loop.
This check must never keep a correct run from writing, so nothing here raises.
"""

import dis
from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType, SimpleNamespace

DEPTH = 5
"""Depth to which nested containers are compared."""

MOST = 10_000
"""Number of values compared per variable. A larger container counts as unchanged while its length is the same."""


@dataclass(frozen=True, eq=False)
class _Opaque:
    """A value compared as a whole: equal to itself, and to any value that it declares equal.

    Holding the value keeps its id in use.
    """

    value: object

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Opaque) or type(self.value) is not type(other.value):
            return False
        try:
            return self.value is other.value or bool(self.value == other.value)
        except Exception:  # columns and arrays have no truth value
            return False

    __hash__ = None  # type: ignore[assignment]


def snapshot(value: object) -> object:
    """Return a snapshot of a value for a later comparison.

    Containers are compared by their contents.
    """
    return _snapshot(value, DEPTH, [MOST])


def _snapshot(value: object, depth: int, room: list[int]) -> object:
    room[0] -= 1
    if not depth or room[0] < 0:
        return _Opaque(value)
    try:
        if isinstance(value, (Mapping, AbstractSet, list, tuple, deque)):
            if len(value) > room[0]:
                return type(value), _Opaque(value), len(value)
            if isinstance(value, AbstractSet):
                room[0] -= len(value)
                return type(value), frozenset(value)
            if isinstance(value, Mapping):
                return type(value), {key: _snapshot(item, depth - 1, room) for key, item in value.items()}
            return type(value), [_snapshot(item, depth - 1, room) for item in value]
        if (is_dataclass(value) or isinstance(value, SimpleNamespace)) and not isinstance(value, type):
            return type(value), {name: _snapshot(item, depth - 1, room) for name, item in _attributes(value).items()}
    except Exception:  # another thread changes it just now, or it isn't what it seems
        return _Opaque(value)
    return _Opaque(value)


class CapturedVariables:
    """The variables that a function captures, and their current values."""

    def __init__(self, function: object) -> None:
        """Record the variables of a function, a method, a callable object, or a `partial` of one."""
        self._function = function  # keeps its parts alive, and so their ids
        self._first = self._now()

    def changed(self) -> list[str]:
        """Return the names of the variables whose values have changed."""
        now = self._now()
        return sorted({key[1] for key, value in self._first.items() if key in now and now[key] != value})

    def _now(self) -> dict[tuple[int, str], object]:
        values: dict[tuple[int, str], object] = {}
        waiting, seen = [self._function], dict[int, object]()
        while waiting and len(seen) < MOST:
            user = waiting.pop()
            if id(user) in seen:
                continue
            seen[id(user)] = user
            try:
                variables = dict(_variables(user, is_function=user is self._function))
            except Exception:  # noqa: S112  # an object that can't be inspected
                continue
            for name, value in variables.items():
                values[id(user), name] = snapshot(value)
                if _is_used(value, name, user):
                    waiting.append(value)
            if issubclass(type(user), MethodType):
                waiting.append(user.__func__)  # type: ignore[attr-defined]
            elif user is self._function and not issubclass(type(user), (FunctionType, partial)):
                waiting.append(getattr(type(user), "__call__", None))  # noqa: B004
        return values


def _is_used(value: object, name: str, user: object) -> bool:
    """Return True if a value is inspected like its user.

    That is so if it was passed to its user, or comes from the same file instead of a library.
    """
    kind = type(value)  # `isinstance` asks the object, which may be a proxy of what isn't there
    if not issubclass(kind, FunctionType):
        return issubclass(kind, (MethodType, partial))
    if not isinstance(user, FunctionType) or name in user.__code__.co_freevars:
        return True
    return getattr(value, "__globals__", None) is user.__globals__


def _variables(user: object, *, is_function: bool) -> Iterator[tuple[str, object]]:
    """Yield the variables of a function, or of the object that was passed as one."""
    if isinstance(user, partial):
        yield "func", user.func
        yield from ((f"argument {at}", value) for at, value in enumerate(user.args))
        yield from user.keywords.items()
    elif isinstance(user, MethodType):
        yield from ((f"self.{name}", value) for name, value in _attributes(user.__self__).items())
    elif isinstance(user, FunctionType):
        for name, cell in zip(user.__code__.co_freevars, user.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:  # it has no value yet
                continue
        for name in _globals_of(user.__code__):
            if name in user.__globals__:
                yield name, user.__globals__[name]
    elif is_function:
        yield from ((f"self.{name}", value) for name, value in _attributes(user).items())


def _attributes(value: object) -> dict[str, object]:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    return dict(getattr(value, "__dict__", {}))


def _globals_of(code: CodeType) -> set[str]:
    """Return the module-level names that a function and its inner functions read."""
    loads = [step for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    names = {str(step.argval) for step in loads}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names |= _globals_of(inner)
    return names
