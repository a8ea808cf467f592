"""The dashboard for programs: how the apps of a server are doing.

docs/operate/on-call.md explains the reports it is made of. They need a user who may FCALL_RO, or EVAL where
`acker-redis install` did not run. On a cluster each primary reports on its own shards.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from acker_redis.client.client import Client
from acker_redis.model.config import check_app_name
from acker_redis.store.apps import apps

OK, PAUSED = "ok", "PAUSED"
SEVERITY = ("LOST", "FULL", "NO ROTATOR", "SPOUT GONE", "HANGS", "RUN FAILED", PAUSED, OK)
"""States, the worst first."""


@dataclass(frozen=True)
class AppState:
    """How an app is doing, over all nodes that were asked.

    Attributes:
        app: its name.
        state: one of `SEVERITY`; on a cluster the worst of any node.
        since_ms: when that began, in milliseconds since 1970 by the server's clock; None: not known.
        why: the cause of the state, and what to do.
        shards: of the app; None where no shard is there.
        shards_seen: of these, those that were looked at.
        pending: roots without outcome.
        acked_per_sec: since a sample that is 5 s old at least.
        timed_out_per_min: the same.
        failed_per_min: the same.
        oldest_ms: age of the oldest pending root among those that were put longest ago; None: there is none.
        waiting: entries of outcomes that no spout confirmed yet.
        rotated_ms_ago: since the last tick of the shard that has waited longest; None where no shard is there.
        tick_ms: between two ticks.
        memory_bytes: of its keys, estimated from some of many shards; None: the user may not ask.
        dead_letters: messages whose attempts are exhausted; None: the user may not ask.
        failed_runs: lanes whose last run ended with an error, and none has begun since.
        pending_by_component: last component -> number of the roots that were looked at.
        counters: since the shards were made, by the names of `Stats`.
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
    failed_runs: int = 0
    pending_by_component: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong; a pause is on purpose."""
        return self.state in (OK, PAUSED)


def app_states(client: Client, app: str | None = None) -> list[AppState]:
    """Read the states of all apps, or of one; the worst first. Empty: there is none.

    Raises:
        BadConfigError: this can't be an app's name.
        AckerError: a node does not answer, or the user may not ask.
    """
    answers = _report(client, "dashboard", app)
    if app is None and not all(answer["is_whole"] for answer in answers):  # a report looks through so many keys only
        answers = [answer for name in apps(client) for answer in _report(client, "dashboard", name)]
    by_app: dict[str, list[dict[str, Any]]] = {}
    for answer in answers:
        for row in answer.get("apps", ()):
            by_app.setdefault(row["app"], []).append(row)
    states = [_merged(rows) for rows in by_app.values()]
    return sorted(states, key=lambda state: (SEVERITY.index(state.state), state.app))


def dashboard(client: Client, app: str | None = None) -> list[str]:
    """The same as people see it: a text of several lines per node.

    Raises:
        BadConfigError, AckerError: as `app_states`.
    """
    return _report_texts(client, "dashboard", app)


@dataclass(frozen=True)
class PendingRoot:
    """A root that has no outcome yet.

    Attributes:
        root: 16 hexadecimal digits.
        spout_id: of its spout.
        shard: that holds it.
        age_ms: since it was put.
    """

    root: str
    spout_id: int
    shard: int
    age_ms: int


@dataclass(frozen=True)
class PendingComponent:
    """Pending roots that were last touched by one component.

    Attributes:
        component: its name; empty: none.
        count: number of these roots among those that were looked at.
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
        pending: roots without outcome.
        looked_at: how many of these were looked at, those put longest ago; at most some 20 000 per node.
        components: those with most roots first.
    """

    pending: int
    looked_at: int
    components: list[PendingComponent]


def pending_roots(client: Client, app: str, oldest: int = 3) -> PendingRoots:
    """Read which roots of an app are pending, by the last component that touched them, with the oldest roots of each.

    Raises:
        BadConfigError, AckerError: as `app_states`.
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
    """Read the ages of settled roots: app -> outcome -> bound in ms, or infinity -> roots between it and the bound below.

    Outcomes are `acked`, `failed` and `timed_out`. Roots count since the shards were made. Bounds without roots are left out.

    Raises:
        BadConfigError, AckerError: as `app_states`.
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
    """Merge an app's rows of several nodes."""
    worst = min(rows, key=lambda row: SEVERITY.index(row["state"]))
    by_component, counters = Counter[str](), Counter[str]()
    for row in rows:
        counters.update(row["counters"])
        for component in row.get("pending_by_component", ()):
            by_component[component["component"]] += component["count"]
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
        failed_runs=sum(row["failed_runs"] for row in rows),
        pending_by_component=dict(by_component.most_common()),
        counters=dict(counters),
    )


def _total(values: Iterable[float | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(sum(known)) if known else None


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)
