"""Pause an app, so that its spouts emit nothing until it is resumed. Messages in flight are still processed."""

from typing import NamedTuple

from acker_redis.client import server_info
from acker_redis.client.client import Client
from acker_redis.errors import BadConfigError
from acker_redis.model import keys

REASON_CHARS = 200


class Paused(NamedTuple):
    """Pause of an app.

    Attributes:
        since_ms: time of the pause by the server's clock, in milliseconds since 1970.
        reason: text passed with the pause.
    """

    since_ms: int
    reason: str


def pause(client: Client, app: str, reason: str = "") -> Paused:
    """Pause an app. A paused app stays paused with its first reason.

    Raises:
        BadConfigError: the reason is too long.
    """
    if len(reason) > REASON_CHARS:
        raise BadConfigError(
            f"reason has {len(reason)} characters, but at most {REASON_CHARS} are allowed. Shorten it."
        )
    key = keys.pause(app)
    (now_ms,) = client.ask(server_info.clocks_ms, [key])
    _, stored = client.pipeline([("SET", key, f"{now_ms} {reason}".encode(errors="replace"), "NX"), ("GET", key)])
    return _read(stored) or Paused(now_ms, reason)


def resume(client: Client, app: str) -> bool:
    """Resume an app, so that its spouts emit again. Returns True if it was paused."""
    return bool(client.pipeline([("DEL", keys.pause(app))])[0])


def paused(client: Client, app: str) -> Paused | None:
    """Read since when and why the app is paused. Returns None if it is not."""
    return _read(client.pipeline([("GET", keys.pause(app))])[0])


def _read(value: bytes | None) -> Paused | None:
    if value is None:
        return None
    since, _, reason = value.decode(errors="replace").partition(" ")
    return Paused(int(since) if since.isdecimal() else 0, reason)
