"""Cost of a million messages in flight for the driver, without their job: peak memory and time.

Each size runs in a separate process, whose peak resident memory is measured. The difference between two sizes is the cost of
the messages, whatever Python, PySpark and Arrow need themselves. The job writes almost nothing.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Bench, Row

_FEW, _MANY = 100_000, 2_100_000
_TARGET_MB = 100.0


@harness.benchmark("driver_memory")
def run(bench: Bench) -> Iterator[Row]:
    """Measure two sizes."""
    few, many = (bench.size(count) for count in (_FEW, _MANY))
    measured = [_in_process(bench.url, count) for count in (few, many)]
    millions = (many - few) / 1e6
    spent = {figure: (measured[1][figure] - measured[0][figure]) / millions for figure in measured[0]}
    yield bench.row("driver memory per million messages in flight", [spent["mb"]], "MB", target=_TARGET_MB)
    yield bench.row("driver CPU per million messages", [spent["cpu_secs"]], "s")
    yield bench.row("wall per million messages of a job that does nothing else", [spent["secs"]], "s")


def _in_process(url: str, count: int) -> dict[str, float]:
    root = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "benchmarks.driver_memory", url, str(count)],
        capture_output=True, text=True, env=environment, check=True,
    )  # fmt: skip
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(url: str, count: int) -> None:
    """Run one size, and print its time and memory."""
    import resource
    import time

    from acker_redis import Acker
    from acker_redis.spark import run_tracked
    from benchmarks import jobs

    with (
        jobs.session() as spark,
        Acker.connect(url, app=f"memory-{count}", shards=harness.SHARDS, message_timeout_secs=3600) as acker,
    ):
        started, cpu = time.perf_counter(), time.process_time()
        run_tracked(
            spark.range(0, count, 1, 4),
            lambda tracker, messages: tracker.write(messages, lambda w: w.format("noop").mode("append").save()),
            acker=acker,
            ids="id",
        )
        wall_secs, cpu_secs = time.perf_counter() - started, time.process_time() - cpu
    mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"secs": wall_secs, "cpu_secs": cpu_secs, "mb": mb}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
