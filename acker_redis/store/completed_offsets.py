"""Completed offsets of a stream in Redis, for readers of its output. All messages before them are done."""

from collections.abc import Mapping, Sequence

from acker_redis.client.client import Client
from acker_redis.client.replies import as_dict
from acker_redis.model import keys

_PART = 1000


def read(client: Client, app: str, spout_id: int) -> dict[str, int]:
    """Read the completed offset of each partition."""
    (reply,) = client.pipeline([("HGETALL", keys.completed_offsets(app, spout_id))])
    return {name.decode(): int(value) for name, value in as_dict(reply).items()}


def write(client: Client, app: str, spout_id: int, values: Mapping[str, int], gone: Sequence[str]) -> None:
    """Write offsets that changed, and remove partitions that are gone."""
    key, pairs = keys.completed_offsets(app, spout_id), list(values.items())
    commands: list[tuple[str | int, ...]] = [("HDEL", key, *gone[at : at + _PART]) for at in range(0, len(gone), _PART)]
    commands += [
        ("HSET", key, *(word for pair in pairs[at : at + _PART] for word in pair)) for at in range(0, len(pairs), _PART)
    ]
    if commands:
        client.pipeline(commands)
