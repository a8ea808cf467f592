"""Ctrl-C, or `sys.exit` in a signal's handler, ends a run and its jobs, and Spark's log has nothing of it."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from acker_redis import Acker
from acker_redis.spark import Tracker, run_tracked
from acker_redis.spark.runtime.interrupts import quiet_interrupts, told
from acker_redis.spark.runtime.jvm import java_static
from acker_redis.testing import wait_until

WAIT_SECS = 300.0
"""A job that nobody cancels goes on for so long."""


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    with Acker.connect(url, app="interrupts", shards=1, message_timeout_secs=60) as acker:
        yield acker


def waits(folder: Path) -> Callable[[Any], list[tuple[int]]]:
    def wait(row: Any) -> list[tuple[int]]:
        (folder / "works").touch()
        time.sleep(WAIT_SECS)
        return [(row[0],)]

    return wait


def pressed(is_there: Callable[[], bool], number: int = signal.SIGINT) -> threading.Thread:
    """A thread that presses Ctrl-C once something is there."""

    def press() -> None:
        wait_until(is_there, "the pipeline runs", WAIT_SECS)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


@pytest.fixture
def handled() -> Iterator[None]:
    """Python's own handler of Ctrl-C, which cancels nothing, and one of SIGTERM."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    of_term = signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    hook, sys.excepthook = sys.excepthook, sys.__excepthook__
    yield
    sys.excepthook = hook
    signal.signal(signal.SIGTERM, of_term)
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_an_interrupted_run_cancels_its_job(
    spark: Any,
    acker: Acker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    number: int,
    raised: type[BaseException],
) -> None:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.flat_map(messages, waits(tmp_path), "id bigint")
        tracker.write(rows, lambda writer: writer.mode("append").parquet(str(tmp_path / "out")))

    began, thread = time.monotonic(), pressed((tmp_path / "works").exists, number)
    with pytest.raises(raised) as ended:
        run_tracked(spark.range(2), pipeline, acker=acker, ids="id")
    thread.join()
    assert time.monotonic() - began < WAIT_SECS, "nobody waits for the job"
    if raised is KeyboardInterrupt:
        assert len(ended.traceback) == 2, "of the caller, and of what it called"
        waits_for_the_job, tells = (
            "run ending, waiting for the current emission error=KeyboardInterrupt",
            "interrupted, run again to process what is unfinished app='interrupts'",
        )
        lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert lines in ([tells], [waits_for_the_job, tells]), "the job may take a second to end"
        shown = [ended.value, ValueError("another")]
        for error in shown:
            sys.excepthook(type(error), error, None)
        assert capsys.readouterr().err == "ValueError: another\n", "the interrupt has its line"
    assert acker.stats().acked == 0 and acker.pending() == 0


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("silenced", [False, True])
def test_interrupt_that_the_log_does_not_tell_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, silenced: bool
) -> None:
    monkeypatch.setattr(logging.getLogger("acker_redis.spark"), "disabled", silenced)
    interrupt = told(KeyboardInterrupt() if silenced else KeyboardInterrupt("disk is full"), "app")
    sys.excepthook(KeyboardInterrupt, interrupt, None)
    assert capsys.readouterr().err == ("KeyboardInterrupt\n" if silenced else "KeyboardInterrupt: disk is full\n")


@pytest.mark.usefixtures("handled")
def test_hook_of_the_program_hears_of_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, exc, stack: heard.append(exc))
    for interrupt in (told(KeyboardInterrupt(), "app"), told(KeyboardInterrupt(), "app")):
        sys.excepthook(KeyboardInterrupt, interrupt, None)
    assert len(heard) == 2


@pytest.mark.usefixtures("handled")
def test_a_job_that_starts_after_the_interrupt_is_cancelled_too(spark: Any, acker: Acker, tmp_path: Path) -> None:
    """No job runs when Ctrl-C is pressed, and one press is enough."""
    goes_on, heard = threading.Event(), threading.Event()

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        heard.set()
        goes_on.wait(WAIT_SECS)
        rows = tracker.flat_map(messages, waits(tmp_path), "id bigint")
        tracker.write(rows, lambda writer: writer.mode("append").parquet(str(tmp_path / "out")))

    began, thread = time.monotonic(), pressed(heard.is_set)
    releasing = pressed_later(thread, goes_on)
    with pytest.raises(KeyboardInterrupt):
        run_tracked(spark.range(2), pipeline, acker=acker, ids="id")
    releasing.join()
    assert time.monotonic() - began < WAIT_SECS and acker.stats().acked == 0


def pressed_later(thread: threading.Thread, event: threading.Event) -> threading.Thread:
    """A thread that sets an event behind the end of another."""

    def release() -> None:
        thread.join()
        event.set()

    releasing = threading.Thread(target=release)
    releasing.start()
    return releasing


@pytest.mark.classic("the log is the server's")
@pytest.mark.parametrize("raises", [True, False])
def test_the_log_is_off_while_an_interrupted_run_ends_and_as_before_afterwards(spark: Any, raises: bool) -> None:
    levels: list[str] = []

    def level() -> str:
        root = java_static(spark.sparkContext, "org.apache.logging.log4j.LogManager", "getRootLogger")()
        return str(root.getLevel().toString())

    def handle(*_: object) -> None:
        levels.append(level())
        if raises:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    spark.sparkContext.setLogLevel("FATAL")
    try:
        with pytest.raises(ValueError), quiet_interrupts(spark):  # noqa: PT011, PT012
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                assert raises
            levels.append(level())
            raise ValueError
        assert levels == ["OFF", "OFF" if raises else "FATAL"]
        assert level() == "FATAL" and signal.getsignal(signal.SIGINT) is handle
    finally:
        spark.sparkContext.setLogLevel("OFF")
        signal.signal(signal.SIGINT, before)
