"""Outages that spouts wait for, in Redis, so that people on call see what a run or a stream needs.

Each lane has its own. They hold as long as a process holds the lane.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from acker_redis.client.client import Client
from acker_redis.model import keys

ERROR_CHARS = 200
"""Number of characters kept of an error's text."""

_MOST = 20
"""Number of outages kept per lane, those of the longest time."""


class Outage(NamedTuple):
    """Operator or sink through which no row gets, because something that it needs is unreachable.

    Attributes:
        operator: its name; empty if it is unknown, as in code that runs in Spark's driver.
        messages: number of messages that wait for it.
        since_secs: time of the first failure, in seconds since 1970.
        last_secs: time of the latest failure.
        error: latest error; empty if it is unknown.
    """

    operator: str
    messages: int
    since_secs: float
    last_secs: float
    error: str

    @property
    def count_text(self) -> str:
        """Number of messages, for people."""
        return f"{self.messages:,} message{'' if self.messages == 1 else 's'}"


def write(client: Client, app: str, lane: int, run_id: str, outages: Sequence[Outage]) -> None:
    """Store the outages of the run that holds a lane, in place of the last ones."""
    key = keys.outages(app)
    if not outages:
        client.pipeline([("HDEL", key, lane)])
        return
    rows: list[dict[str, Any]] = [
        {
            "operator": outage.operator,
            "messages": outage.messages,
            "since_ms": round(outage.since_secs * 1000),
            "error": outage.error[:ERROR_CHARS].encode(errors="replace").decode(),
        }
        for outage in outages[:_MOST]
    ]
    client.pipeline([("HSET", key, lane, json.dumps({"run_id": run_id, "outages": rows}))])
