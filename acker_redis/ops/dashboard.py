"""The dashboard for programs: the state of each app on a server.

It is made of the reports that docs/operate/on-call.md explains. They need a user that may FCALL_RO, or EVAL if
`acker-redis install` was not run. On a cluster each primary reports on its own shards.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from acker_redis.client.client import Client
from acker_redis.model.config import check_app_name
from acker_redis.store import topology_counts, topology_sizes
from acker_redis.store.apps import apps
from acker_redis.store.kafka_progress import KafkaPartition, decoded
from acker_redis.store.topology_counts import Counts
from acker_redis.store.topology_sizes import TaskSize

OK, PAUSED, RUN_FAILED = "ok", "PAUSED", "RUN FAILED"
SEVERITY = ("LOST", "FULL", "NO ROTATOR", "SPOUT GONE", "HANGS", RUN_FAILED, PAUSED, OK)
"""States, the worst first."""


@dataclass(frozen=True)
class UncountedEmission:
    """Emission of a Spark application whose messages aren't counted yet, because its job tells which there are.

    Attributes:
        run_id: id of its run.
        emission: its number in the run.
        job: tag of its jobs in Spark.
        since_ms: its start by the server's clock, in milliseconds since 1970.
    """

    run_id: str
    emission: int
    job: str
    since_ms: int


@dataclass(frozen=True)
class WaitingMessages:
    """Messages of a run or a stream that wait for an operator or sink, because something that it needs is unreachable.

    Attributes:
        run_id: id of its run.
        operator: name of the operator or sink; empty if it is unknown.
        messages: number of messages.
        since_ms: time of the first failure by the clock of the run's machine, in milliseconds since 1970.
        error: its latest error.
    """

    run_id: str
    operator: str
    messages: int
    since_ms: int
    error: str


class FailedRoots(NamedTuple):
    """Numbers of roots of an app whose last component was the same.

    Attributes:
        failed: roots that failed.
        timed_out: roots that timed out.
    """

    failed: int
    timed_out: int


@dataclass(frozen=True)
class AppState:
    """State of an app, over all nodes that were asked.

    Attributes:
        app: name of the app.
        state: one of `SEVERITY`. On a cluster the worst of any node.
        since_ms: start of the state by the server's clock, in milliseconds since 1970. None if unknown.
        why: cause of the state, and what to do.
        shards: number of shards. None if no shard exists.
        shards_seen: number of shards that were examined.
        pending: number of roots without outcome.
        acked_per_sec: rate since a sample that is at least 5 s old.
        timed_out_per_min: rate since the same sample.
        failed_per_min: rate since the same sample.
        oldest_ms: age of the oldest root among the pending roots that were added longest ago. None if there is none.
        waiting: number of outcome entries that no spout has confirmed.
        rotated_ms_ago: time since the last tick, of the shard that ticked longest ago. None if no shard exists.
        tick_ms: time between two ticks.
        memory_bytes: memory of its keys, estimated from a sample if there are many shards. None without permission.
        dead_letters: number of messages whose attempts are exhausted. None without permission.
        expired_letters: number of dead letters that rotators removed because of their age. None without permission.
        failed_runs: number of lanes whose last run ended with an error and that no other run has used since.
        pending_by_component: number of the examined roots, by last component.
        counters: counts since the shards were created, by the names of `Stats`.
        failed_by_component: roots that failed or timed out since then, without released ones, by last component. Roots that no
            component has updated are below an empty name.
        topologies: counts of the topologies that ran within the last week, by name.
        state_sizes: sizes of the state of topologies, by task. Without numbers of keys.
        kafka_partitions: progress of consumer groups of Kafka whose drivers ran within the last week, by group and partition.
        uncounted: emissions under way whose messages aren't counted yet. No other figure includes them.
        outages: messages that wait for the end of an outage of something that their pipeline needs.
        set_aside: messages of streams that failed for an hour in an operator that has processed no other.
    """

    app: str
    state: str
    since_ms: int | None
    why: str
    shards: int | None
    shards_seen: int
    pending: int
    acked_per_sec: float
    timed_out_per_min: float
    failed_per_min: float
    oldest_ms: int | None
    waiting: int
    rotated_ms_ago: int | None
    tick_ms: int
    memory_bytes: int | None
    dead_letters: int | None
    expired_letters: int | None = None
    failed_runs: int = 0
    pending_by_component: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    failed_by_component: dict[str, FailedRoots] = field(default_factory=dict)
    topologies: list[Counts] = field(default_factory=list)
    state_sizes: list[TaskSize] = field(default_factory=list)
    kafka_partitions: list[KafkaPartition] = field(default_factory=list)
    uncounted: list[UncountedEmission] = field(default_factory=list)
    outages: list[WaitingMessages] = field(default_factory=list)
    set_aside: list[WaitingMessages] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Return True if nothing is wrong. A pause is intended."""
        return self.state in (OK, PAUSED)


def app_states(client: Client, app: str | None = None) -> list[AppState]:
    """Read the states of all apps, or of one, the worst first. Empty if there is none.

    Raises:
        BadConfigError: if the app's name is not valid.
        AckerError: if a node does not answer, or the user lacks the permission.
    """
    answers = _report(client, "dashboard", app)
    if app is None and not all(answer["is_whole"] for answer in answers):  # a report scans a limited number of keys
        answers = [answer for name in apps(client) for answer in _report(client, "dashboard", name)]
    by_app: dict[str, list[dict[str, Any]]] = {}
    for answer in answers:
        for row in answer.get("apps", ()):
            by_app.setdefault(row["app"], []).append({**row, "at_ms": answer["at_ms"]})
    states = [_merged(rows) for rows in by_app.values()]
    return sorted(states, key=lambda state: (SEVERITY.index(state.state), state.app))


def dashboard(client: Client, app: str | None = None) -> list[str]:
    """Read the dashboard as text for people, with several lines per node.

    Raises:
        BadConfigError, AckerError: as for `app_states`.
    """
    return _report_texts(client, "dashboard", app)


@dataclass(frozen=True)
class PendingRoot:
    """Root without outcome.

    Attributes:
        root: root id, as 16 hexadecimal digits.
        spout_id: id of its spout.
        shard: number of the shard that holds it.
        age_ms: age of the root.
    """

    root: str
    spout_id: int
    shard: int
    age_ms: int


@dataclass(frozen=True)
class PendingComponent:
    """Pending roots with the same last component.

    Attributes:
        component: name of the component. Empty if there is none.
        count: number of these roots among the examined ones.
        oldest_ms: age of the oldest root.
        oldest: some of the oldest roots.
    """

    component: str
    count: int
    oldest_ms: int
    oldest: list[PendingRoot]


@dataclass(frozen=True)
class PendingRoots:
    """Pending roots of an app, by last component.

    Attributes:
        pending: number of roots without outcome.
        looked_at: number of examined roots, those added longest ago. At most some 20 000 per node.
        components: components, those with most roots first.
    """

    pending: int
    looked_at: int
    components: list[PendingComponent]


def pending_roots(client: Client, app: str, oldest: int = 3) -> PendingRoots:
    """Read the pending roots of an app by last component, with the oldest roots of each.

    Raises:
        BadConfigError, AckerError: as for `app_states`.
    """
    pending = looked_at = 0
    by_component: dict[str, list[dict[str, Any]]] = {}
    for answer in _report(client, "pending", app, str(oldest)):
        pending, looked_at = pending + answer.get("pending", 0), looked_at + answer.get("looked_at", 0)
        for component in answer.get("components", ()):
            by_component.setdefault(component["component"], []).append(component)
    components = []
    for name, parts in by_component.items():
        roots = [PendingRoot(**root) for part in parts for root in part["oldest"]]
        roots.sort(key=lambda root: -root.age_ms)
        count, age_ms = sum(part["count"] for part in parts), max(part["oldest_ms"] for part in parts)
        components.append(PendingComponent(name, count, age_ms, roots[:oldest]))
    return PendingRoots(
        pending, looked_at, sorted(components, key=lambda component: (-component.count, component.component))
    )


def latencies(client: Client, app: str | None = None) -> dict[str, dict[str, dict[float, int]]]:
    """Read the histogram of ages of settled roots, by app, outcome, and upper bound in ms.

    The last bound is infinity. Each value is the number of roots between its bound and the next lower one. Outcomes are
    `acked`, `failed` and `timed_out`. Counts start when the shards are created. Bounds without roots are left out.

    Raises:
        BadConfigError, AckerError: as for `app_states`.
    """
    by_app: dict[str, dict[str, dict[float, int]]] = {}
    for answer in _report(client, "latency", app):
        for row in answer.get("apps", ()):
            by_outcome = by_app.setdefault(row["app"], {})
            for outcome, ages in row["outcomes"].items():
                counts = by_outcome.setdefault(outcome, {})
                for bucket in ages.get("counts", ()):
                    bound = bucket.get("le_ms", math.inf)
                    counts[bound] = counts.get(bound, 0) + bucket["count"]
    return by_app


def _report(client: Client, name: str, app: str | None, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(report) for report in _report_texts(client, name, app, *arguments, "--json")]


def _report_texts(client: Client, name: str, app: str | None, *arguments: str) -> list[str]:
    if app is not None:
        check_app_name(app)
    names = () if app is None else (app,)
    return [report.decode(errors="replace") for report in client.report(name, *names, *arguments)]


def _merged(rows: Sequence[dict[str, Any]]) -> AppState:
    """Merge the rows that several nodes returned for an app."""
    worst = min(rows, key=lambda row: SEVERITY.index(row["state"]))
    by_component, counters = Counter[str](), Counter[str]()
    failures: dict[str, FailedRoots] = {}
    for row in rows:
        counters.update(row["counters"])
        for component in row.get("pending_by_component", ()):
            by_component[component["component"]] += component["count"]
        for one in row.get("failed_by_component", ()):
            before = failures.get(one["component"], FailedRoots(0, 0))
            failures[one["component"]] = FailedRoots(before.failed + one["failed"], before.timed_out + one["timed_out"])
    return AppState(
        app=worst["app"],
        state=worst["state"],
        since_ms=_rounded(worst.get("since_ms")),
        why=worst["why"],
        shards=max((row["shards"] for row in rows if "shards" in row), default=None),
        shards_seen=sum(row["shards_here"] for row in rows),
        pending=sum(row["pending"] for row in rows),
        acked_per_sec=sum(row["acked_per_sec"] for row in rows),
        timed_out_per_min=sum(row["timed_out_per_min"] for row in rows),
        failed_per_min=sum(row["failed_per_min"] for row in rows),
        oldest_ms=max((round(row["oldest_ms"]) for row in rows if "oldest_ms" in row), default=None),
        waiting=round(sum(row["waiting"] for row in rows)),
        rotated_ms_ago=max((row["rotated_ms_ago"] for row in rows if "rotated_ms_ago" in row), default=None),
        tick_ms=max(row["tick_ms"] for row in rows),
        memory_bytes=_total(row.get("memory_bytes") for row in rows),
        dead_letters=_total(row.get("dead_letters") for row in rows),
        expired_letters=_total(row.get("expired_letters") for row in rows),
        failed_runs=sum(row["failed_runs"] for row in rows),
        pending_by_component=dict(by_component.most_common()),
        counters=dict(counters),
        failed_by_component=failures,
        topologies=[
            counts
            for row in rows
            for one in row.get("topologies", ())
            if (counts := topology_counts.decoded(one["counts"], is_held=one["is_held"])) is not None
        ],
        state_sizes=[size for row in rows for size in topology_sizes.decoded(row.get("state_sizes", {}))],
        kafka_partitions=[
            partition
            for row in rows
            for one in row.get("kafka_partitions", ())
            if (partition := decoded(one["group"], one["partition"], one["numbers"], row["at_ms"])) is not None
        ],
        uncounted=[
            UncountedEmission(one["run_id"], round(one["emission"]), one["job"], round(one["since_ms"]))
            for row in rows
            for one in row.get("uncounted", ())
        ],
        outages=_waiting(rows, "outages"),
        set_aside=_waiting(rows, "set_aside"),
    )


def _waiting(rows: Sequence[dict[str, Any]], name: str) -> list[WaitingMessages]:
    return [
        WaitingMessages(one["run_id"], one["operator"], round(one["messages"]), round(one["since_ms"]), one["error"])
        for row in rows
        for one in row.get(name, ())
    ]


def _total(values: Iterable[float | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(sum(known)) if known else None


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)
