"""Reader of single records, by topic id, partition and offset. It is no member of the group."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from acker_redis.kafka.client import confluent, connected
from acker_redis.kafka.topics import Topics

_STEP_SECS, _MOST_STEP_SECS = 2.0, 16.0
"""Time for one call, after which the caller has to come again. It doubles after a call in which no record arrived."""

_NEAR = 500
"""Distance of two offsets up to which the records between them are read, too."""


class Place(NamedTuple):
    """Where a record is."""

    topic: str
    topic_id: str
    partition: int
    offset: int


class RecordReader:
    """Read records that may be anywhere in their topics, and keep them until they are asked for."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Prepare the reader. `settings` are of `consumer.consumer_settings`."""
        self._settings = dict(settings)
        self._step_secs = _STEP_SECS
        self._found: dict[Place, Any] = {}

    def read(self, places: Iterable[Place]) -> dict[Place, Any] | None:
        """Return the records, without those that are gone or belong to another topic of the name.

        Returns:
            None if the time of one call wasn't enough. Call again, and it goes on.

        Raises:
            KafkaException: the brokers don't answer.
        """
        wanted = set(places)
        topics = Topics(self._settings).describe({place.topic for place in wanted})
        there = {
            place for place in wanted
            if place.topic in topics and topics[place.topic].topic_id == place.topic_id
            and place.partition < topics[place.topic].partitions
        }  # fmt: skip
        left = sorted(there - self._found.keys())
        consumer = connected(confluent().Consumer, {**self._settings, "log_level": 0})
        try:
            count = len(left)
            deadline = time.monotonic() + self._step_secs
            while left and time.monotonic() < deadline:
                left = self._read_on(consumer, left, deadline)
            is_slow = count > 0 and len(left) == count  # each call connects anew
            self._step_secs = min(_MOST_STEP_SECS, 2 * self._step_secs) if is_slow else _STEP_SECS
        finally:
            consumer.close()
        if left:
            return None
        found = {place: self._found.pop(place) for place in there}
        return {place: record for place, record in found.items() if record is not None}

    def _read_on(self, consumer: Any, left: list[Place], deadline: float) -> list[Place]:
        """Read the first place, and those that follow it closely. Return the places that are left."""
        first = left[0]
        consumer.assign([confluent().TopicPartition(first.topic, first.partition, first.offset)])
        while left and left[0][:3] == first[:3] and time.monotonic() < deadline:
            record = consumer.poll(0.1)
            if record is None:
                continue
            kafka = confluent()
            error = None if record.error() is None else record.error().code()
            if error in (kafka.KafkaError._AUTO_OFFSET_RESET, kafka.KafkaError.OFFSET_OUT_OF_RANGE):  # noqa: SLF001
                self._found[left[0]] = None  # before the first record, or behind the last
                return left[1:]
            if error not in (None, kafka.KafkaError._PARTITION_EOF):  # noqa: SLF001
                raise kafka.KafkaException(record.error())
            # At the end of the partition, this is behind its last record.
            left = self._take(left, record)
            if left and left[0][:3] == first[:3] and left[0].offset - record.offset() > _NEAR:
                return left
        return left

    def _take(self, left: list[Place], record: Any) -> list[Place]:
        """Note a record. Places before it have none. Return the places that are left."""
        here = left[0][:3]
        while left and left[0][:3] == here and left[0].offset <= record.offset():
            place, left = left[0], left[1:]
            self._found[place] = record if record.error() is None and place.offset == record.offset() else None
        if record.error() is not None:  # the end
            for place in [place for place in left if place[:3] == here]:
                self._found[place] = None
            left = [place for place in left if place[:3] != here]
        return left
