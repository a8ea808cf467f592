"""Metrics for Prometheus: the dashboard, read at each scrape.

Needs the extra `metrics`, and a user that may read reports. Apps, outcomes, topologies and their components are labels, and
so are groups and partitions of Kafka. Roots, messages, records and runs never are. Units are seconds and bytes.
"""

import logging
import math
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from acker_redis.client.client import Client
from acker_redis.errors import AckerError, BadConfigError
from acker_redis.ops.dashboard import SEVERITY, AppState, app_states, latencies
from acker_redis.store.topology_counts import COUNTED, STATES

log = logging.getLogger("acker_redis.metrics")

BOUNDS_MS = (
    50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000,
    math.inf,
)  # fmt: skip
"""Bounds of ages, the same as in lua/lib/outcomes.lua."""

_OUTCOMES = ("acked", "failed", "timed_out", "released")
"""Outcomes of roots. The server counts released ones as failed, too."""
_APP = ("app",)
_COUNTED_TEXTS = (
    "Tuples emitted, by stream.",
    "Tuples sent to tasks, by stream.",
    "Tuples executed by a bolt, by source.",
    "Messages of a spout acked, by stream; tuples acked by a bolt, by source.",
    "Messages of a spout failed, by stream; tuples failed by a bolt, by source.",
    "Messages of a spout timed out, by stream.",
)
"""Descriptions of `COUNTED`."""


class AppsCollector(Collector):
    """Collect metrics from the server at each scrape. If it doesn't answer, the only metric is `acker_up 0`."""

    def __init__(self, url: str, names: Sequence[str] = ()) -> None:
        """Store the settings. The first scrape connects. `names` limits the metrics to these apps."""
        self._url, self._names = url, frozenset(names)
        self._client: Client | None = None
        self._lock = threading.Lock()
        self._logged: type[AckerError] | None = None

    def describe(self) -> Iterator[Metric]:
        """Describe no metric, so that registering sends no request."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the current values of all metrics."""
        with self._lock:
            try:
                self._client = self._client or Client(self._url, outage_timeout_secs=0)
                states = [state for state in app_states(self._client) if not self._names or state.app in self._names]
                ages = latencies(self._client)
                self._logged = None
            except AckerError as exc:
                self.close()
                if type(exc) is not self._logged:
                    self._logged = type(exc)
                    log.warning("metrics unavailable error=%s", exc)
                yield GaugeMetricFamily("acker_up", "Whether the acker's server answers.", 0)
                return
        yield GaugeMetricFamily("acker_up", "Whether the acker's server answers.", 1)
        yield from _families(states)
        yield from _topologies(states)
        yield from _kafka_partitions(states)
        yield _histogram({state.app: ages.get(state.app, {}) for state in states})

    def close(self) -> None:
        """Close the connection. The next scrape opens a new one."""
        if self._client is not None:
            self._client.close()
            self._client = None


class MetricsServer:
    """HTTP server for scrapes, in a separate thread, as a context manager."""

    def __init__(self, url: str, names: Sequence[str], host: str, port: int) -> None:
        self._collector, self._host, self._port = AppsCollector(url, names), host, port

    def __enter__(self) -> Self:
        """Start to listen.

        Raises:
            BadConfigError: if the address is in use, or doesn't belong to this machine.
        """
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self._collector)
        try:
            self._server, self._thread = start_http_server(self._port, self._host, registry)
        except OSError as exc:
            raise BadConfigError(
                f"Metrics can't be served at {self._host}:{self._port} ({exc}). Use another port or address."
            ) from exc
        log.info("serving metrics url=http://%s:%d/metrics", self._host, self.port)
        return self

    @property
    def port(self) -> int:
        """Port that it listens on. If the configured port is 0, a free one."""
        return int(self._server.server_port)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._collector.close()


def _families(states: Sequence[AppState]) -> Iterator[Metric]:
    settled = CounterMetricFamily("acker_roots_settled", "Roots that got their outcome.", labels=("app", "outcome"))
    begun = CounterMetricFamily("acker_roots_begun", "Roots that got their owner.", labels=_APP)
    by_component = CounterMetricFamily(
        "acker_failed_roots", "Roots that failed or timed out, without released ones, by their last component.",
        labels=("app", "component", "outcome"),
    )  # fmt: skip
    late = CounterMetricFamily("acker_late_updates", "Acks and fails of roots that had settled.", labels=_APP)
    orphaned = CounterMetricFamily("acker_roots_orphaned", "Roots that expired without owner.", labels=_APP)
    expired = CounterMetricFamily(
        "acker_expired_letters", "Dead letters that rotators removed because of their age.", labels=_APP
    )
    in_state = GaugeMetricFamily("acker_app_state", "1 for the state that an app is in.", labels=("app", "state"))
    gauges = {
        "pending": GaugeMetricFamily("acker_roots_pending", "Roots without outcome.", labels=_APP),
        "oldest": GaugeMetricFamily("acker_oldest_pending_age_seconds", "Age of the oldest pending root.", labels=_APP),
        "rotated": GaugeMetricFamily("acker_rotation_age_seconds", "Since the last tick.", labels=_APP),
        "tick": GaugeMetricFamily("acker_tick_seconds", "Between two ticks.", labels=_APP),
        "waiting": GaugeMetricFamily(
            "acker_outcomes_waiting", "Entries of outcomes that wait for a spout.", labels=_APP
        ),
        "letters": GaugeMetricFamily("acker_dead_letters", "Messages whose attempts are exhausted.", labels=_APP),
        "failed_runs": GaugeMetricFamily("acker_failed_runs", "Lanes whose last run ended with an error.", labels=_APP),
        "memory": GaugeMetricFamily("acker_memory_bytes", "Memory of an app's keys, estimated.", labels=_APP),
    }
    for state in states:
        for outcome in _OUTCOMES:
            count = state.counters[outcome] - (state.counters["released"] if outcome == "failed" else 0)
            settled.add_metric((state.app, outcome), count)
        for component, roots in state.failed_by_component.items():
            by_component.add_metric((state.app, component, "failed"), roots.failed)
            by_component.add_metric((state.app, component, "timed_out"), roots.timed_out)
        begun.add_metric((state.app,), state.counters["inits"])
        late.add_metric((state.app,), state.counters["late_updates"])
        orphaned.add_metric((state.app,), state.counters["orphaned"])
        if state.expired_letters is not None:
            expired.add_metric((state.app,), state.expired_letters)
        for name in SEVERITY:
            in_state.add_metric((state.app, name), state.state == name)
        values = {
            "pending": state.pending,
            "oldest": _secs(state.oldest_ms or (None if state.pending else 0)),
            "rotated": _secs(state.rotated_ms_ago),
            "tick": _secs(state.tick_ms),
            "waiting": state.waiting,
            "letters": state.dead_letters,
            "failed_runs": state.failed_runs,
            "memory": state.memory_bytes,
        }
        for name, value in values.items():
            if value is not None:
                gauges[name].add_metric((state.app,), value)
    yield from (settled, by_component, begun, late, orphaned, expired, in_state, *gauges.values())


def _topologies(states: Sequence[AppState]) -> Iterator[Metric]:
    of_topology, of_component = ("app", "topology"), ("app", "topology", "component")
    counted = {
        name: CounterMetricFamily(f"acker_topology_{name}", text, labels=(*of_component, "stream"))
        for name, text in zip(COUNTED, _COUNTED_TEXTS, strict=True)
    }
    errors = CounterMetricFamily("acker_topology_errors", "Exceptions of bolts.", labels=of_component)
    turns = CounterMetricFamily("acker_topology_turns", "Turns of a run on Spark.", labels=of_topology)
    pending = GaugeMetricFamily("acker_topology_pending", "Pending messages of a run.", labels=of_topology)
    in_state = GaugeMetricFamily(
        "acker_topology_state", "1 for the state that the last run is in.", labels=(*of_topology, "state")
    )
    kept = GaugeMetricFamily(
        "acker_topology_state_bytes", "Keys and values in a task's state.", labels=(*of_component, "task")
    )
    for state in states:
        for size in state.state_sizes:
            kept.add_metric((state.app, size.topology, size.component, str(size.index)), size.bytes)
        for counts in state.topologies:
            labels = (state.app, counts.topology)
            for name in STATES:
                in_state.add_metric((*labels, name), counts.state == name)
            pending.add_metric(labels, counts.pending)
            if counts.turns is not None:
                turns.add_metric(labels, counts.turns)
            for component, of in counts.components.items():
                errors.add_metric((*labels, component), of.get("errors", 0))
                for name, family in counted.items():
                    for stream, count in of.get(name, {}).items():
                        family.add_metric((*labels, component, stream), count)
    yield from (in_state, pending, turns, errors, kept, *counted.values())


def _kafka_partitions(states: Sequence[AppState]) -> Iterator[Metric]:
    labels = ("app", "group", "topic", "partition")
    gauges = {
        name: GaugeMetricFamily(f"acker_kafka_{name}", text, labels=labels)
        for name, text in {
            "lag": "Offsets from the commit to the end of a partition.",
            "open_records": "Records that were read and aren't done.",
            "done_beyond": "Offsets that are done behind an open record.",
            "earliest_offset": "First offset of a partition.",
            "committed_offset": "Committed offset.",
            "end_offset": "Offset behind the last record of a partition.",
            "progress_age_seconds": "Since a driver wrote these numbers, unless it ended in an orderly way.",
        }.items()
    }
    for state in states:
        for partition in state.kafka_partitions:
            values = {
                "lag": partition.lag,
                "open_records": partition.open,
                "done_beyond": partition.done_beyond,
                "earliest_offset": partition.earliest,
                "committed_offset": partition.committed,
                "end_offset": partition.end,
                "progress_age_seconds": None if partition.has_ended else partition.age_secs,
            }
            for name, value in values.items():
                if value is not None:
                    gauges[name].add_metric((state.app, partition.group, partition.topic, str(partition.number)), value)
    yield from gauges.values()


def _histogram(ages: dict[str, dict[str, dict[float, int]]]) -> Metric:
    histogram = HistogramMetricFamily(
        "acker_complete_latency_seconds", "Age of roots when they settled.", labels=("app", "outcome")
    )
    for app, of_app in ages.items():
        for outcome, counts in of_app.items():
            total, buckets = 0, []
            for bound in BOUNDS_MS:
                total += counts.get(bound, 0)
                buckets.append(("+Inf" if bound == math.inf else str(bound / 1000), total))
            histogram.add_metric((app, outcome), buckets, None)
    return histogram


def _secs(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
