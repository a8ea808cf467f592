"""Counts of topologies, in Redis, for people and Prometheus. Kept for a week after the run wrote them last."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from acker_redis.client import server_info
from acker_redis.client.client import Client
from acker_redis.client.replies import as_dict
from acker_redis.model import keys
from acker_redis.store import lane_leases

RUNNING, ENDED, FAILED, DIED = "running", "ended", "failed", "died"
STATES = (RUNNING, ENDED, FAILED, DIED)
"""States of a run. Only readers see `died`: the run never wrote its end, and no longer holds its lane."""

COUNTED = ("emitted", "transferred", "executed", "acked", "failed", "timed_out")
"""Counts of a component, each by stream."""

_KEPT_SECS = 7 * 24 * 3600


@dataclass(frozen=True)
class Counts:
    """Counts of a run.

    Attributes:
        topology: name of the topology.
        run_id: id of the run.
        state: one of `STATES`.
        pending: number of pending messages.
        turns: number of turns on Spark; None in process.
        error: error that the run ended with; None if it ended without.
        lane: lane that the run holds; None if it tracks nothing.
        at_ms: time of the last write by the server's clock, in ms since 1970.
        components: component -> name of a count -> stream -> number. `errors` is a number.
    """

    topology: str
    run_id: str
    state: str
    pending: int
    turns: int | None = None
    error: str | None = None
    lane: int | None = None
    at_ms: int = 0
    components: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def write(client: Client, app: str, counts: Counts) -> None:
    """Store the counts of a topology's run, in place of the last ones."""
    key = keys.topologies(app)
    text = json.dumps(asdict(replace(counts, at_ms=_now_ms(client, key))))
    client.pipeline([("HSET", key, counts.topology, text), ("EXPIRE", key, _KEPT_SECS)])


def read(client: Client, app: str, topology: str) -> Counts | None:
    """Read the counts of a topology's current or last run. None: there is none, or they are damaged."""
    (text,) = client.pipeline([("HGET", keys.topologies(app), topology)])
    found = [] if text is None else _seen(client, app, [text])
    return found[0] if found else None


def read_all(client: Client, app: str) -> list[Counts]:
    """Read the counts of all topologies of an app, by name."""
    (reply,) = client.pipeline([("HGETALL", keys.topologies(app))])
    return sorted(_seen(client, app, as_dict(reply).values()), key=lambda counts: counts.topology)


def forget_old(client: Client, app: str) -> None:
    """Delete counts that no run has written for a week. Another topology of the app keeps the key."""
    oldest_ms = _now_ms(client, keys.topologies(app)) - 1000 * _KEPT_SECS
    old = [counts.topology for counts in read_all(client, app) if counts.at_ms < oldest_ms]
    if old:
        client.pipeline([("HDEL", keys.topologies(app), *old)])


def decoded(text: bytes | str, *, is_held: bool) -> Counts | None:
    """Read stored counts. None: they are damaged.

    Args:
        text: what `write` stored.
        is_held: whether the run holds its lane now.
    """
    try:
        counts = Counts(**json.loads(text))
        if not all(isinstance(of, dict) for of in counts.components.values()):
            return None
    except (ValueError, TypeError, AttributeError):
        return None
    has_died = counts.state == RUNNING and counts.lane is not None and not is_held
    return replace(counts, state=DIED) if has_died else counts


def _now_ms(client: Client, key: str) -> int:
    (at_ms,) = client.ask(server_info.clocks_ms, [key])
    return int(at_ms)


def _seen(client: Client, app: str, texts: Iterable[bytes]) -> list[Counts]:
    stored = [(text, counts) for text in texts if (counts := decoded(text, is_held=True)) is not None]
    lanes = sorted({counts.lane for _, counts in stored if counts.lane is not None})
    holders = lane_leases.holders(client, app, lanes)
    seen = []
    for text, counts in stored:
        holder = holders.get(counts.lane, "") if counts.lane is not None else ""
        one = decoded(text, is_held=holder.rpartition(" ")[0] == counts.run_id)
        if one is not None:
            seen.append(one)
    return seen
