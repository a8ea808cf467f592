"""Metrics for Prometheus: the dashboard, read at each scrape.

Needs `acker-redis[metrics]`, and a user that may read reports. Apps and outcomes are labels. Roots, messages and runs never
are. Units are seconds and bytes.
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

log = logging.getLogger("acker_redis.metrics")

BOUNDS_MS = (
    50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000,
    math.inf,
)  # fmt: skip
"""Bounds of ages, the same as in lua/lib/outcomes.lua."""

_OUTCOMES = ("acked", "failed", "timed_out")
_APP = ("app",)


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
    late = CounterMetricFamily("acker_late_updates", "Acks and fails of roots that had settled.", labels=_APP)
    orphaned = CounterMetricFamily("acker_roots_orphaned", "Roots that expired without owner.", labels=_APP)
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
            settled.add_metric((state.app, outcome), state.counters[outcome])
        begun.add_metric((state.app,), state.counters["inits"])
        late.add_metric((state.app,), state.counters["late_updates"])
        orphaned.add_metric((state.app,), state.counters["orphaned"])
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
    yield from (settled, begun, late, orphaned, in_state, *gauges.values())


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
