"""What messages of spouts wait for, in Redis: outages, and operators that have only failed. People on call see it there.

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


class SetAside(NamedTuple):
    """Operator whose failed messages a stream no longer tries, because it has not processed any other message.

    Attributes:
        operator: its name.
        messages: number of messages that wait until it has.
        since_secs: time when the first of them was set aside, in seconds since 1970.
        error: how one of them failed.
    """

    operator: str
    messages: int
    since_secs: float
    error: str


def write(
    client: Client, app: str, lane: int, run_id: str, outages: Sequence[Outage], set_aside: Sequence[SetAside] = ()
) -> None:
    """Store what messages of the run that holds a lane wait for, in place of the last note."""
    key = keys.outages(app)
    if not outages and not set_aside:
        client.pipeline([("HDEL", key, lane)])
        return
    noted = {"run_id": run_id, "outages": _rows(outages), "set_aside": _rows(set_aside)}
    client.pipeline([("HSET", key, lane, json.dumps(noted))])


def _rows(waiting: Sequence[Outage] | Sequence[SetAside]) -> list[dict[str, Any]]:
    return [
        {
            "operator": one.operator,
            "messages": one.messages,
            "since_ms": round(one.since_secs * 1000),
            "error": one.error[:ERROR_CHARS].encode(errors="replace").decode(),
        }
        for one in waiting[:_MOST]
    ]
