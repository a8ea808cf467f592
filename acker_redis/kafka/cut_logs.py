"""Logs that an unclean election cut off, so that other records may stand at offsets that were read."""

import time
from collections.abc import Mapping
from typing import Any

from acker_redis.errors import OutageError
from acker_redis.kafka.client import confluent, connected
from acker_redis.kafka.commit_metadata import NO_EPOCH
from acker_redis.kafka.partition_progress import PartitionProgress
from acker_redis.kafka.topics import ASK_SECS, passes, refused


def cut_at(
    settings: Mapping[str, Any], topic: str, number: int, progress: PartitionProgress, low: int, high: int
) -> int:
    """Return the offset from which on a partition has other records than those that were read.

    Leader epochs never decrease within a log, and records that were written after the election have a higher one than any
    record that was read. So their first offset is found in few steps.

    Args:
        settings: of `consumer.consumer_settings`.
        topic: name of the topic.
        number: number of the partition.
        progress: what was read.
        low: first offset of the partition.
        high: offset behind its last record.

    Raises:
        OutageError: the brokers don't answer.
        AckerError: they refuse to.
    """
    high = min(high, progress.next)
    if progress.epoch == NO_EPOCH:  # another program committed, and nothing was read since
        return high
    consumer = connected(confluent().Consumer, {**settings, "log_level": 0})
    try:
        while low < high:
            middle = (low + high) // 2
            record = _first_from(consumer, topic, number, middle, settings)
            if record is None or record.offset() >= high or (record.leader_epoch() or 0) > progress.epoch:
                high = middle
            else:
                low = record.offset() + 1
    finally:
        consumer.close()
    return high


def before(progress: PartitionProgress, cut: int) -> PartitionProgress:
    """Return what was done of the records before the cut. The open ones are read again."""
    runs = [(begin, min(end, cut)) for begin, end in progress.runs() if begin < cut]
    return PartitionProgress(min(progress.until(), cut), runs, progress.epoch)


def _first_from(consumer: Any, topic: str, number: int, offset: int, settings: Mapping[str, Any]) -> Any:
    """Read the first record from an offset on. None if there is none."""
    kafka = confluent()
    consumer.assign([kafka.TopicPartition(topic, number, offset)])
    deadline = time.monotonic() + ASK_SECS
    while time.monotonic() < deadline:
        record = consumer.poll(0.1)
        if record is None:
            continue
        error = record.error()
        if error is None:
            return record
        if error.code() == kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001
            return None
        if not passes(error):
            raise refused(error, settings)
    raise OutageError(
        f"Kafka doesn't answer: no record of {topic}/{number} arrived within {ASK_SECS:.0f} s. No record is to blame. Check "
        "the brokers."
    )
