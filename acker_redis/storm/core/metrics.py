"""Metrics of components: exact counts and mean latencies per stream (Storm samples one tuple in twenty)."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Mean:
    """Mean of durations, in milliseconds.

    Attributes:
        count: number of durations.
        total_ms: their sum.
    """

    count: int = 0
    total_ms: float = 0.0

    def add(self, duration_ms: float) -> None:
        """Add a duration."""
        self.count += 1
        self.total_ms += duration_ms

    @property
    def mean_ms(self) -> float | None:
        """Mean in milliseconds; None before the first duration."""
        return self.total_ms / self.count if self.count else None

    def merge(self, other: "Mean") -> None:
        """Add the durations of another mean."""
        self.count += other.count
        self.total_ms += other.total_ms


def _means() -> dict[str, Mean]:
    """Return a dictionary of means. An unknown name has an empty mean."""
    return defaultdict(Mean)


@dataclass
class Reported:
    """Values that a component reported under one name.

    Attributes:
        count: number of reports.
        last: value of the last report.
        total: sum of the values, if all of them are numbers, and have one; else None.
    """

    count: int = 0
    last: Any = None
    total: float | None = 0

    def add(self, value: Any) -> None:
        """Add a report."""
        self.count += 1
        self.last = value
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        self.total = _sum(self.total, value if is_number else None)

    def merge(self, other: "Reported") -> None:
        """Add the reports of another task."""
        self.count += other.count
        self.last = other.last
        self.total = _sum(self.total, other.total)


def _sum(first: float | None, second: float | None) -> float | None:
    try:
        return None if first is None or second is None else first + second
    except OverflowError:  # an integer beyond all floats, and a float
        return None


@dataclass
class ComponentMetrics:
    """Metrics of one component, over all of its tasks.

    A spout counts acked, failed and timed-out messages by its own stream. A bolt counts executed, acked and failed tuples by
    their source, as `component:stream`. Latencies are means by the same names. The mean of an unknown name is empty.

    Attributes:
        emitted: tuples emitted, by stream. A tuple that goes to several tasks counts once.
        transferred: tuples sent, by stream. A tuple that goes to several tasks counts for each.
        executed: tuples that a bolt executed.
        acked: messages or tuples acked.
        failed: messages or tuples failed, without timeouts.
        timed_out: messages that timed out.
        complete_latency: time from the emit of a message to its ack.
        execute_latency: time that a bolt takes for a tuple.
        process_latency: time from the begin of a tuple's execution to its ack.
        custom: values that the component reported by `report_metric`, by name.
        errors: number of exceptions that bolts raised or reported.
    """

    emitted: Counter[str] = field(default_factory=Counter)
    transferred: Counter[str] = field(default_factory=Counter)
    executed: Counter[str] = field(default_factory=Counter)
    acked: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    timed_out: Counter[str] = field(default_factory=Counter)
    complete_latency: dict[str, Mean] = field(default_factory=_means)
    execute_latency: dict[str, Mean] = field(default_factory=_means)
    process_latency: dict[str, Mean] = field(default_factory=_means)
    custom: dict[str, Reported] = field(default_factory=dict)
    errors: int = 0

    def report(self, name: str, value: Any) -> None:
        """Add a custom metric."""
        self.custom.setdefault(name, Reported()).add(value)

    def as_counts(self) -> dict[str, Any]:
        """Return the counts, without latencies and custom metrics, for JSON."""
        names = ("emitted", "transferred", "executed", "acked", "failed", "timed_out")
        return {**{name: dict(getattr(self, name)) for name in names}, "errors": self.errors}

    def merge(self, other: "ComponentMetrics") -> None:
        """Add the metrics of other tasks of the component."""
        for name in ("emitted", "transferred", "executed", "acked", "failed", "timed_out"):
            getattr(self, name).update(getattr(other, name))
        for latency in ("complete_latency", "execute_latency", "process_latency"):
            for name, mean in getattr(other, latency).items():
                getattr(self, latency)[name].merge(mean)
        for name, reported in other.custom.items():
            self.custom.setdefault(name, Reported()).merge(reported)
        self.errors += other.errors
