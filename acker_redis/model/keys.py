"""The only place where a Redis key is spelled.

All keys of a shard carry the hash tag `{app:shard}`, so a script's keys live on one cluster node, and one ACL pattern
`acker:{app:*` with `acker:{app}:*` covers an app and no other.
"""

import re
from functools import cache

GROUP = "spout"
"""Name of the consumer group on every outcome stream (spelled in lua/scripts/open.lua and lua/scripts/confirm.lua too)."""

CONFIG_PATTERN = "acker:{*}:config"
"""SCAN pattern of the settings of all apps."""

EVERY_KEY = "acker:{*"
"""Pattern of all keys of all apps."""

EVERY_KEY_OF_SHARDS = "acker:{*:*}:*"
"""Pattern of the keys of all shards: not of settings, limits, dead letters, pauses."""

_KIND = re.compile(r"acker:\{[^{}]*\}:([a-z_]+)")
_CONFIG_KEY = re.compile(r"acker:\{([^:{}]+)\}:config")


def is_name(name: object) -> bool:
    """Whether something can name a component or a run: a text of 1 to 100 characters that UTF-8 can encode."""
    return isinstance(name, str) and 0 < len(name) <= 100 and not any("\ud800" <= char <= "\udfff" for char in name)


def config(app: str) -> str:
    """HASH, the app's settings."""
    return f"acker:{{{app}}}:config"


def components(app: str) -> str:
    """HASH, component name -> number."""
    return f"acker:{{{app}}}:components"


def dead_letters(app: str) -> str:
    """STREAM, messages whose attempts are exhausted."""
    return f"acker:{{{app}}}:dead_letters"


def dead_letters_of_format_1(app: str) -> str:
    """STREAM, dead letters of earlier versions, which this one can't read."""
    return f"acker:{{{app}}}:dead"


def payloads(app: str, run_id: str) -> str:
    """HASH, message id -> message, of a run that keeps them for replay."""
    return f"acker:{{{app}}}:payloads:{run_id}"


def run(app: str, run_id: str) -> str:
    """STRING, there once a run of this id has begun."""
    return f"acker:{{{app}}}:run:{run_id}"


def pause(app: str) -> str:
    """STRING, since when and why the app's spouts emit nothing; there only while they don't."""
    return f"acker:{{{app}}}:pause"


def limits(app: str) -> str:
    """HASH, the app's limits; there only where a limit is set."""
    return f"acker:{{{app}}}:limits"


def lane(app: str, number: int) -> str:
    """STRING, the run that takes a lane's outcomes; expires."""
    return f"acker:{{{app}}}:lane:{number}"


def runs(app: str) -> str:
    """HASH, lane -> run and process of the spout that takes its outcomes, or was the last that did."""
    return f"acker:{{{app}}}:runs"


def ends(app: str) -> str:
    """HASH, lane -> how its last run ended, as JSON."""
    return f"acker:{{{app}}}:ends"


def replays(app: str, spout_id: int) -> str:
    """ZSET, entry ids of dead letters that the spout with this spout_id is to replay, by the time of the request."""
    return f"acker:{{{app}}}:replay:{spout_id}"


def completed_offsets(app: str, spout_id: int) -> str:
    """HASH, partition -> the first offset that is not completed, of the stream with this spout_id."""
    return f"acker:{{{app}}}:completed_offsets:{spout_id}"


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
    """The keys of one shard, by the names that the script headers use.

    Each is spelled when it is used: 4 096 shards of 1 000 buckets have eight million keys.
    """

    def __init__(self, app: str, shard: int, num_buckets: int, lanes: int) -> None:
        """Take the shard's number and sizes; the ring has one slot more than there are buckets."""
        self.shard = shard
        self._prefix = f"acker:{{{app}:{shard}}}:"
        self._slots = num_buckets + 1
        self._lanes = lanes

    @property
    def ledger(self) -> str:
        """HASH, block number -> block: up to 32 roots."""
        return self._prefix + "ledger"

    @property
    def meta(self) -> str:
        """HASH, ring position, generation, settings the scripts read, names of components."""
        return self._prefix + "meta"

    @property
    def stats(self) -> str:
        """HASH, plain counters."""
        return self._prefix + "stats"

    @property
    def samples(self) -> str:
        """HASH, place in a ring -> counters as they were at a tick."""
        return self._prefix + "samples"

    @property
    def latency(self) -> str:
        """HASH, outcome and bound in ms -> how many roots were so old when they settled."""
        return self._prefix + "latency"

    @property
    def bucket(self) -> list[str]:
        """ZSETs, one per slot of the ring: cohorts of block numbers, by the time they were put there."""
        return self._numbered("bucket", self._slots)

    @property
    def dedup(self) -> list[str]:
        """SETs, one per slot of the ring: idempotency keys of applied batches."""
        return self._numbered("dedup", self._slots)

    @property
    def acked(self) -> list[str]:
        """STREAMs, one per lane: completed trees, packed."""
        return self._numbered("acked", self._lanes)

    @property
    def failed(self) -> list[str]:
        """STREAMs, one per lane: failed and timed-out roots, one readable entry each."""
        return self._numbered("failed", self._lanes)

    @property
    def scratch(self) -> list[str]:
        """STRINGs, there only while a script runs: what it XORs."""
        return self._numbered("scratch", 2)

    def _numbered(self, kind: str, count: int) -> list[str]:
        prefix = self._prefix
        return [prefix + ending for ending in _endings(kind, count)]


@cache
def _endings(kind: str, count: int) -> list[str]:
    """List the endings of numbered keys, which are the same for all shards; spelling them takes longer than joining."""
    return [f"{kind}:{number}" for number in range(count)]
