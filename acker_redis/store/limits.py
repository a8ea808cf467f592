"""Limits of an app, set by the person on call, so that it leaves room for the others of its server.

Pending roots are counted in two places. A spout emits nothing beyond the limit. And Redis refuses new roots, shard by
shard, so that a program that ignores the limit can't starve others: each shard has its part of the limit in its `meta`, with
room for chance, as roots are spread by a hash.
"""

import math
from dataclasses import dataclass

from acker_redis.client.client import Client
from acker_redis.errors import BadConfigError, DamagedDataError
from acker_redis.model import keys
from acker_redis.model.config import AckerConfig
from acker_redis.model.ids import SLOTS
from acker_redis.model.keys import ShardKeys

_FIELDS = ("max_pending", "max_payload_bytes")
_DEVIATIONS = 6
"""Room for chance, in standard deviations of a shard's part; few shards get more by chance."""


@dataclass(frozen=True)
class Limits:
    """How much of its server an app may take; None: no limit.

    Attributes:
        max_pending: roots without outcome, 1 or more. Spouts keep to it; Redis refuses what goes well beyond.
        max_payload_bytes: longer messages are kept neither for replay nor with dead letters; 0: none is.

    Raises:
        BadConfigError: a limit is out of range.
    """

    max_pending: int | None = None
    max_payload_bytes: int | None = None

    def __post_init__(self) -> None:
        _check_int("max_pending", self.max_pending, 1)
        _check_int("max_payload_bytes", self.max_payload_bytes, 0)


def read(client: Client, app: str) -> Limits:
    """Read the limits of an app.

    Raises:
        DamagedDataError: the key holds something else.
    """
    key = keys.limits(app)
    (values,) = client.pipeline([("HMGET", key, *_FIELDS)])
    texts = [None if value is None else value.decode(errors="replace") for value in values]
    try:
        return Limits(*(None if text is None else int(text) for text in texts))
    except ValueError as exc:
        raise DamagedDataError(
            f"{key} holds something that is no limit ({exc}): delete it, or set it with `acker-redis limit --app {app}`"
        ) from exc


def write(client: Client, config: AckerConfig, limits: Limits) -> None:
    """Set all limits of an app, and those of its shards; limits that are None are removed. A repeat changes nothing."""
    key, part = keys.limits(config.app), shard_limit(limits, config.shards)
    commands: list[tuple[str | int | float, ...]] = []
    for name in _FIELDS:
        value = getattr(limits, name)
        commands.append(("HDEL", key, name) if value is None else ("HSET", key, name, value))
    for shard in range(config.shards):
        meta = ShardKeys(config.app, shard, config.num_buckets, config.lanes).meta
        commands.append(("HDEL", meta, "max_pending") if part is None else ("HSET", meta, "max_pending", part))
    client.pipeline(commands)


def shard_limit(limits: Limits, shards: int) -> int | None:
    """Compute how many pending roots one shard takes: its part of the limit, with room for chance.

    Roots are spread by block, up to 32 at a time, so a few roots may be spread unevenly.
    """
    most = limits.max_pending
    if most is None or shards == 1:
        return most
    part = most / shards
    return min(most, math.ceil(part + _DEVIATIONS * (math.sqrt(SLOTS * part) + SLOTS)))


def _check_int(name: str, value: int | None, low: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**53):
        raise BadConfigError(f"{name}={value!r}: use an integer of {low} or more")
