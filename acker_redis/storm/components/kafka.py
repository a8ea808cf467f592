"""Spouts whose messages are the records of Kafka topics. Needs the extra `kafka` once a run emits."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from acker_redis.acker import Acker
from acker_redis.kafka.client import check_names
from acker_redis.kafka.consumer import check_group, subscription
from acker_redis.model.config import check_finite
from acker_redis.spout.retry import RetryPolicy
from acker_redis.storm.components.component import Rule
from acker_redis.storm.components.kafka_source import KafkaOptions, KafkaSource
from acker_redis.storm.components.spout import ReliableSpout
from acker_redis.storm.definition import settings

_MAX_PENDING = 10_000
"""Bound on open records per task in a topology that sets none."""


class KafkaSpout(ReliableSpout):
    """Spout whose messages are the records of Kafka topics (Storm: KafkaSpout).

    Each task is a member of the consumer group, and the group spreads the partitions over them. The committed offset of a
    partition is the first one that isn't done. Records that are done beyond it stand in the commit's metadata, so that a
    restart repeats only those that were open, or not committed yet. A record that fails in its last attempt becomes a dead
    letter, and the offset passes it once the letter is safe.

    A thread per task keeps up the membership, also while the spout isn't called. A task reads until it has
    `topology.max.spout.pending` records that aren't done, or 10 000 if the topology sets none. Then its partitions are paused.
    A run without `stop` ends at the first moment without a message, so pass `stop`.

    Guarantee: a record below the committed offset, or within the runs of its metadata, was acked or is a dead letter. With
    `topology.acker.executors: 0`, it was emitted.

    Not guaranteed: the order of records; that a record is processed once; and that attempts are counted across restarts and
    rebalances.

    Derive a class to set attributes, also in `initialize`, or to hear of `ack` and `fail`. Both get a named tuple of topic,
    topic_id, partition and offset.

    Attributes:
        outputs: `topic`, `topic_id`, `partition`, `offset`, `timestamp` (milliseconds since 1970, or None), `key` and `value`
            (bytes or None), and `headers` (list of pairs of name and bytes, or None).
        kafka: settings of the client, as librdkafka names them. Those that the library sets itself are refused.
        topics: names of the topics. Set these or `pattern`.
        pattern: POSIX extended regular expression of topic names, which begins with `^`.
        group: consumer group. Give each group an app of its own.
        start: where to begin in a topic of which the group has committed nothing: `earliest` or `latest`. A topic that was
            read within the last week begins at its earliest record, because its commits were deleted.
        on_lost: whether records that were deleted before they were read make a dead letter per range (`letter`), or end the
            run (`raise`).
        on_recreated: whether a topic that was deleted and created again ends the run (`raise`), or is read from its beginning
            (`restart`).
        commit_secs: time between commits, in seconds.
        max_pending_bytes: limit on the bytes of a task's open records. A single larger one is read all the same.

    >>> orders = KafkaSpout(["orders"], "billing", kafka={"bootstrap.servers": "host:9092"}).spec(par=2)
    """

    outputs: Sequence[str] = (
        "topic string", "topic_id string", "partition int", "offset bigint", "timestamp bigint", "key binary", "value binary",
        "headers array<struct<key:string,value:binary>>",
    )  # fmt: skip
    kafka: Mapping[str, object] | None = None
    topics: Sequence[str] | None = None
    pattern: str | None = None
    group: str = ""
    start: Literal["earliest", "latest"] = "earliest"
    on_lost: Literal["letter", "raise"] = "letter"
    on_recreated: Literal["raise", "restart"] = "raise"
    commit_secs: float = 1.0
    max_pending_bytes: int = 256 * 2**20

    _acker_rules: ClassVar[Mapping[str, Rule]] = {
        "start": Rule(lambda value: value in ("earliest", "latest"), "'earliest' or 'latest'"),
        "on_lost": Rule(lambda value: value in ("letter", "raise"), "'letter' or 'raise'"),
        "on_recreated": Rule(lambda value: value in ("raise", "restart"), "'raise' or 'restart'"),
        "max_pending_bytes": Rule(settings.is_count, "an integer of 1 or more"),
    }

    _acker_source: KafkaSource

    def __init__(
        self,
        topics: Sequence[str] | None = None,
        group: str | None = None,
        *,
        kafka: Mapping[str, object] | None = None,
        pattern: str | None = None,
        start: Literal["earliest", "latest"] | None = None,
        on_lost: Literal["letter", "raise"] | None = None,
        on_recreated: Literal["raise", "restart"] | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        """Set attributes of the same names. None: that of the class."""
        given = {
            "topics": topics, "group": group, "kafka": kafka, "pattern": pattern, "start": start, "on_lost": on_lost,
            "on_recreated": on_recreated, "retry": retry,
        }  # fmt: skip
        for name, value in given.items():
            if value is not None:
                setattr(self, name, value)

    def next_tuple(self) -> None:
        """Emit the next record, if one was read.

        Raises:
            BadConfigError: the client refuses the settings.
            PipelineError: confluent-kafka is not installed.
            AckerError: the brokers refuse the member, or couldn't be reached for ten minutes; or see `on_lost` and
                `on_recreated`.
        """
        taken = self._acker_source.take()
        if taken is not None:
            self.emit(taken.values(), tup_id=taken.place)

    def activate(self) -> None:
        """Read records. A class that overrides it calls it."""
        self._acker_source.is_active = True

    def deactivate(self) -> None:
        """Pause the partitions. The membership and the commits go on. A class that overrides it calls it."""
        self._acker_source.is_active = False

    def _acker_open_source(self, acker: Acker, run_id: str, spout_id: int) -> None:
        call = type(self).__name__
        kafka = {} if self.kafka is None else self.kafka
        check_names(kafka)
        check_group(call, self.group)
        check_finite("commit_secs", self.commit_secs)
        options = KafkaOptions(
            kafka=kafka,
            names=subscription(call, self.topics, self.pattern),
            group=self.group,
            start=self.start,
            on_lost=self.on_lost,
            on_recreated=self.on_recreated,
            commit_secs=self.commit_secs,
            max_pending_bytes=self.max_pending_bytes,
            max_pending=self._acker_max_pending(self._acker_place.conf),
        )
        self._acker_source = KafkaSource(options, acker, run_id, spout_id)

    @staticmethod
    def _acker_max_pending(conf: Mapping[str, Any]) -> int:
        return int(conf.get(settings.MAX_SPOUT_PENDING) or _MAX_PENDING)
