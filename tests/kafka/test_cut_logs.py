"""Where a log was cut off, and what is done before that place."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_redis.kafka.consumer import consumer_settings
from acker_redis.kafka.cut_logs import before, cut_at
from acker_redis.kafka.partition_progress import PartitionProgress
from tests.kafka.test_group_member import driving, numbered, texts
from tests.support.kafka import Broker, broker


@pytest.mark.server
def test_member_goes_on_where_a_log_was_cut_off() -> None:
    """A leader that starts again has a higher epoch. The member has read ten records that the log doesn't have any more."""
    keeps: dict[str, Any] = {"keeps": lambda value: value == "7"}
    with broker() as node:
        topic = node.topic()
        node.produce(topic, numbered(20, 1))
        with driving(node, topic, "billing") as driver:
            driver.until_lag(topic, 13, **keeps)
            (owned,) = driver.member.owned
            node.stop()
            node.start()
            node.produce(topic, numbered(5, 1, 100))
            epochs = [message.leader_epoch() for message in node.read(topic)]
            assert len(set(epochs[:20])) == len(set(epochs[20:])) == 1
            assert owned.progress.epoch == epochs[0] < epochs[20]
            check_cuts(node, topic, epochs)
            for offset in range(20, 30):
                owned.progress.read(offset, epochs[0])
                owned.progress.done(offset)
            driver.member._find_again(owned)
            assert driver.events == [("lost", 0, 20, 30), ("withdrawn", 0, [7])]
            read = len(driver.read)
            driver.until(lambda: len(driver.read) >= read + 6, "the records are read", **keeps)
            assert {value for _, value in driver.read[read:]} == {"7", *texts(*range(100, 105))}
            driver.until_lag(topic, 18, **keeps)
            for one, offset in driver.open:
                one.progress.done(offset)
            driver.until_lag(topic, 0)


def check_cuts(node: Broker, topic: str, epochs: list[int]) -> None:
    settings = consumer_settings(node.client, "g")

    def found(epoch: int, read_until: int) -> int:
        return cut_at(settings, topic, 0, PartitionProgress(read_until, epoch=epoch), 0, 25)

    assert [found(epochs[0], n) for n in (10, 99)] == [10, 20]
    assert found(epochs[20], 99) == 25
    assert found(-1, 99) == 25, "without an epoch, nothing tells the records apart"


@given(st.integers(0, 20), st.sets(st.integers(0, 39)), st.integers(0, 45))
def test_before_a_cut_exactly_the_same_records_are_done(begin: int, open_: set[int], cut: int) -> None:
    progress = PartitionProgress(begin)
    for offset in range(begin, 40):
        progress.read(offset, 3)
        if offset not in open_:
            progress.done(offset)
    left = before(progress, cut)
    assert left.until() <= cut
    read = {offset for offset in range(left.next, cut) if left.read(offset, 3)}
    assert read == {offset for offset in range(begin, min(cut, 40)) if offset in open_} | set(range(40, cut))
    assert all(left.read(offset, 4) for offset in range(max(cut, left.next), 50)), "later records are others"
