"""Numbers of the newest snapshots of streams in Redis, so that a start notices a parking location that is older."""

from acker_redis.client.client import Client
from acker_redis.model import keys


def read(client: Client, app: str, query: str) -> int | None:
    """Read the number of a query's newest snapshot; None: there is none, or it isn't known."""
    (reply,) = client.pipeline([("HGET", keys.snapshots(app), query)])
    return None if reply is None else int(reply)


def write(client: Client, app: str, query: str, number: int) -> None:
    """Store the number of a query's newest snapshot; below 0: it has none."""
    key = keys.snapshots(app)
    client.pipeline([("HSET", key, query, number) if number >= 0 else ("HDEL", key, query)])
