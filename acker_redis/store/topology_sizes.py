"""Sizes of the state of an app's topologies, as the commits of their turns note them, for people and Prometheus."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import unquote

from acker_redis.client.client import Client
from acker_redis.client.replies import as_texts
from acker_redis.model import keys
from acker_redis.model.keys import StateKeys

_TOTAL, _LIMIT = "total", "limit"
"""Fields that are no task; acker_redis/store/limits.py and lua/lib/state.lua spell them, too."""


@dataclass(frozen=True, order=True)
class TaskSize:
    """State of one task.

    Attributes:
        topology: name of the topology.
        component: name of the bolt.
        index: index of the task in it.
        bytes: bytes of keys and values, as of the last committed turn.
        keys: number of keys, as of the last folded turn. None if it was not asked for.
    """

    topology: str
    component: str
    index: int
    bytes: int
    keys: int | None = None


def read(client: Client, app: str, topology: str | None = None) -> list[TaskSize]:
    """Read the size and the number of keys of each task of one topology, or of all."""
    (stored,) = client.pipeline([("HGETALL", keys.state_sizes(app))])
    found = [size for size in decoded(as_texts(stored)) if topology in (None, size.topology)]
    asked = []
    for size in found:
        names = StateKeys(app, size.topology)
        task = names.task(size.component, size.index)
        asked += [("HLEN", names.values(task)), ("HGET", names.state, f"pieces:{task}")]
    counts = client.pipeline(asked) if asked else []
    pairs = zip(counts[::2], counts[1::2], strict=True)
    return [
        replace(size, keys=max(0, fields - int(pieces or 0)))
        for size, (fields, pieces) in zip(found, pairs, strict=True)
    ]


def read_total(client: Client, app: str) -> int:
    """Read the bytes of the state of all topologies."""
    (total,) = client.pipeline([("HGET", keys.state_sizes(app), _TOTAL)])
    return int(total or 0)


def decoded(fields: Mapping[str, str]) -> list[TaskSize]:
    """Read the fields of the hash with the sizes, by topology, component and index."""
    sizes = []
    for field, size in fields.items():
        if field not in (_TOTAL, _LIMIT):
            topology, component, index = field.split(":")
            sizes.append(TaskSize(unquote(topology), unquote(component), int(index), int(size)))
    return sorted(sizes)
