"""Ctrl-C during a run: its jobs end, those that start later included, and Spark's log stays quiet meanwhile.

One line of the log tells of it, and Python prints no stack.
"""

import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

from pyspark.sql import SparkSession

from acker_redis.spark.runtime.jobs import CANCEL_EVERY_SECS, GONE, cancel
from acker_redis.spark.runtime.jvm import java_static
from acker_redis.spark.runtime.sessions import is_connect

log = logging.getLogger("acker_redis.spark")

_TASKS_END_SECS = 5.0
_LOOK_SECS = 0.05


_TOLD = "acker_redis_told"
"""Attribute of interrupts of which the log has told."""


def told(interrupt: KeyboardInterrupt, app: str) -> KeyboardInterrupt:
    """Tell in the log that Ctrl-C has ended a run, and return the interrupt without its stack.

    If it ends the program, too, Python prints nothing more. The exit status is that of any program that Ctrl-C ends. An
    interrupt with a text is one of the program's own, and is printed. A hook of the program hears of each.
    """
    if not interrupt.args and log.isEnabledFor(logging.WARNING):
        log.warning("interrupted, run again to process what is unfinished app=%r", app)
        setattr(interrupt, _TOLD, True)
        if sys.excepthook is sys.__excepthook__:
            sys.excepthook = _print_others
    return interrupt.with_traceback(None)


def _print_others(kind: type[BaseException], exc: BaseException, stack: TracebackType | None) -> None:
    """Print errors as Python does, except for interrupts of which the log has told."""
    if not hasattr(exc, _TOLD):
        sys.__excepthook__(kind, exc, stack)


class Cancellation:
    """Jobs of the emission that runs, which the end of the program by Ctrl-C or `sys.exit` cancels."""

    def __init__(self) -> None:
        """Begin without an emission."""
        self._lock = threading.Lock()
        self._current: tuple[SparkSession, str, threading.Event] | None = None
        self._is_wanted = False

    @contextmanager
    def of(self, spark: SparkSession, tag: str) -> Iterator[None]:
        """Name the tag of the jobs of an emission while it runs."""
        ended = threading.Event()
        with self._lock:
            self._current = (spark, tag, ended)
            self._begin_if_wanted()
        try:
            yield
        finally:
            ended.set()
            with self._lock:
                self._current = None

    @contextmanager
    def by_interrupt(self) -> Iterator[None]:
        """Cancel the jobs if this thread is interrupted."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            with self._lock:
                self._is_wanted = True
                self._begin_if_wanted()
            raise

    def _begin_if_wanted(self) -> None:
        if self._is_wanted and self._current is not None:
            threading.Thread(target=_cancel_until, args=self._current, name="acker-cancel", daemon=True).start()


def _cancel_until(spark: SparkSession, tag: str, ended: threading.Event) -> None:
    with suppress(*GONE):
        cancel(spark, tag)
        while not ended.wait(CANCEL_EVERY_SECS):
            cancel(spark, tag)


@contextmanager
def quiet_interrupts(spark: SparkSession) -> Iterator[None]:
    """Turn Spark's log off from a Ctrl-C to the end of the context.

    Spark logs each write that is cancelled as an error, with the stack of Java. Only the main thread hears of Ctrl-C, and only
    a classic session has its log in this process.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or is_connect(spark) or not callable(before):
        yield
        return
    levels: list[Any] = []

    def handle(number: int, frame: FrameType | None) -> None:
        _turn_off(spark, levels)
        before(number, frame)
        _restore(spark, levels)  # the program goes on

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is handle:
            signal.signal(signal.SIGINT, before)
        if levels:
            _wait_for_tasks(spark)
        _restore(spark, levels)


def _wait_for_tasks(spark: SparkSession) -> None:
    """Wait for the end of cancelled tasks, which Spark logs. A task that hangs isn't waited for."""
    until = time.monotonic() + _TASKS_END_SECS
    with suppress(*GONE):
        tracker = spark.sparkContext._jsc.sc().statusTracker()  # noqa: SLF001
        while any(one.numRunningTasks() for one in tracker.getExecutorInfos()) and time.monotonic() < until:
            time.sleep(_LOOK_SECS)


def _turn_off(spark: SparkSession, levels: list[Any]) -> None:
    if not levels:
        with suppress(*GONE):
            context = spark.sparkContext
            level = java_static(context, "org.apache.logging.log4j.LogManager", "getRootLogger")().getLevel()
            _set_level(spark, java_static(context, "org.apache.logging.log4j.Level", "valueOf")("OFF"))
            levels.append(level)


def _restore(spark: SparkSession, levels: list[Any]) -> None:
    while levels:
        with suppress(*GONE):
            _set_level(spark, levels[-1])
        levels.pop()


def _set_level(spark: SparkSession, level: Any) -> None:
    java_static(spark.sparkContext, "org.apache.logging.log4j.core.config.Configurator", "setRootLevel")(level)
