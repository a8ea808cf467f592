"""An application on the standalone cluster: one fault after the other; prints what became of the messages as JSON.

python -m tests.support.jobs.cluster_job spark://127.0.0.1:7077 redis://127.0.0.1:6379/0 FOLDER SCENARIO ...
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from acker_redis.spark import FlatMapOutput, Tracker
from acker_redis.testing import wait_until
from tests.support.spark import cluster
from tests.support.spark.cases import CHILD, Case
from tests.support.spark.faults import (
    WAIT_SECS,
    attempts,
    context,
    fan_out,
    kill_executor,
    note_attempt,
    once,
    wait_for,
)

MESSAGES = 400
CHILDREN = 3
VICTIM = 350
"""A message in the middle of the second partition."""

BAD = 7
"""A message that fails each time."""


def session(master: str, folder: Path, **settings: str) -> Any:
    """Two executors of one core on two hosts; the first job waits for both."""
    executors = {
        "spark.executor.extraJavaOptions": cluster.java_options(folder),
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.locality.wait": "0",
        "spark.python.task.killTimeout": "60s",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
        "spark.sql.shuffle.partitions": "2",
        "spark.cores.max": str(len(cluster.HOSTS)),
    }
    return cluster.session(folder, executors | settings, master)


Act = Callable[[str, str], None]
"""What a scenario does in a task: told whether that is the operator's or the sink's, and when (`middle`, `written`)."""


def run_job(case: Case, folder: Path, act: Act) -> dict[str, Any]:
    """A operator, a shuffle, rows that fail, a sink; what became of the messages, checked against the files."""

    def operator(batch: pa.RecordBatch) -> FlatMapOutput:
        note_attempt(folder / "operator")
        if VICTIM in batch.column("id").to_pylist():
            act("operator", "middle")
        return fan_out(CHILDREN, batch)

    def write(into: Callable[..., None], batches: Iterator[pa.RecordBatch], partition: int) -> None:
        note_attempt(folder / "sink")
        rows = list(batches)
        is_victim = any(VICTIM in batch.column("id").to_pylist() for batch in rows)
        if is_victim:
            act("sink", "middle")
        into(rows, partition)
        if is_victim:
            act("sink", "written")

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        derived = tracker.flat_map_arrow(messages, operator, CHILD)
        some = tracker.fail_where(tracker.filter(derived, "child < 2"), f"id = {BAD}", "bad")
        files = case.partition_files(tracker)
        tracker.write_partitions(some.repartition(2, "id"), partial(write, files))

    ended = case.done(pipeline)
    ended.check({id: [(id, 0), (id, 1)] if id else [] for id in range(MESSAGES)}, case.written(name="rows"))
    return {
        "acked": len(ended.acked), "letters": list(ended.letters), "pending": case.acker.stats().pending,
        "operator": attempts(folder / "operator"), "sink": attempts(folder / "sink"),
    }  # fmt: skip


def kill(where: str, folder: Path, stage: str, when: str) -> None:
    """The executor dies half-way in a task of a stage."""
    if (stage, when) == (where, "middle"):
        once(folder / "killed", kill_executor)


def kill_late(where: str, folder: Path, stage: str, when: str) -> None:
    """The executor dies when the rows are written, before Spark heard of the task's end."""
    if (stage, when) == (where, "written"):
        once(folder / "killed", kill_executor)


def race(where: str, folder: Path, stage: str, when: str) -> None:
    """The first attempt is slow until its speculative copy runs; then either may win."""
    if (stage, when) == (where, "middle"):
        if context().attemptNumber() == 0:
            wait_for(folder / "copy-runs")
        else:
            (folder / "copy-runs").touch()


def lose(where: str, folder: Path, stage: str, when: str) -> None:
    """The first attempt writes after its speculative copy has written, although it lost."""
    if stage == where:
        if context().attemptNumber() > 0 and when == "written":
            (folder / "copy-wrote").touch()
        elif context().attemptNumber() == 0 and when == "middle":
            wait_for(folder / "copy-wrote")
        elif context().attemptNumber() == 0:
            (folder / "loser-wrote").touch()


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}

SCENARIOS: dict[str, Callable[[str, Path, str, str], None]] = {
    "kill": kill, "kill-late": kill_late, "race": race, "lose": lose,
}  # fmt: skip


def wait_for_executors(spark: Any) -> None:
    """Wait until an executor runs on each host. One that a scenario has killed is replaced, by a JVM that has to start."""
    backend = spark.sparkContext._jsc.sc().schedulerBackend()

    def are_there() -> bool:
        ids = backend.getExecutorIds()
        return bool(sum(backend.isExecutorActive(ids.apply(at)) for at in range(ids.size())) == len(cluster.HOSTS))

    wait_until(are_there, "both executors are there", WAIT_SECS)


def play(master: str, root: Path, scenarios: Sequence[str], run: Callable[[Any, Path, str, str], Any]) -> None:
    """Run scenarios such as `kill:operator`, one after the other, and print what came of them.

    `run` is called with the session, a folder of the scenario, its fault, and the place of the fault.
    """
    speculates = any(name.startswith(("race", "lose")) for name in scenarios)
    spark = session(master, root, **(SPECULATION if speculates else {}))
    results = {}
    for scenario in scenarios:
        fault, _, where = scenario.partition(":")
        wait_for_executors(spark)
        results[scenario] = run(spark, root / f"{fault}-{where}", fault, where)
    print(json.dumps(results))  # noqa: T201
    spark.stop()


def run_scenario(url: str, spark: Any, folder: Path, fault: str, where: str) -> dict[str, Any]:
    """Run a scenario of this module."""
    for stage in ("operator", "sink"):
        (folder / stage).mkdir(parents=True)
    run = Case(spark, url, folder, MESSAGES)
    result = run_job(run, folder, partial(SCENARIOS[fault], where, folder))
    if fault == "lose":
        wait_for(folder / "loser-wrote")
        assert run.acker.poll_batches() == []
    run.acker.close()
    return result


if __name__ == "__main__":
    play(sys.argv[1], Path(sys.argv[3]), sys.argv[4:], partial(run_scenario, sys.argv[2]))
