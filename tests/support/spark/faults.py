"""Faults on purpose, once each: what tests do to workers, executors and shuffle files in the middle of a task."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import SparkContext, TaskContext

from acker_redis.spark import FlatMapOutput
from acker_redis.spark.runtime.jvm import java_class
from acker_redis.testing import wait_until

WAIT_SECS = 150.0
"""No test waits longer for another process; the machine may be busy."""


def fan_out(children: int, batch: pa.RecordBatch) -> FlatMapOutput:
    """So many children per row; row 0 of the messages has none."""
    ids = batch.column("id").to_numpy()
    counts = np.where(ids == 0, 0, children)
    parents = np.repeat(np.arange(len(ids)), counts)
    ordinal = np.concatenate([np.arange(count) for count in counts]) if len(parents) else np.array([], int)
    return FlatMapOutput(pa.record_batch({"id": ids[parents], "child": pa.array(ordinal, pa.int32())}), parents)


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


def evict(context: SparkContext, partition: int = 0) -> None:
    """The block of a partition of all that is cached, as when memory is short, or an executor is lost."""
    java = context._jsc

    def field(name: str, kind: str, of_object: Any) -> Any:  # py4j can't ask these classes for their methods
        found = java_class(context, "java.lang.Class").forName(kind).getDeclaredField(name)
        found.setAccessible(True)
        return found.get(of_object)

    manager = field("blockManager", "org.apache.spark.SparkEnv", java.sc().env())
    master = field("master", "org.apache.spark.storage.BlockManager", manager)
    for number in java.getPersistentRDDs():
        block = java_class(context, "org.apache.spark.storage.RDDBlockId")(number, partition)
        master.removeBlock(block)  # which doesn't wait for the executor
        wait_until(lambda: master.getLocations(block).isEmpty(), f"block {partition} of {number} is gone", WAIT_SECS)  # noqa: B023


def parent(pid: int) -> int:
    """Of a process, from Linux' /proc: the second field behind the name, which may hold anything."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


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
