"""Spark jobs with and without tracking, in turn in one session. The result is the ratio of each round.

Tracked time starts before the ids are read and ends when the last outcome was confirmed. Beside wall time, the CPU of all
processes is measured: Spark, its Python workers, this program and the server. It is an error if any message of a tracked run
failed, timed out or was replayed, or if the run wrote other rows than its untracked side.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from acker_redis import Acker
from acker_redis.spark import Pipeline, prepare_environment, run_tracked
from benchmarks import harness
from benchmarks.harness import Bench, Row
from spark.support.connect import Server, command

PARTITIONS = 2
ROUNDS = 3


@dataclass(frozen=True)
class Job:
    """Job to run with and without tracking.

    Attributes:
        name: name of the job.
        messages: rows, read again by each side.
        plain: function that writes parquet to a folder.
        tracked: function that returns the pipeline that writes the same rows to another folder.
        id_column: column with the message ids.
        target: target for the ratio of wall times. None means that it is only printed.
    """

    name: str
    messages: Callable[[], DataFrame]
    plain: Callable[[DataFrame, Path], object]
    tracked: Callable[[Path], Pipeline]
    id_column: str
    target: float | None = None


@dataclass
class _Measured:
    plain_secs: list[float] = field(default_factory=list)
    tracked_secs: list[float] = field(default_factory=list)
    plain_cpu: list[float] = field(default_factory=list)
    tracked_cpu: list[float] = field(default_factory=list)


_MASTER = "local[2]"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.python.unix.domain.socket.enabled": "true",  # by TCP, each Python task begins with a wait of 40 ms
}


def _prepare() -> None:
    """Let workers import functions of benchmarks by name."""
    prepare_environment()
    root = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])


@contextmanager
def connect_session() -> Iterator[SparkSession]:
    """Start a server of Spark Connect on two cores, and a session that is its client. Stop both afterwards.

    A process with such a session can't have a classic one.
    """
    _prepare()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        server = Server(command(_MASTER, "benchmarks"), os.environ, Path(name))
        server.start(**_SETTINGS, **{"spark.log.level": "ERROR", "spark.local.dir": name})
        try:
            spark = SparkSession.builder.remote(server.url).getOrCreate()
            try:
                yield spark
            finally:
                spark.stop()
        finally:
            server.stop()


@contextmanager
def session(**options: str) -> Iterator[SparkSession]:
    """Start Spark on two cores, and stop it afterwards."""
    _prepare()
    builder = SparkSession.builder.master(_MASTER).appName("benchmarks")
    for name, value in {**_SETTINGS, **options}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def measure(bench: Bench, jobs: Sequence[Job]) -> Iterator[Row]:
    """Run rounds of all jobs, each side in turn, after a warm-up."""
    measured = {job.name: _Measured() for job in jobs}
    rounds = 1 if bench.scale < 1 else ROUNDS
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        for number in range(rounds if bench.scale < 1 else rounds + 1):
            for job in jobs:
                result = measured[job.name] if number or bench.scale < 1 else _Measured()  # the first warms up
                folders = [Path(name) / side for side in ("plain", "tracked")]
                _plain(job, folders[0], result)
                _tracked(bench, job, folders[1], result)
                _check_same(job, *folders)
    for job in jobs:
        result = measured[job.name]
        yield _ratio(bench, f"{job.name}: tracked / untracked wall", result.tracked_secs, result.plain_secs, job.target)
        if min(result.plain_cpu) > 0:
            yield _ratio(bench, f"{job.name}: tracked / untracked CPU", result.tracked_cpu, result.plain_cpu, None)


def _ratio(bench: Bench, measure: str, tracked: list[float], plain: list[float], target: float | None) -> Row:
    ratios = [a / b for a, b in zip(tracked, plain, strict=True)]
    context = f"{np.median(tracked):.1f} s / {np.median(plain):.1f} s"
    return bench.row(measure, ratios, "x", target=target, context=context)


def _plain(job: Job, folder: Path, result: _Measured) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    started, cpu = time.perf_counter(), harness.cpu_secs()
    job.plain(job.messages(), folder)
    result.plain_secs.append(time.perf_counter() - started)
    result.plain_cpu.append(harness.cpu_secs() - cpu)


def _tracked(bench: Bench, job: Job, folder: Path, result: _Measured) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with Acker.connect(bench.url, app="jobs", shards=harness.SHARDS, message_timeout_secs=3600) as acker:
        started, cpu = time.perf_counter(), harness.cpu_secs()
        run_result = run_tracked(job.messages(), job.tracked(folder), acker=acker, ids=job.id_column)
        result.tracked_secs.append(time.perf_counter() - started)
        result.tracked_cpu.append(harness.cpu_secs() - cpu)
    counts = run_result.counts
    if counts.acked != counts.emitted or counts.replayed:
        raise RuntimeError(f"{job.name}: not every message was acked at its first attempt: {counts}")


def _check_same(job: Job, plain: Path, tracked: Path) -> None:
    counts = [sum(pq.read_metadata(path).num_rows for path in side.rglob("*.parquet")) for side in (plain, tracked)]
    if counts[0] != counts[1]:
        raise RuntimeError(f"{job.name}: {counts[0]} rows were written untracked, {counts[1]} tracked")
