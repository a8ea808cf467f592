"""First offsets and ends of partitions, asked of the brokers without waiting for them."""

import time
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, TypeAlias

from acker_redis.kafka.client import confluent
from acker_redis.kafka.topics import ASK_SECS, MAX_WAIT_SECS, Topics, patiently

_LOOK_SECS = 2.0
"""Interval between two looks."""

Partition: TypeAlias = tuple[str, int]
"""Topic, and number of a partition."""


class LogEnds:
    """First offset and end of partitions, as the brokers said last. One thread uses the object."""

    def __init__(self, topics: Topics) -> None:
        """Use the connection of another client. It doesn't wait for a broker."""
        self._topics = topics
        self._specs: Any = import_module("confluent_kafka.admin").OffsetSpec
        self._known: tuple[dict[Partition, int], dict[Partition, int]] = {}, {}
        self._asked: list[dict[Partition, Any]] = []
        self._asked_of: Any = None
        self._look_at = float("-inf")

    def earliest(self, topic: str, number: int) -> int | None:
        """Return the first offset of a partition. None: it isn't known."""
        return self._known[0].get((topic, number))

    def end(self, topic: str, number: int) -> int | None:
        """Return the offset behind the last record of a partition. None: it isn't known."""
        return self._known[1].get((topic, number))

    def look(self, partitions: Iterable[Partition]) -> None:
        """Take answers that have arrived, and ask again at intervals. It doesn't wait."""
        if self._asked and all(future.done() for asked in self._asked for future in asked.values()):
            for known, asked in zip(self._known, self._asked, strict=True):
                known.clear()
                known.update(_answers(asked))
            self._asked = []
        now = time.monotonic()
        if not self._asked and now >= self._look_at:
            self._look_at = now + _LOOK_SECS
            wanted = list(partitions)
            # A client that is dropped never answers, and `topics` may connect again meanwhile.
            self._asked_of = self._topics.admin
            self._asked_of.poll(0)
            self._asked = [self._ask(wanted, is_end=is_end) for is_end in (False, True)] if wanted else []

    def read_earliest(
        self, partitions: Iterable[Partition], *, outage_secs: float = MAX_WAIT_SECS
    ) -> dict[Partition, int]:
        """Ask for the first offsets, and wait for the answers. Partitions that don't exist are omitted.

        Args:
            partitions: topics, and numbers of partitions.
            outage_secs: time to ask again while no broker answers.

        Raises:
            OutageError: no broker answers.
            AckerError: the brokers refuse the question.
        """
        wanted = sorted(partitions)

        def ask() -> dict[Partition, int]:
            return _answers(self._ask(wanted, is_end=False), wait_secs=ASK_SECS)

        return patiently(ask, self._topics.kafka, outage_secs) if wanted else {}

    def _ask(self, partitions: list[Partition], *, is_end: bool) -> dict[Partition, Any]:
        kafka, specs = confluent(), self._specs
        spec = specs.latest() if is_end else specs.earliest()
        asked = self._topics.admin.list_offsets(
            {kafka.TopicPartition(*partition): spec for partition in partitions}, request_timeout=ASK_SECS
        )
        return {(at.topic, at.partition): future for at, future in asked.items()}


def _answers(asked: Mapping[Partition, Any], wait_secs: float | None = None) -> dict[Partition, int]:
    """Return the offsets of partitions that exist. Without time to wait, those of which an answer has arrived.

    Raises:
        KafkaException: it waits, and a broker refuses the question or doesn't answer.
    """
    kafka = confluent()
    code = kafka.KafkaError
    missing = (code.UNKNOWN_TOPIC_OR_PART, code._UNKNOWN_TOPIC, code._UNKNOWN_PARTITION)  # noqa: SLF001
    found = {}
    for partition, future in asked.items():
        try:
            found[partition] = int(future.result(wait_secs).offset)
        except kafka.KafkaException as exc:
            if wait_secs is not None and exc.args[0].code() not in missing:
                raise
    return found
