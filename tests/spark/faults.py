"""Faults on purpose, once each: what tests do to workers, executors and shuffle files in the middle of a task."""

import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from acker_redis.spark import Emitted, worker
from acker_redis.testing import wait_until

WAIT_SECS = 150.0
"""No test waits longer for another process; the machine may be busy."""


def fan_out(children: int, batch: pa.RecordBatch) -> Emitted:
    """So many children per row; row 0 of the messages has none."""
    ids = batch.column("id").to_numpy()
    counts = np.where(ids == 0, 0, children)
    parents = np.repeat(np.arange(len(ids)), counts)
    ordinal = np.concatenate([np.arange(count) for count in counts]) if len(parents) else np.array([], int)
    return Emitted(pa.record_batch({"id": ids[parents], "child": pa.array(ordinal, pa.int32())}), parents)


def once(mark: Path, act: Callable[[], None]) -> None:
    """Do something the first time only, however many processes come by."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return
    act()


def raise_error() -> None:
    raise RuntimeError("on purpose")


def kill_self() -> None:
    """This Python worker, as the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_executor() -> None:
    """The executor this worker works for: the JVM is the parent of the daemon that forked the worker."""
    os.kill(parent(os.getppid()), signal.SIGKILL)


def parent(pid: int) -> int:
    """Of a process, from Linux' /proc: the second field behind the name, which may hold anything."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def around_send(before: Callable[[], object] | None = None, after: Callable[[], object] | None = None) -> None:
    """In this worker, for the task that runs: do something before or after its updates go out."""
    send = worker.send

    def send_between(sent: Sequence[worker.Updates], handed: worker.Handed) -> int:
        worker.send = send
        if before is not None:
            before()
        applied = send(sent, handed)
        if after is not None:
            after()
        return applied

    worker.send = send_between


def die_after_sending(mark: Path, act: Callable[[], None] = raise_error) -> None:
    """In this worker, for the first task that comes by: let the updates go out, then fail."""
    around_send(after=partial(once, mark, act))


def context() -> TaskContext:
    """Of the running task."""
    found = TaskContext.get()
    assert found is not None
    return found


def note_attempt(folder: Path) -> None:
    """Note that this attempt of the running task ran: only its number differs where a stage is run again."""
    task = context()
    (folder / f"{task.partitionId()}-{task.attemptNumber()}-{task.taskAttemptId()}").touch()


def attempts(folder: Path) -> dict[int, int]:
    """How often each partition ran, as noted."""
    partitions = [int(path.name.split("-")[0]) for path in folder.iterdir()]
    return {partition: partitions.count(partition) for partition in sorted(set(partitions))}


def wait_for(mark: Path) -> None:
    """Wait until another process has made the file."""
    wait_until(mark.exists, f"{mark.name} appears", WAIT_SECS)
