"""The only place where a Redis key is spelled.

All keys of a shard carry the hash tag `{app:shard}`, so a script's keys live on one cluster node, and one ACL pattern
`acker:{app:*` with `acker:{app}:*` covers an app and no other.
"""

import re
from functools import cached_property

GROUP = "spout"
"""Name of the consumer group on every outcome stream (spelled in lua/open.lua and lua/confirm.lua too)."""

CONFIG_PATTERN = "acker:{*}:config"
"""SCAN pattern that finds every app of a server."""

_KIND = re.compile(r"acker:\{[^{}]*\}:([a-z]+)")
_CONFIG_KEY = re.compile(r"acker:\{([^:{}]+)\}:config")


def is_name(name: object) -> bool:
    """Whether something can name a stage or a run: a text of 1 to 100 characters that UTF-8 can encode."""
    return isinstance(name, str) and 0 < len(name) <= 100 and not any("\ud800" <= char <= "\udfff" for char in name)


def config(app: str) -> str:
    """HASH, the app's settings."""
    return f"acker:{{{app}}}:config"


def stages(app: str) -> str:
    """HASH, stage name -> number."""
    return f"acker:{{{app}}}:stages"


def dead_letters(app: str) -> str:
    """STREAM, messages that were given up."""
    return f"acker:{{{app}}}:dead"


def payloads(app: str, run_id: str) -> str:
    """HASH, message id -> message, of a run that keeps them for replay."""
    return f"acker:{{{app}}}:payloads:{run_id}"


def run(app: str, run_id: str) -> str:
    """STRING, says that a run of this id was begun."""
    return f"acker:{{{app}}}:run:{run_id}"


def patterns_of(app: str) -> tuple[str, str]:
    """SCAN patterns that find every key of an app, of any settings, and of no other app."""
    name = re.sub(r"([\\*?\[\]])", r"\\\1", app)
    return f"acker:{{{name}}}:*", f"acker:{{{name}:*"


def kind_of(key: str) -> str:
    """The name of the kind of key this is, such as `ledger` or `bucket`; empty for none of ours."""
    match = _KIND.match(key)
    return match[1] if match else ""


def app_of_config(key: str) -> str | None:
    """The app whose config key this is, or None."""
    match = _CONFIG_KEY.fullmatch(key)
    return match[1] if match else None


class ShardKeys:
    """The keys of one shard, by the names that the script headers use."""

    def __init__(self, app: str, shard: int, num_buckets: int, lanes: int) -> None:
        """Spell the keys of shard `shard`; the ring has one slot more than there are buckets."""
        self.shard = shard
        self._prefix = f"acker:{{{app}:{shard}}}:"
        self._slots = num_buckets + 1
        self._lanes = lanes

    @cached_property
    def ledger(self) -> str:
        """HASH, root -> record of 22 bytes."""
        return self._prefix + "ledger"

    @cached_property
    def meta(self) -> str:
        """HASH, ring position, generation, settings the scripts read, names of stages."""
        return self._prefix + "meta"

    @cached_property
    def stats(self) -> str:
        """HASH, plain counters."""
        return self._prefix + "stats"

    @cached_property
    def bucket(self) -> list[str]:
        """ZSETs, one per slot of the ring: cohorts of roots by the time they were put."""
        return [f"{self._prefix}bucket:{slot}" for slot in range(self._slots)]

    @cached_property
    def fence(self) -> list[str]:
        """SETs, one per slot of the ring: tokens of applied batches."""
        return [f"{self._prefix}fence:{slot}" for slot in range(self._slots)]

    @cached_property
    def acked(self) -> list[str]:
        """STREAMs, one per lane: completed trees, packed."""
        return [f"{self._prefix}acked:{lane}" for lane in range(self._lanes)]

    @cached_property
    def failed(self) -> list[str]:
        """STREAMs, one per lane: failed and timed-out roots, one readable entry each."""
        return [f"{self._prefix}failed:{lane}" for lane in range(self._lanes)]
