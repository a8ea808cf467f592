"""Status of a stream in Redis, for the client of a query that runs on Spark's server. Kept for a week."""

from acker_redis.client.client import Client
from acker_redis.client.replies import as_dict
from acker_redis.model import keys

_KEPT_SECS = 7 * 24 * 3600


def write(client: Client, app: str, spout_id: int, handler: str, text: str) -> None:
    """Store the status of a stream, in place of the last one.

    Args:
        client: client of the server.
        app: name of the app.
        spout_id: number of the stream's spout.
        handler: id of the `TrackedBatches` object that the query was started with.
        text: status.
    """
    key = keys.stream_status(app, spout_id)
    client.pipeline([("HSET", key, "handler", handler, "status", text), ("EXPIRE", key, _KEPT_SECS)])


def read(client: Client, app: str, spout_id: int, handler: str) -> str | None:
    """Read the status that a handler's query has stored; None: it has stored none yet."""
    (reply,) = client.pipeline([("HGETALL", keys.stream_status(app, spout_id))])
    fields = as_dict(reply)
    return fields[b"status"].decode() if fields.get(b"handler") == handler.encode() else None
