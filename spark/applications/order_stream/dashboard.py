"""Live dashboard: rates, orders in flight and parked, latencies."""

import threading
import time
from collections import deque

import numpy as np
import numpy.typing as npt
from rich.table import Table

from acker_redis.spark import StreamStatus

WINDOW_SECS = 60.0


class Latencies:
    """Keep the latencies of orders completed in the last minute."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: deque[tuple[float, npt.NDArray[np.float64]]] = deque()

    def add(self, ages_secs: npt.NDArray[np.float64]) -> None:
        """Add orders that were just completed. Thread-safe."""
        with self._lock:
            self._parts.append((time.monotonic(), ages_secs))

    def summary(self) -> tuple[float, float, float]:
        """Compute orders per second, and the p50 and p99 latencies in seconds."""
        with self._lock:
            while self._parts and self._parts[0][0] < time.monotonic() - WINDOW_SECS:
                self._parts.popleft()
            parts = [ages_secs for _, ages_secs in self._parts]
            since = self._parts[0][0] if self._parts else 0.0
        if not parts:
            return 0.0, 0.0, 0.0
        all_secs = np.concatenate(parts)
        p50, p99 = np.percentile(all_secs, (50, 99)).tolist()
        return len(all_secs) / max(1.0, time.monotonic() - since), p50, p99


def facts(
    made: int,
    before: int,
    left: int,
    status: StreamStatus,
    letters: dict[str, int],
    latencies: Latencies,
    killed: int,
    running_secs: float,
) -> dict[str, str]:
    """Build the lines of the dashboard by name. Earlier runs generated `before` orders and left `left` unfinished."""
    per_sec, p50, p99 = latencies.summary()
    parked = {
        f"{reason or 'in flight'}{f' in {component}' if component else ''}": count
        for (reason, component), count in status.parked.items()
    }
    return {
        "running for": f"{running_secs:.0f} s",
        "orders made in this run": f"{made - before:,}",
        "left by earlier runs": f"{left:,} of {before:,}",
        "done in this run": f"{status.counts.acked + status.counts.dead_lettered:,}, {per_sec:.0f} per second",
        "micro-batches": f"{status.batches:,}",
        "in flight": f"{status.in_flight:,}",
        "parked": _listed(parked),
        "dead letters": _listed(letters),
        "from made to done": f"p50 {p50:.1f} s, p99 {p99:.1f} s",
        "workers killed": f"{killed}",
    }


def as_table(lines: dict[str, str]) -> Table:
    """Build the table for a terminal."""
    table = Table(title="orders, each one tracked (Ctrl-C to stop)", title_justify="left", show_header=False)
    for name, value in lines.items():
        table.add_row(name, value)
    return table


def as_line(lines: dict[str, str]) -> str:
    """Build the line for a log."""
    return "; ".join(f"{name}: {value}" for name, value in lines.items())


def _listed(counts: dict[str, int]) -> str:
    total = sum(counts.values())
    parts = ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))
    return f"{total:,}" + (f" ({parts})" if parts else "")
