"""The only place where a Redis key is spelled.

All keys of a shard carry the hash tag `{app:shard}`, so a script's keys are on one cluster node. The ACL patterns
`acker:{app:*` and `acker:{app}:*` cover one app and no other.
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
"""Pattern of the keys of all shards, without settings, limits, dead letters and pauses."""

_KIND = re.compile(r"acker:\{[^{}]*\}:([a-z_]+)")
_CONFIG_KEY = re.compile(r"acker:\{([^:{}]+)\}:config")


def is_name(name: object) -> bool:
    """Return True for a valid name of a component or run: 1 to 100 characters that UTF-8 can encode."""
    return isinstance(name, str) and 0 < len(name) <= 100 and not any("\ud800" <= char <= "\udfff" for char in name)


def config(app: str) -> str:
    """Key of the app's settings: HASH."""
    return f"acker:{{{app}}}:config"


def components(app: str) -> str:
    """Key of the app's components: HASH, component name -> number."""
    return f"acker:{{{app}}}:components"


def dead_letters(app: str) -> str:
    """Key of the dead letters: STREAM of messages whose attempts are exhausted."""
    return f"acker:{{{app}}}:dead_letters"


def dead_letters_of_format_1(app: str) -> str:
    """Key of earlier versions' dead letters, which this version can't read: STREAM."""
    return f"acker:{{{app}}}:dead"


def payloads(app: str, run_id: str) -> str:
    """Key of the messages that a run keeps for replay: HASH, message id -> message."""
    return f"acker:{{{app}}}:payloads:{run_id}"


def run(app: str, run_id: str) -> str:
    """Key of the claim of a run id: STRING, exists once a run with this id has begun."""
    return f"acker:{{{app}}}:run:{run_id}"


def pause(app: str) -> str:
    """Key of the app's pause: STRING with its time and reason, exists only while paused."""
    return f"acker:{{{app}}}:pause"


def limits(app: str) -> str:
    """Key of the app's limits: HASH, exists only if a limit is set."""
    return f"acker:{{{app}}}:limits"


def lane(app: str, number: int) -> str:
    """Key of a lane's lease: STRING with the run that polls the lane's outcomes; expires."""
    return f"acker:{{{app}}}:lane:{number}"


def runs(app: str) -> str:
    """Key of the lanes' runs: HASH, lane -> run and process of the spout that polls it or polled it last."""
    return f"acker:{{{app}}}:runs"


def ends(app: str) -> str:
    """Key of the runs' ends: HASH, lane -> end of its last run, as JSON."""
    return f"acker:{{{app}}}:ends"


def replays(app: str, spout_id: int) -> str:
    """Key of a spout's requested replays: ZSET, entry ids of dead letters by time of request."""
    return f"acker:{{{app}}}:replay:{spout_id}"


def completed_offsets(app: str, spout_id: int) -> str:
    """Key of a stream's completed offsets: HASH, partition -> first offset that is not completed."""
    return f"acker:{{{app}}}:completed_offsets:{spout_id}"


def patterns_of(app: str) -> tuple[str, str]:
    """Build the SCAN patterns that find every key of an app with any settings, and no other app's."""
    name = re.sub(r"([\\*?\[\]])", r"\\\1", app)
    return f"acker:{{{name}}}:*", f"acker:{{{name}:*"


def kind_of(key: str) -> str:
    """Return the kind of a key, such as `ledger` or `bucket`. Empty for a foreign key."""
    match = _KIND.match(key)
    return match[1] if match else ""


def app_of_config(key: str) -> str | None:
    """Return the app whose config key this is, or None."""
    match = _CONFIG_KEY.fullmatch(key)
    return match[1] if match else None


class ShardKeys:
    """Keys of one shard, by the names in the script headers.

    Keys are built at use, because 4 096 shards of 1 000 buckets have eight million keys.
    """

    def __init__(self, app: str, shard: int, num_buckets: int, lanes: int) -> None:
        """Set the shard's number and sizes. The ring has one slot more than buckets."""
        self.shard = shard
        self._prefix = f"acker:{{{app}:{shard}}}:"
        self._slots = num_buckets + 1
        self._lanes = lanes

    @property
    def ledger(self) -> str:
        """HASH, block number -> block of up to 32 roots."""
        return self._prefix + "ledger"

    @property
    def meta(self) -> str:
        """HASH, ring position, generation, settings that the scripts read, names of components."""
        return self._prefix + "meta"

    @property
    def stats(self) -> str:
        """HASH, plain counters."""
        return self._prefix + "stats"

    @property
    def samples(self) -> str:
        """HASH, place in a ring -> counters at a tick."""
        return self._prefix + "samples"

    @property
    def latency(self) -> str:
        """HASH, outcome and bound in ms -> number of roots of this age when they settled."""
        return self._prefix + "latency"

    @property
    def bucket(self) -> list[str]:
        """ZSETs, one per slot of the ring: cohorts of block numbers, by the time they were added."""
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
        """STRINGs with the operands of a XOR, exist only while a script runs."""
        return self._numbered("scratch", 2)

    def _numbered(self, kind: str, count: int) -> list[str]:
        prefix = self._prefix
        return [prefix + ending for ending in _endings(kind, count)]


@cache
def _endings(kind: str, count: int) -> list[str]:
    """List the endings of numbered keys. Cached, because they are the same for all shards and costly to format."""
    return [f"{kind}:{number}" for number in range(count)]
