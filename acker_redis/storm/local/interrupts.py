"""Ctrl-C while a topology starts or runs. Only the main thread hears of it."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

log = logging.getLogger("acker_redis.storm")


class Interrupts:
    """Turns the first Ctrl-C into calls, one each, and others into KeyboardInterrupt."""

    def __init__(self, *calls: Callable[[], object]) -> None:
        """Set the functions to call."""
        self._calls = calls
        self._count = 0
        self._previous: Any = None

    def __enter__(self) -> None:
        """Begin to hear of Ctrl-C."""
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)

    def __exit__(self, *error: object) -> None:
        """Let whoever heard of it before hear of it again."""
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > len(self._calls):
            raise KeyboardInterrupt
        self._calls[self._count - 1]()


@contextmanager
def noted() -> Iterator[threading.Event]:
    """Note the first Ctrl-C in an event. A call of Spark that is interrupted prints stacks of Python and Java.

    Raises:
        KeyboardInterrupt: another one came.
    """
    event = threading.Event()

    def note() -> None:
        event.set()
        log.warning("interrupted, ends once Spark has answered, press Ctrl-C again to end at once")

    with Interrupts(note):
        yield event
