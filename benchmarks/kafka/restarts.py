"""Records that a restart repeats, if one record was open and all behind it were done."""

import uuid
from collections.abc import Callable, Iterator

from confluent_kafka import Producer

from acker_redis.testing import wait_until
from benchmarks.harness import Bench, Row
from benchmarks.kafka.members import WAIT_SECS, Member, send
from spark.applications.kafka_words.account import Topic
from spark.support.kafka import Node

_RECORDS = 50_000
_OPEN = 5
_IN_A_TRANSACTION = 10


def rows(bench: Bench, node: Node) -> Iterator[Row]:
    """Restart a member on a plain topic, on a compacted one, and on one with transactions."""
    count = bench.size(_RECORDS, least=200)
    cases: dict[str, Callable[[Node, int], str]] = {
        "": _plain, ", on a compacted topic": _compacted, f", in transactions of {_IN_A_TRANSACTION}": _transactions,
    }  # fmt: skip
    for name, make in cases.items():
        topic, group = make(node, count), f"group-{uuid.uuid4().hex[:8]}"
        read, end = _read(node, topic, group, lambda offset: offset == _OPEN)
        if make is _compacted:
            _wait_for_compaction(node, topic, count)
        again, _ = _read(node, topic, group, lambda offset: False)
        yield bench.row(
            f"records repeated by a restart, {count:,} done beyond one that is open{name}",
            [sum(offset < end for offset in again)], "records", target=1, context=f"{len(read):,} were read before",
        )  # fmt: skip


def _read(node: Node, topic: str, group: str, keeps: Callable[[int], bool]) -> tuple[list[int], int]:
    """Read to the end, and commit. Return the offsets, and the end."""
    (end,) = Topic(node.address, topic).ends().values()
    with Member(node, topic, group, keeps) as member:
        member.until(lambda: member.has_committed(end), "all is read, and committed")
    return member.offsets, end


def _plain(node: Node, count: int) -> str:
    topic, producer = node.topic(f"topic-{uuid.uuid4().hex[:8]}"), Producer(node.client)
    for n in range(count):
        send(producer, topic, str(n), str(n))
    producer.flush(WAIT_SECS)
    return topic


def _compacted(node: Node, count: int) -> str:
    topic = node.topic(
        f"topic-{uuid.uuid4().hex[:8]}", cleanup_policy="compact", segment_ms="100", max_compaction_lag_ms="200",
        min_cleanable_dirty_ratio="0.01",
    )  # fmt: skip
    producer = Producer(node.client)
    for n in range(count):
        send(producer, topic, "alone" if n == _OPEN else str(n % (count // 10)), str(n))
    producer.flush(WAIT_SECS)
    return topic


def _wait_for_compaction(node: Node, topic: str, count: int) -> None:
    """Write a record now and then, so that segments end, until most records are gone."""
    producer = Producer(node.client)

    def is_compacted() -> bool:
        send(producer, topic, "last", "last")
        producer.flush(WAIT_SECS)
        reader = Topic(node.address, topic)
        left = len(reader.fresh())
        reader.close()
        return left < count // 2

    wait_until(is_compacted, "records are compacted away", WAIT_SECS)


def _transactions(node: Node, count: int) -> str:
    topic = node.topic(f"topic-{uuid.uuid4().hex[:8]}")
    producer = Producer({**node.client, "transactional.id": topic})
    producer.init_transactions(WAIT_SECS)
    for begin in range(0, count, _IN_A_TRANSACTION):
        producer.begin_transaction()
        for n in range(begin, begin + _IN_A_TRANSACTION):
            send(producer, topic, str(n), str(n))
        producer.commit_transaction(WAIT_SECS)
    return topic
