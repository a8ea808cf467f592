"""Garbage collection while many messages become pending, or get their outcomes."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MANY = 50_000
"""Number of new objects from which on the collector's next run would take long."""

_MOST = 2_000_000
"""Number of new objects after which the collector looks at all of them."""

_FROZEN = 10_000
"""Number of frozen objects from which on the program has frozen them. Python 3.12 freezes some hundreds itself."""

_unseen = 0
"""Number of objects that the collector hasn't seen since it looked at all."""


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Pause Python's garbage collector.

    It would walk all pending messages over and over while they or their outcomes become more, which takes longer than the
    rest. At the end they become old objects at once. Otherwise it would walk them three more times, as young, middle-aged and
    old ones. Messages need no collector, because they go with their last reference.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        try:
            _age()
        finally:
            gc.enable()


def _age() -> None:
    """Make all objects old ones, if many are new. From time to time, find garbage among them."""
    global _unseen
    new = gc.get_count()[0]
    if new < _MANY or gc.get_freeze_count() >= _FROZEN:  # `unfreeze` would undo that
        return
    _unseen += new
    if _unseen < _MOST:
        gc.freeze()
        gc.unfreeze()
    else:
        _unseen = 0
        gc.collect()
