"""What the apps of a server are doing: the pages for redis-cli, for programs.

The pages are scripts that read only; see docs/on-call.md for what they say. They need a user who may EVAL. On a cluster each
primary is asked, and says what it knows of its own shards.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from acker_redis.acker import Acker
from acker_redis.client.client import Client
from acker_redis.model import ids
from acker_redis.model.config import check_app_name
from acker_redis.model.roots import root_ids
from acker_redis.model.types import RootRecord
from acker_redis.store.apps import apps

OK, PAUSED = "ok", "PAUSED"
SEVERITY = ("LOST", "FULL", "NO ROTATOR", "SPOUT GONE", "HANGS", "RUN FAILED", PAUSED, OK)
"""States, the worst first."""

_EMISSIONS_AT_ONCE = 1000


@dataclass(frozen=True)
class AppState:
    """How an app is doing, over all nodes that were asked.

    Attributes:
        app: its name.
        state: one of `SEVERITY`; on a cluster the worst of any node.
        since_ms: when that began, in milliseconds since 1970 by the server's clock; None: nobody knows.
        why: what the state means here, and what to do.
        shards: of the app; None where no shard is there.
        shards_seen: of these, those that were looked at.
        pending: roots without outcome.
        acked_per_sec: since a sample that is 5 s old at least.
        timed_out_per_min: the same.
        failed_per_min: the same.
        oldest_ms: age of the oldest pending root among those that were put longest ago; None: none was found.
        waiting: entries of outcomes that no spout confirmed yet.
        rotated_ms_ago: since the last tick of the shard that has waited longest; None where no shard is there.
        tick_ms: between two ticks.
        memory_bytes: of its keys, estimated from some of many shards; None: the user may not ask.
        dead_letters: messages that were given up; None: nobody could say.
        failed_runs: lanes whose last run ended with an error, and none has begun since.
        pending_by_stage: last stage -> how many of the roots that were looked at.
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
    pending_by_stage: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong; somebody wanted it paused."""
        return self.state in (OK, PAUSED)


def overview(client: Client, app: str | None = None) -> list[AppState]:
    """Every app, or one; the worst first. Empty: there is none.

    Raises:
        BadConfigError: this can't be an app's name.
        AckerError: a node does not answer, or the user may not EVAL.
    """
    found_pages = [json.loads(page) for page in _pages(client, "dashboard", app, "--json")]
    if app is None and not all(page["is_whole"] for page in found_pages):  # too many keys for a page to look through
        found_pages = [
            json.loads(page) for name in apps(client) for page in _pages(client, "dashboard", name, "--json")
        ]
    by_app: dict[str, list[dict[str, Any]]] = {}
    for page in found_pages:
        for row in page.get("apps", ()):
            by_app.setdefault(row["app"], []).append(row)
    found = [_merged(rows) for rows in by_app.values()]
    return sorted(found, key=lambda one: (SEVERITY.index(one.state), one.app))


def pages(client: Client, app: str | None = None) -> list[str]:
    """The same as people see it: a text of several lines per node.

    Raises:
        BadConfigError, AckerError: as `overview`.
    """
    return _pages(client, "dashboard", app)


@dataclass(frozen=True)
class PendingRoot:
    """A root that has no outcome yet.

    Attributes:
        root: 16 hexadecimal digits.
        task: of its spout.
        shard: that holds it.
        age_ms: since its record was made.
    """

    root: str
    task: int
    shard: int
    age_ms: int


@dataclass(frozen=True)
class PendingStage:
    """Pending roots that were last touched by one stage.

    Attributes:
        stage: its name; empty: none.
        count: how many of those that were looked at.
        oldest_ms: age of the oldest.
        oldest: some of the oldest.
    """

    stage: str
    count: int
    oldest_ms: int
    oldest: list[PendingRoot]


@dataclass(frozen=True)
class PendingRoots:
    """What is pending of an app, by last stage.

    Attributes:
        pending: roots without outcome.
        looked_at: of these, the ones that were put longest ago; at most some 20 000 per node.
        stages: the one with most roots first.
    """

    pending: int
    looked_at: int
    stages: list[PendingStage]


def pending_roots(client: Client, app: str, oldest: int = 3) -> PendingRoots:
    """What is pending of an app, by the last stage that touched it, with so many of the oldest roots of each.

    Raises:
        BadConfigError, AckerError: as `overview`.
    """
    pending = looked_at = 0
    by_stage: dict[str, list[dict[str, Any]]] = {}
    for page in _pages(client, "stuck", app, str(oldest), "--json"):
        found = json.loads(page)
        pending, looked_at = pending + found.get("pending", 0), looked_at + found.get("looked_at", 0)
        for stage in found.get("stages", ()):
            by_stage.setdefault(stage["stage"], []).append(stage)
    stages = []
    for name, parts in by_stage.items():
        roots = [PendingRoot(**root) for part in parts for root in part["oldest"]]
        roots.sort(key=lambda root: -root.age_ms)
        count, age_ms = sum(part["count"] for part in parts), max(part["oldest_ms"] for part in parts)
        stages.append(PendingStage(name, count, age_ms, roots[:oldest]))
    return PendingRoots(pending, looked_at, sorted(stages, key=lambda stage: (-stage.count, stage.stage)))


def latencies(client: Client, app: str | None = None) -> dict[str, dict[str, dict[float, int]]]:
    """App -> outcome (`acked`, `failed`, `timed_out`) -> bound in ms, or infinity -> roots that settled above the bound below.

    Since the shards were made. Bounds that no root fell in are left out.

    Raises:
        BadConfigError, AckerError: as `overview`.
    """
    found: dict[str, dict[str, dict[float, int]]] = {}
    for page in _pages(client, "slow", app, "--json"):
        for row in json.loads(page).get("apps", ()):
            of_app = found.setdefault(row["app"], {})
            for outcome, ages in row["outcomes"].items():
                counts = of_app.setdefault(outcome, {})
                for one in ages.get("counts", ()):
                    bound = one.get("le_ms", math.inf)
                    counts[bound] = counts.get(bound, 0) + one["count"]
    return found


def pending_of_message(
    acker: Acker, message_id: int, run_id: str, emissions: int = 10_000
) -> list[tuple[int, RootRecord]]:
    """What the ledger holds of one message of a run: (number of the emission, record), of its first so many emissions.

    A message has another root in each emission; spouts number these from 0 over the whole run.

    Raises:
        BadIdError: the id is no 64-bit integer.
        AckerError: as `Acker.inspect_many`.
    """
    messages = np.array([ids.to_int64(ids.to_uint64(message_id, "message_id"))], np.int64)
    found = []
    for first in range(0, emissions, _EMISSIONS_AT_ONCE):
        numbers = range(first, min(first + _EMISSIONS_AT_ONCE, emissions))
        roots = np.concatenate([root_ids(acker.config.app, run_id, messages, number) for number in numbers])
        records = acker.inspect_many(roots)
        found += [(number, record) for number, record in zip(numbers, records, strict=True) if record is not None]
    return found


def _pages(client: Client, name: str, app: str | None, *arguments: str) -> list[str]:
    if app is not None:
        check_app_name(app)
    names = () if app is None else (app,)
    return [page.decode(errors="replace") for page in client.report(name, *names, *arguments)]


def _merged(rows: Sequence[dict[str, Any]]) -> AppState:
    """One app's rows of several nodes."""
    worst = min(rows, key=lambda row: SEVERITY.index(row["state"]))
    by_stage, counters = Counter[str](), Counter[str]()
    for row in rows:
        counters.update(row["counters"])
        for stage in row.get("pending_by_stage", ()):
            by_stage[stage["stage"]] += stage["count"]
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
        pending_by_stage=dict(by_stage.most_common()),
        counters=dict(counters),
    )


def _total(values: Iterable[float | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(sum(known)) if known else None


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)
