"""Attributes of a bolt, which must not change after `initialize`: a worker may vanish with them, and nobody would notice."""

import pickle
from collections.abc import Iterator
from hashlib import blake2b
from time import perf_counter
from typing import Any

from pyspark import cloudpickle

from acker_redis.storm.components.bolt import Bolt
from acker_redis.storm.components.component import PREFIX
from acker_redis.storm.state.mapping import TaskState

_OWN = frozenset({"context", "task_id", "component_name", "topology_name", "storm_conf", "logger"})
"""Attributes that belong to the library, beside those with its prefix."""

_SHARE = 0.02
"""Share of a worker's time that comparisons may take, after the first ones."""

_ALWAYS = 2
"""Number of turns after which attributes are compared in any case."""


class Attributes:
    """Attributes of a bolt as they were after `initialize`.

    A bolt with `cache = True` may change them. An object that even cloudpickle can't serialise, such as a connection, is known
    by its identity, so a change inside of it isn't seen. Neither is one of a module's variables, unless a function of the
    program's main module that is an attribute uses it.
    """

    def __init__(self, component: Bolt) -> None:
        """Note the attributes."""
        self._component = component
        self._turns, self._secs, self._compared_at = 0, 0.0, 0.0
        self._before = {} if _is_cache(component) else self._fingerprints()

    def changed(self) -> str | None:
        """Return the name of an attribute that has changed; None: none has, or large ones were compared a moment ago."""
        if _is_cache(self._component):
            return None
        self._turns += 1
        if self._turns > _ALWAYS and self._secs > _SHARE * (perf_counter() - self._compared_at):
            return None
        now = self._fingerprints()
        return next((name for name in now | self._before if now.get(name) != self._before.get(name)), None)

    def _fingerprints(self) -> dict[str, object]:
        begin = perf_counter()
        found = {name: _fingerprint(value) for name, value in _attributes(self._component)}
        self._compared_at = perf_counter()
        self._secs = self._compared_at - begin
        return found


def _is_cache(component: Bolt) -> bool:
    """Return True if the bolt says that its attributes may vanish. Any other value of `cache` is one of its own."""
    return component.cache is True or type(component).cache is True


def _attributes(component: Bolt) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a bolt, and those of its classes that are data."""
    for name, value in vars(component).items():
        if name not in _OWN and not name.startswith(PREFIX) and not isinstance(value, TaskState):
            yield name, value
    for base in type(component).__mro__:
        if base is Bolt:
            break
        for name, value in vars(base).items():
            is_data = not callable(value) and not hasattr(value, "__get__")
            if is_data and not name.startswith(("__", PREFIX)):  # copy caches __slotnames__ in classes
                yield f"{base.__name__}.{name}", value


def _fingerprint(value: Any) -> object:
    try:
        data = pickle.dumps(value, 5)
    except Exception:  # pickle raises what a value's own code raises
        try:  # a lambda, or an object of a class in the main module
            data = cloudpickle.dumps(value, 5)  # type: ignore[no-untyped-call]
        except Exception:  # as above
            return id(value)
    return blake2b(data, digest_size=16).digest()
