"""What goes wrong between a client of Spark Connect and its server, one scenario per process.

python -m tests.support.jobs.connect_faults_job SCENARIO SERVER_PORT URL FOLDER SERVER_LOG [OTHER_PORT]

The last line is JSON: what the test checks.
"""

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from acker_redis import Acker, AckerConfig, BadConfigError, RetryPolicy, RowFailedError
from acker_redis.spark import RunResult, Tracker, run_tracked
from acker_redis.spark.proof import responses
from acker_redis.spark.runtime import jobs
from acker_redis.testing import wait_until
from tests.support.proxy import Proxy
from tests.support.spark import faults

MESSAGES = 200
CHILD = "id bigint, child int"


def derive(row: dict[str, Any]) -> list[tuple[int, int]]:
    if row["id"] % 20 == 7:
        raise RowFailedError("seven", retry=False)
    return [(row["id"], child) for child in range(row["id"] % 3)]


TRUTH = Counter((id, child) for id in range(MESSAGES) if id % 20 != 7 for child in range(id % 3))


class Scenario:
    """A session, and a run of the same pipeline with something in between."""

    def __init__(self, port: int, url: str, folder: Path, log: Path) -> None:
        self.port, self.url, self.folder, self.log = port, url, folder, log

    def session(self, port: int | None = None) -> SparkSession:
        builder = SparkSession.builder.remote(f"sc://127.0.0.1:{self.port if port is None else port}")
        created: SparkSession = builder.create()
        return created

    def run(
        self, spark: SparkSession, name: str, before_write: Callable[[], object] = lambda: None, derive: Any = derive
    ) -> RunResult:
        def pipeline(tracker: Tracker, messages: DataFrame) -> None:
            children = tracker.flat_map(tracker.filter(messages, "id >= 0"), derive, CHILD)
            before_write()
            tracker.write(children, lambda writer: writer.mode("append").parquet(str(self.folder / name)))

        config = AckerConfig(app=name, message_timeout_secs=600)
        with Acker.connect(self.url, config) as acker:
            return run_tracked(
                spark.range(0, MESSAGES, 1, 4), pipeline, acker=acker, ids="id", retry=RetryPolicy(max_attempts=2)
            )

    def report(self, spark: SparkSession, name: str, result: RunResult) -> dict[str, Any]:
        rows = spark.read.parquet(str(self.folder / name)).collect()
        written = Counter((row["id"], row["child"]) for row in rows)
        return {
            "acked": result.counts.acked, "dead": result.counts.dead_lettered, "emitted": result.counts.emitted,
            "missing": sum((TRUTH - written).values()), "more": sum((written - TRUTH).values()),
        }  # fmt: skip

    def reattach(self) -> dict[str, Any]:
        """The connection breaks while a write runs. The client attaches to it again, and hears its metrics once."""
        proxy = Proxy(self.port)
        try:
            spark = self.session(int(proxy.url.rpartition(":")[2].partition("/")[0]))
            heard: list[Any] = []
            keep = responses.Responses._keep

            def heard_and_kept(self: responses.Responses, execution: Any) -> None:
                heard.append(execution)
                keep(self, execution)

            responses.Responses._keep = heard_and_kept  # type: ignore[method-assign]
            cut, began = self.folder / "cut", self.folder / "began"

            def cut_in_the_job() -> None:
                wait_until(began.exists, "the job has begun", faults.WAIT_SECS)
                proxy.cut_replies(meanwhile=cut.touch)  # the server tells of its progress every two seconds

            thread = threading.Thread(target=cut_in_the_job)
            result = self.run(spark, "reattach", thread.start, partial(_derive_and_wait, cut, began))
            thread.join()
            of_writes = [execution for execution in heard if execution.written]
            spark.stop()  # while its way to the server is there
            return {
                **self.report(self.session(), "reattach", result),
                "cuts": proxy.cuts, "writes": len(of_writes), "metered": sum(bool(one.metrics) for one in of_writes),
            }  # fmt: skip
        finally:
            proxy.close()

    def threads(self) -> dict[str, Any]:
        """Two threads share a session, each with an app of its own."""
        spark = self.session()
        names = ("left", "right")
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(lambda name: self.run(spark, name), names))
        return {name: self.report(spark, name, result) for name, result in zip(names, results, strict=True)}

    def released(self) -> dict[str, Any]:
        """The client ends the session in the middle of a run."""
        spark = self.session()
        return self.broken_off(spark, "released", spark.client.release_session)

    def expired(self, other_port: str) -> dict[str, Any]:
        """The server's own timeout ends the session while the pipeline is busy elsewhere. Another server's takes over."""
        spark = self.session()
        found = self.broken_off(
            spark,
            "expired",
            lambda: wait_until(lambda: self.has_expired(spark), "the session expires", faults.WAIT_SECS),
        )
        spark.stop()  # PySpark 4.3 hangs at the end of a program that leaves a closed session and goes on with another
        again = self.session(int(other_port))
        return {**found, "again": self.report(again, "expired", self.run(again, "expired"))}

    def has_expired(self, spark: SparkSession) -> bool:
        """Whether the server's log says so: a question to the server would keep the session alive."""
        lines = self.log.read_text(errors="replace").splitlines()
        return any("Session" in line and "closed" in line and spark.session_id in line for line in lines)  # type: ignore[attr-defined]

    def broken_off(self, spark: SparkSession, name: str, before_write: Callable[[], object]) -> dict[str, Any]:
        """The error of a run, and what is in the ledger behind it."""
        try:
            self.run(spark, name, before_write)
            error = None
        except Exception as exc:
            error = f"{type(exc).__name__}: {exc}"
        with Acker.open_existing(self.url, name) as acker:
            stats = acker.stats()
            return {
                "error": error,
                "acked": stats.acked,
                "pending": stats.pending,
                "letters": acker.dead_letters.count(),
            }

    def executor(self) -> dict[str, Any]:
        """An executor dies in the middle of a stage."""
        spark = self.session()
        result = self.run(spark, "executor", derive=partial(_derive_and_kill, self.folder / "killed"))
        return {**self.report(spark, "executor", result), "killed": (self.folder / "killed").exists()}

    def locked(self) -> dict[str, Any]:
        """The server doesn't let a client change a setting that the run needs."""
        spark = self.session()
        jobs._RULES = "spark.sql.warehouse.dir"  # which no session may change
        try:
            self.run(spark, "locked")
        except BadConfigError as exc:
            return {"error": str(exc), "written": (self.folder / "locked").exists()}
        return {"error": None}


def _derive_and_wait(cut: Path, began: Path, row: dict[str, Any]) -> list[tuple[int, int]]:
    """The first task that runs waits until the connection is cut."""
    faults.once(began, lambda: wait_until(cut.exists, "the connection is cut", faults.WAIT_SECS))
    return derive(row)


def _derive_and_kill(mark: Path, row: dict[str, Any]) -> list[tuple[int, int]]:
    faults.once(mark, faults.kill_executor)
    return derive(row)


if __name__ == "__main__":
    scenario = Scenario(int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), Path(sys.argv[5]))
    print(json.dumps(getattr(scenario, sys.argv[1])(*sys.argv[6:])))  # noqa: T201
