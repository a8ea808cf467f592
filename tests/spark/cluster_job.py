"""An application on the standalone cluster: one fault after the other; prints what became of the messages as JSON.

python -m tests.spark.cluster_job spark://127.0.0.1:7077 redis://127.0.0.1:6379/0 FOLDER SCENARIO ...
"""

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from acker_redis.spark import Emitted
from tests.spark import cluster
from tests.spark.cases import CHILD, Case
from tests.spark.faults import (
    around_send,
    attempts,
    context,
    die_after_sending,
    fan_out,
    kill_executor,
    note_attempt,
    once,
    wait_for,
)  # fmt: skip

MESSAGES = 400
CHILDREN = 3
VICTIM = 350
"""A message in the middle of the second partition."""


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


def outcome(run: Case, folder: Path) -> dict[str, Any]:
    """What became of the messages, now and after a timeout, and how often each partition of each stage ran."""
    settled = run.outcomes()
    late = run.after_timeout()
    stats = run.acker.stats()
    return {
        "settled": settled, "late": late, "unowned": stats.unowned, "pending": stats.pending,
        "bolt": attempts(folder / "bolt"), "sink": attempts(folder / "sink"),
    }  # fmt: skip


Act = Callable[[str], None]
"""What a scenario does in the middle of a task, told whether that is the bolt's or the sink's."""


def run_job(case: Case, folder: Path, act: Act) -> int:
    """Spout and bolt, a shuffle, a sink; both stages note that they ran. Returns the rows written."""

    def bolt(batch: pa.RecordBatch) -> Emitted:
        note_attempt(folder / "bolt")
        if VICTIM in batch.column("id").to_pylist():
            act("bolt")
        return fan_out(CHILDREN, batch)

    def write(batches: Iterator[pa.RecordBatch], partition: int) -> None:
        note_attempt(folder / "sink")
        for batch in batches:
            if VICTIM in batch.column("id").to_pylist():
                act("sink")

    derived = case.tracker.bolt(case.tracked, bolt, CHILD, name="bolt")
    return case.tracker.sink(derived.repartition(2, "id"), write, name="sink").rows


def kill(where: str, folder: Path, stage: str) -> None:
    """The executor dies half-way in a task of a stage."""
    if stage == where:
        once(folder / "killed", kill_executor)


def kill_late(where: str, folder: Path, stage: str) -> None:
    """The executor dies after the task's updates went out, before Spark heard of its end."""
    if stage == where and not (folder / "killed").exists():
        die_after_sending(folder / "killed", kill_executor)


def race(where: str, folder: Path, stage: str) -> None:
    """The first attempt is slow until its speculative copy runs; then either may win, and both may send."""
    if stage == where and context().attemptNumber() == 0:
        wait_for(folder / "copy-runs")
    elif stage == where:
        (folder / "copy-runs").touch()


def lose(where: str, folder: Path, stage: str) -> None:
    """The first attempt sends its updates after its speculative copy has sent them, although it lost."""
    if stage == where and context().attemptNumber() == 0:
        around_send(before=partial(wait_for, folder / "copy-sent"), after=(folder / "loser-sent").touch)
    elif stage == where:
        around_send(after=(folder / "copy-sent").touch)


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}

SCENARIOS: dict[str, Callable[[str, Path, str], None]] = {
    "kill": kill, "kill-late": kill_late, "race": race, "lose": lose,
}  # fmt: skip


def main(master: str, url: str, root: Path, *scenarios: str) -> None:
    """Run scenarios such as `kill:bolt`, one after the other."""
    speculates = any(name.startswith(("race", "lose")) for name in scenarios)
    spark = session(master, root, **(SPECULATION if speculates else {}))
    results = {}
    for scenario in scenarios:
        name, _, where = scenario.partition(":")
        folder = root / f"{name}-{where}"
        for stage in ("bolt", "sink"):
            (folder / stage).mkdir(parents=True)
        run = Case(spark, url, MESSAGES)
        before = run.acker.stats().fenced
        rows = run_job(run, folder, partial(SCENARIOS[name], where, folder))
        if name == "lose":
            wait_for(folder / "loser-sent")
        results[scenario] = {"rows": rows, "fenced": run.acker.stats().fenced - before, **outcome(run, folder)}
        run.acker.close()
    print(json.dumps(results))  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
