"""Limits of an app, set by the person on call, so that it leaves room for other apps on its server.

Two places enforce the limit of pending roots. A spout at the limit emits nothing. Redis refuses new roots per shard, so that
a program that ignores the limit can't starve other apps. Each shard has its part of the limit in its `meta`. The part
includes a margin, because a hash spreads roots unevenly. The limit of state is a field of the hash with its sizes, too, which
its scripts read. The rotator applies the retention of dead letters.
"""

import math
from dataclasses import dataclass

from acker_redis.client.client import Client
from acker_redis.errors import BadConfigError, DamagedDataError
from acker_redis.model import keys
from acker_redis.model.config import AckerConfig
from acker_redis.model.ids import SLOTS
from acker_redis.model.keys import ShardKeys

_FIELDS = {"max_pending": int, "max_payload_bytes": int, "max_state_bytes": int, "dead_letter_days": float}
"""Fields of the hash, and functions that read their values."""

_MOST_DAYS = 36_500
_DEVIATIONS = 6
"""Margin of a shard's part for uneven spreading, in standard deviations. Few shards exceed it by chance."""


@dataclass(frozen=True)
class Limits:
    """Limits on an app's use of its server. None means no limit.

    Attributes:
        max_pending: maximum number of roots without outcome, 1 or more. Spouts stay within it. Redis refuses roots that
            are well above it.
        max_payload_bytes: maximum size of a message kept for replay or with a dead letter, in bytes; 0 keeps none.
        max_state_bytes: maximum size of the state of all topologies, in bytes of keys and values. A turn that would exceed
            it changes nothing.
        dead_letter_days: age from which the rotator removes dead letters, in days, above 0. Letters whose replay was
            requested stay until it is over.

    Raises:
        BadConfigError: a limit is out of range.
    """

    max_pending: int | None = None
    max_payload_bytes: int | None = None
    max_state_bytes: int | None = None
    dead_letter_days: float | None = None

    def __post_init__(self) -> None:
        _check_int("max_pending", self.max_pending, 1)
        _check_int("max_payload_bytes", self.max_payload_bytes, 0)
        _check_int("max_state_bytes", self.max_state_bytes, 0)
        _check_days("dead_letter_days", self.dead_letter_days)


def read(client: Client, app: str) -> Limits:
    """Read the limits of an app.

    Raises:
        DamagedDataError: the key holds a value that is not a limit.
    """
    key = keys.limits(app)
    (values,) = client.pipeline([("HMGET", key, *_FIELDS)])
    texts = [None if value is None else value.decode(errors="replace") for value in values]
    try:
        pairs = zip(_FIELDS.values(), texts, strict=True)
        return Limits(*(None if text is None else parse(text) for parse, text in pairs))
    except ValueError as exc:
        raise DamagedDataError(
            f"{key} holds a value that is not a limit. Delete the key, or set the limit with `acker-redis limit --app {app}`. "
            f"The parser reported: {exc}"
        ) from exc


def write(client: Client, config: AckerConfig, limits: Limits) -> None:
    """Set all limits of an app and its shards, and remove limits that are None.

    A repeat changes nothing.
    """
    key, part = keys.limits(config.app), shard_limit(limits, config.shards)
    commands: list[tuple[str | int | float, ...]] = []
    for name in _FIELDS:
        value = getattr(limits, name)
        commands.append(("HDEL", key, name) if value is None else ("HSET", key, name, value))
    sizes, most = keys.state_sizes(config.app), limits.max_state_bytes
    commands.append(("HDEL", sizes, "limit") if most is None else ("HSET", sizes, "limit", most))
    for shard in range(config.shards):
        meta = ShardKeys(config.app, shard, config.num_buckets, config.lanes).meta
        commands.append(("HDEL", meta, "max_pending") if part is None else ("HSET", meta, "max_pending", part))
    client.pipeline(commands)


def shard_limit(limits: Limits, shards: int) -> int | None:
    """Compute the maximum number of pending roots of one shard: its part of the limit, with a margin.

    Roots are spread by block, up to 32 at a time, so a small number of roots may be spread unevenly.
    """
    most = limits.max_pending
    if most is None or shards == 1:
        return most
    part = most / shards
    return min(most, math.ceil(part + _DEVIATIONS * (math.sqrt(SLOTS * part) + SLOTS)))


def _check_int(name: str, value: int | None, low: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**53):
        raise BadConfigError(f"{name}={value!r} is out of range. Use an integer of {low} or more.")


def _check_days(name: str, value: float | None) -> None:
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= _MOST_DAYS
    ):
        raise BadConfigError(
            f"{name}={value!r} is out of range. Use a number of days above 0 and up to {_MOST_DAYS}, or None to keep letters "
            "until you delete them."
        )
