"""The only place where Python code spells a Redis key.

Scripts get their keys from here. Reports in Lua run without KEYS, so they spell theirs themselves.

All keys of a shard carry the hash tag `{app:shard}`, so a script's keys are on one cluster node. The ACL patterns
`acker:{app:*` and `acker:{app}:*` cover one app and no other.
"""

import re
from functools import cache
from urllib.parse import quote

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


def unwritten_runs(app: str) -> str:
    """Key of runs with dead letters whose whole output isn't written: HASH, run -> its spout_id and begin, as JSON."""
    return f"acker:{{{app}}}:unwritten_runs"


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


def outages(app: str) -> str:
    """Key of what messages of spouts wait for: HASH, lane -> run, outages and operators that only failed, as JSON."""
    return f"acker:{{{app}}}:outages"


def replays(app: str, spout_id: int | str) -> str:
    """Key of a spout's requested replays: ZSET, entry ids of dead letters by time of request."""
    return f"acker:{{{app}}}:replay:{spout_id}"


def replay_takers(app: str) -> str:
    """Key of spouts that took over replays that were requested of others: SET of their spout_ids."""
    return f"acker:{{{app}}}:replay_takers"


def expired_letters(app: str) -> str:
    """Key of the number of dead letters that were removed because of their age: HASH with `total`."""
    return f"acker:{{{app}}}:expired_letters"


def letter_logs(app: str) -> str:
    """Key of the letters that publish logs have stored: HASH, log -> number of the newest record, and of its letters."""
    return f"acker:{{{app}}}:letter_logs"


def completed_offsets(app: str, spout_id: int) -> str:
    """Key of a stream's completed offsets: HASH, partition -> first offset that is not completed."""
    return f"acker:{{{app}}}:completed_offsets:{spout_id}"


def stream_status(app: str, spout_id: int) -> str:
    """Key of the status of a stream that runs on Spark's server: HASH; expires."""
    return f"acker:{{{app}}}:stream_status:{spout_id}"


def snapshots(app: str) -> str:
    """Key of the newest snapshots of streams: HASH, Spark's id of the query -> number of its newest snapshot."""
    return f"acker:{{{app}}}:snapshots"


def kafka_groups(app: str) -> str:
    """Key of the consumer groups of Kafka that an app's drivers have: HASH, group -> time (ms) of the last write; expires."""
    return f"acker:{{{app}}}:kafka_groups"


def kafka_group(app: str, group: str) -> str:
    """Key of the progress of a consumer group of Kafka: HASH, topic/partition -> progress as JSON; expires."""
    return f"acker:{{{app}}}:kafka_group:{group}"


def kafka_topics(app: str, group: str) -> str:
    """Key of the topics that a consumer group of Kafka read and that were deleted: HASH, topic -> its id; expires."""
    return f"acker:{{{app}}}:kafka_topics:{group}"


def kafka_exports(app: str) -> str:
    """Key of the topics of Kafka that the app exports to: HASH, topic -> consumer group that may ack its records."""
    return f"acker:{{{app}}}:kafka_exports"


def turn(app: str, run_id: str, number: int) -> str:
    """Key of a topology's turn: HASH with its state, and bin -> claim; expires."""
    return f"acker:{{{app}}}:turn:{run_id}:{number}"


def turns(app: str) -> str:
    """Pattern of the keys of all turns of an app's topologies."""
    return f"acker:{{{app}}}:turn:*"


def topologies(app: str) -> str:
    """Key of the counts of an app's topologies: HASH, topology -> counts of its current or last run, as JSON; expires."""
    return f"acker:{{{app}}}:topologies"


def state_sizes(app: str) -> str:
    """Key of the sizes of the state of an app's topologies: HASH, task -> bytes, their total, and the limit."""
    return f"acker:{{{app}}}:state_sizes"


class StateKeys:
    """Keys of a topology's state, by the names in the script headers. All of them are in one slot of a cluster.

    A task is a component and the index of the task in it, such as `count:0`.

    Attributes:
        topology: name of the topology, as its keys spell it.
        sizes: HASH, sizes of the state of all topologies of the app.
    """

    def __init__(self, app: str, topology: str) -> None:
        """Name the topology."""
        self._prefix = f"acker:{{{app}}}:state"
        self.topology = quote(topology, safe="")
        self.sizes = state_sizes(app)

    @property
    def state(self) -> str:
        """HASH, epoch of the run, last decided turn, shape, and the attempt that each task's state stems from."""
        return f"{self._prefix}:{self.topology}"

    @staticmethod
    def task(component: str, index: int) -> str:
        """Spell a task."""
        return f"{quote(component, safe='')}:{index}"

    def values(self, task: str) -> str:
        """HASH, field of a task's state -> its value at the last folded turn."""
        return f"{self._prefix}_values:{self.topology}:{task}"

    def attempts(self, task: str) -> str:
        """SET, attempts of a task that aren't folded or deleted; expires."""
        return f"{self._prefix}_attempts:{self.topology}:{task}"

    def attempt(self, task: str, attempt_id: str) -> str:
        """HASH, number of a part -> changes of an attempt; expires unless it is committed."""
        return f"{self._prefix}_attempt:{self.topology}:{task}:{attempt_id}"


def states(app: str) -> str:
    """Pattern of the keys of the state of all topologies of an app."""
    return f"acker:{{{app}}}:state*"


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
