"""A member of a group whose records are done as soon as they are read, except those that are to stay open."""

from collections.abc import Callable
from typing import Any, Self

from confluent_kafka import Producer

from acker_redis.kafka.assignment import Owned
from acker_redis.kafka.consumer import consumer_settings
from acker_redis.kafka.group_member import GroupMember
from acker_redis.testing import wait_until
from spark.support.kafka import Node

WAIT_SECS = 600.0


class Member:
    """A member, as a `with` block. It leaves the group at the end.

    Attributes:
        member: member of the group.
        offsets: offsets of the records that were read.
    """

    def __init__(self, node: Node, topic: str, group: str, keeps: Callable[[int], bool] = lambda offset: False) -> None:
        """Prepare.

        Args:
            node: node of Kafka.
            topic: topic to read.
            group: consumer group.
            keeps: function that returns True for offsets that stay open.
        """
        self.offsets: list[int] = []
        self._keeps = keeps
        self.member = GroupMember(consumer_settings(node.client, group), [topic], "earliest", self, 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.member.close()

    def withdrawn(self, owned: Owned) -> None:
        """Do nothing."""

    def lost(self, owned: Owned, begin: int, end: int) -> None:
        """Refuse a loss, because nothing is deleted here."""
        raise RuntimeError(f"records {begin} to {end} of {owned} are lost")

    def recreated(self, topic: str, topic_id: str, new_id: str) -> None:
        """Refuse another topic, because there is none."""
        raise RuntimeError(f"topic {topic} was made again")

    def step(self, count: int = 10_000) -> list[tuple[Owned, Any]]:
        """Read records."""
        records = self.member.read(count, 0.1)
        for owned, record in records:
            self.offsets.append(record.offset())
            if not self._keeps(record.offset()):
                owned.progress.done(record.offset())
        return records

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Read, and commit, until a condition holds."""

        def holds() -> bool:
            self.step()
            self.member.commit()
            return bool(condition())

        wait_until(holds, what, WAIT_SECS)

    def has_committed(self, offset: int) -> bool:
        """Return True if the broker has confirmed a commit at an offset, with all that is done beyond it."""
        return all(
            owned.committed is not None and owned.committed == owned.commit() and owned.progress.next >= offset
            for owned in self.member.owned
        ) and bool(self.member.owned)


def send(producer: Producer, topic: str, key: str, value: str) -> None:
    """Produce a record, and wait while the client's queue is full."""
    while True:
        try:
            producer.produce(topic, value, key)
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)
