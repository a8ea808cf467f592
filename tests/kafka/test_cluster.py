"""The member of a group on a cluster that loses brokers: it waits, and what an unclean election cut off is told."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from acker_redis.testing import wait_until
from tests.kafka.test_group_member import Driver, driving, numbered, texts
from tests.support.kafka import Broker, brokers

pytestmark = pytest.mark.server

ONCE = {"enable.idempotence": True}
"""Brokers that come and go make the producer try again."""


def copied_to(node: Broker, *numbers: int) -> str:
    """Make a topic whose one partition these nodes have. The first leads it, and any of them may, even if it lacks records."""
    from confluent_kafka.cimpl import NewTopic

    name = f"topic-{uuid.uuid4().hex[:8]}"
    config = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    topic = NewTopic(name, 1, replica_assignment=[list(numbers)], config=config)
    admin = node.admin()
    admin.create_topics([topic])[name].result(60)
    return name


def partition_of(node: Broker, topic: str) -> Any:
    return node.admin().list_topics(topic, 60).topics[topic].partitions.get(0)


def until(driver: Driver, condition: Callable[[], object], what: str, **keeps: Any) -> None:
    """Go on for longer than elsewhere, because a cluster without a quorum takes its time."""

    def stepped() -> bool:
        driver.step(**keeps)
        return bool(condition())

    wait_until(stepped, what, timeout_secs=240)


@pytest.mark.chaos
@pytest.mark.parametrize("is_noticed_first", [True, False])
def test_unclean_election_is_a_lost_range_and_the_records_in_its_place_are_read(is_noticed_first: bool) -> None:
    """The partition is on nodes 1 and 2. Node 2 misses ten records, and then leads alone. Node 3 keeps the quorum."""
    with brokers(3) as nodes:
        servers = {"bootstrap.servers": ",".join(node.address for node in nodes)}
        for node in nodes:
            node.client |= servers
        one, two, three = nodes
        topic = copied_to(three, 1, 2)
        three.produce(topic, numbered(20, 1), **ONCE)
        with driving(three, topic, "billing", **servers, **{"session.timeout.ms": 6000}) as driver:
            keeps: dict[str, Any] = {"keeps": lambda value: value == "7"}

            def has_committed(offset: int, next_offset: int) -> bool:
                owned = driver.member.owned
                return (
                    bool(owned)
                    and owned[0].progress.next == next_offset
                    and owned[0].committed == owned[0].commit()
                    and (owned[0].commit()[0] == offset)
                )

            until(driver, lambda: has_committed(7, 20), "all are committed", **keeps)
            two.kill()
            until(driver, lambda: list(partition_of(three, topic).isrs) == [1], "node 2 is out", **keeps)
            three.produce(topic, numbered(10, 1, 20), **ONCE)
            until(driver, lambda: has_committed(7, 30), "all are committed", **keeps)
            assert {value for _, value in driver.read} == set(texts(*range(30)))
            one.kill()  # two of three are gone
            for _ in range(20):
                driver.step(**keeps)
            two.start(wait=False)

            def node_two_leads() -> bool:
                return bool(partition_of(three, topic).leader == 2)

            if is_noticed_first:
                until(driver, lambda: node_two_leads() and has_committed(7, 20), "the cut is noticed", **keeps)
            else:
                wait_until(node_two_leads, "node 2 leads", timeout_secs=120)
            read = len(driver.read)
            three.produce(topic, numbered(5, 1, 100), **ONCE)
            until(driver, lambda: has_committed(7, 25), "the new records are read", **keeps)
            assert {value for _, value in driver.read[read:]} >= set(texts(*range(100, 105)))
            owned, offset = driver.open[-1]
            assert (driver.member.owned, offset) == ([owned], 7)
            owned.progress.done(offset)
            until(driver, lambda: has_committed(25, 25), "all are committed")
