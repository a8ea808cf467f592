"""Size and memory of a publish log with ten million messages, without Spark and Redis. It runs on this machine's disk.

Sequential ids come in 1 000 emissions, and random ones in 10 000, each in a process of its own. The driver's memory is its
peak above that before the log. A step is the time from a new record to the end of the snapshot, if one is due.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Bench, Row

_MESSAGES = 10_000_000
_SEQUENTIAL, _RANDOM = 1_000, 10_000
_LOG_KIB, _SNAPSHOT_MIB, _DRIVER_MIB = 1024, 100, 200
_MIB = 2**20


@harness.benchmark("publish_log", per_server=False)
def run(bench: Bench) -> Iterator[Row]:
    """Measure both kinds of ids."""
    messages = bench.size(_MESSAGES)
    name = f"{messages:,} messages"
    found = _in_process("sequential", messages, bench.size(_SEQUENTIAL))
    yield bench.row(
        f"log of {name} with sequential ids, at its largest", [found["log_bytes"] / 1024], "KiB", target=_LOG_KIB
    )
    found = _in_process("random", messages, bench.size(_RANDOM))
    yield bench.row(
        f"newest snapshot of {name} with random ids", [found["snapshot_bytes"] / _MIB], "MiB", target=_SNAPSHOT_MIB
    )
    yield bench.row(
        f"driver memory of {name} with random ids", [found["driver_bytes"] / _MIB], "MiB", target=_DRIVER_MIB
    )
    yield bench.row(
        "a step without a snapshot: the last tenth / the second, p50, random ids",
        [found["last_secs"] / found["early_secs"]],
        "x",
        context=f"{found['last_secs'] * 1000:.1f} / {found['early_secs'] * 1000:.1f} ms",
    )
    yield bench.row("longest step, with a snapshot of all random ids", [found["longest_secs"]], "s")


def _in_process(kind: str, messages: int, emissions: int) -> dict[str, float]:
    root = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "benchmarks.publish_log", kind, str(messages), str(emissions)],
        capture_output=True, text=True, env=environment, check=True,
    )  # fmt: skip
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(kind: str, messages: int, emissions: int) -> None:
    """Write one log, and print its sizes and times."""
    import time

    import numpy as np

    from acker_redis.publishing.log_folder import LocalLogFolder
    from acker_redis.publishing.messages import MessageNames
    from acker_redis.publishing.publish_log import PublishLog
    from acker_redis.publishing.records import FILES, Accepted, Owner, Staged

    size, chance = messages // emissions, np.random.default_rng(7)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        before = _resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        log = PublishLog(LocalLogFolder(folder))
        log.begin("run", Owner("bench", 0, ("id",)), "0123456789ab")
        secs, is_plain, largest = [], [], 0
        for number in range(emissions):
            if kind == "random":
                ids = chance.integers(-(2**62), 2**62, size)
            else:
                ids = np.arange(number * size, (number + 1) * size)
            staged = Staged(
                "orders", FILES, "/tables/orders", f"/logs/stage/1/{number}/0", ("part-00000.parquet",), size
            )
            if number % 100 == 0 or number == emissions - 1:
                largest = max(largest, sum(file.stat().st_size for file in folder.iterdir()))
            newest = max(folder.glob("*.snap"), default=None)
            began = time.perf_counter()
            log.accept(Accepted("run", number, MessageNames.of_ids(ids).ranges(), (staged,)))
            log.publish(lambda *_: None)
            log.compact()
            secs.append(time.perf_counter() - began)
            is_plain.append(max(folder.glob("*.snap"), default=None) == newest)
        log.finish()
        plain = [one for one, is_one in zip(secs, is_plain, strict=True) if is_one]
        tenth = max(1, len(plain) // 10)
        result = {
            "log_bytes": largest,
            "snapshot_bytes": max((file.stat().st_size for file in folder.glob("*.snap")), default=0),
            "driver_bytes": _resident("VmHWM") - before,
            "early_secs": float(np.median(plain[tenth : 2 * tenth] or plain)),
            "last_secs": float(np.median(plain[-tenth:])),
            "longest_secs": max(secs),
        }
    sys.stdout.write(json.dumps(result) + "\n")


def _resident(line: str) -> int:
    """Return a size of this process in bytes, by its name in the kernel's file."""
    for found in Path("/proc/self/status").read_text().splitlines():
        if found.startswith(f"{line}:"):
            return int(found.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no line {line}.")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
