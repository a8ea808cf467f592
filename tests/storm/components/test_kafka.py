"""Kafka spouts on a real broker, in process: what is committed was acked or is a dead letter, and restarts repeat the rest."""

import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from acker_redis import Acker, AckerConfig, RetryPolicy
from acker_redis.acker import app_of
from acker_redis.store.kafka_progress import KafkaProgress
from acker_redis.storm import Bolt, KafkaSpout, LocalRun, RowFailedError, RunResult, Topology, TopologyBuilder
from acker_redis.testing import wait_until
from tests.docs.test_readme import blocks
from tests.support.kafka import Broker, is_committed

pytestmark = pytest.mark.server

TWICE = RetryPolicy(max_attempts=2, first_delay_secs=0.1, jitter=0)


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    config = AckerConfig(app=f"kafka-{uuid.uuid4().hex}", shards=1, message_timeout_secs=600)
    with Acker.connect(url, config) as acker:
        yield acker


class Case:
    """A group and a topic of its own, and what a topology's bolt made of the records.

    Attributes:
        seen: how often each (partition, offset) was processed.
        rows: values of the tuples.
        tasks: spout task that the latest record of each partition came from.
    """

    def __init__(self, node: Broker, acker: Acker, partitions: int = 1) -> None:
        self.node, self.acker = node, acker
        self.group, self.topic = f"group-{uuid.uuid4().hex[:8]}", node.topic(partitions=partitions)
        self.seen: Counter[tuple[int, int]] = Counter()
        self.rows: list[Any] = []
        self.tasks: dict[int, int] = {}
        self.errors: list[BaseException] = []

    def topology(self, *, par: int = 1, pending: int | None = None, **attributes: Any) -> Topology:
        case = self
        kafka = {
            "bootstrap.servers": self.node.address, "heartbeat.interval.ms": 300, "log_level": 0,
            **attributes.pop("kafka", {}),
        }  # fmt: skip

        class Records(KafkaSpout):
            retry = TWICE
            commit_secs = 0.05

        class Reads(Bolt):
            auto_ack = False

            def process(self, tup: Any) -> None:
                at = (tup.values.partition, tup.values.offset)
                case.seen[at] += 1
                case.rows.append(tup.values)
                case.tasks[at[0]] = tup.task
                if tup.values.value == b"poison":
                    raise RowFailedError("no good")
                if tup.values.value != b"held":
                    self.ack(tup)

        for name, value in attributes.items():
            setattr(Records, name, value)
        builder = TopologyBuilder()
        builder.set_spout("records", Records([self.topic], self.group, kafka=kafka), par)
        builder.set_bolt("reads", Reads).shuffle_grouping("records")
        config: dict[str, Any] = {"topology.message.timeout.secs": 600}
        if pending is not None:
            config["topology.max.spout.pending"] = pending
        return builder.create_topology(self.group, config)

    @contextmanager
    def running(self, **options: Any) -> Iterator[list[RunResult]]:
        """Run a topology until the end of the block."""
        stop = threading.Event()
        results: list[RunResult] = []

        def run() -> None:
            try:
                results.append(self.topology(**options).run_local(self.acker, stop=stop))
            except BaseException as exc:
                self.errors.append(exc)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield results
        finally:
            stop.set()
            thread.join(120)
            assert not thread.is_alive()
        assert not self.errors, self.errors

    def until(self, condition: Callable[[], object], what: str) -> None:
        wait_until(lambda: bool(self.errors or condition()), what, timeout_secs=60)
        assert not self.errors, self.errors

    def until_settled(self, run: LocalRun, condition: Callable[[], object], what: str) -> None:
        """Let a local run go on until a condition holds."""

        def settled() -> bool:
            run.settle()
            return bool(condition())

        self.until(settled, what)

    def until_lag(self, lag: int) -> None:
        self.until(lambda: self.node.lag(self.group, self.topic) == lag, f"the lag is {lag}")

    def letters(self) -> list[Any]:
        return list(self.acker.dead_letters.read())


def numbered(count: int, partitions: int = 1) -> list[dict[str, Any]]:
    return [{"value": f"{n}", "partition": n % partitions} for n in range(count)]


def test_records_that_are_acked_are_committed(node: Broker, acker: Acker) -> None:
    case = Case(node, acker, partitions=2)
    node.produce(case.topic, numbered(50, 2))
    with case.running() as results:
        case.until_lag(0)
    assert results[0].acked == 50
    assert set(case.seen.values()) == {1}
    assert len(case.seen) == 50


def test_records_arrive_unchanged(node: Broker, acker: Acker) -> None:
    case = Case(node, acker)
    headers = [("name", b"\xff\x00"), ("name", None)]
    node.produce(
        case.topic,
        [
            {"key": b"\x00k", "value": b"\xffv", "headers": headers, "timestamp": 1_700_000_000_123},
            {"key": b"tombstone", "value": None, "timestamp": 2},
        ],
    )
    with case.running():
        case.until_lag(0)
    first, second = sorted(case.rows, key=lambda row: row.offset)
    assert (first.topic, first.partition, first.offset) == (case.topic, 0, 0)
    assert (first.key, first.value, first.headers, first.timestamp) == (b"\x00k", b"\xffv", headers, 1_700_000_000_123)
    assert (second.key, second.value, second.headers, second.timestamp) == (b"tombstone", None, None, 2)
    assert first.topic_id == second.topic_id != ""


def test_a_record_that_fails_is_replayed_and_then_a_letter_which_the_commit_passes(node: Broker, acker: Acker) -> None:
    case = Case(node, acker)
    node.produce(case.topic, [{"value": value} for value in ("a", "poison", "b")])
    with case.running() as results:
        case.until_lag(0)
    assert case.seen == {(0, 0): 1, (0, 1): 2, (0, 2): 1}
    (letter,) = case.letters()
    place = json.loads(letter.place)
    assert (place["group"], place["topic"], place["partition"], place["offset"]) == (case.group, case.topic, 0, 1)
    assert (letter.attempts, letter.detail) == (2, "no good")
    assert results[0].dead_letters == 1


def test_a_restart_repeats_only_open_records(node: Broker, acker: Acker) -> None:
    case = Case(node, acker)
    node.produce(case.topic, [{"value": value} for value in ("a", "held", "b", "c", "held", "d")])
    progress = KafkaProgress(app_of(acker).client, acker.config.app, case.group)

    def is_published() -> bool:
        numbers = progress.read().get(f"{case.topic}/0", {})
        return (numbers.get("committed"), numbers.get("done_beyond"), numbers.get("open")) == (1, 3, 2)

    with case.topology(pending=10).local(acker=acker) as run:
        case.until_settled(run, is_published, "the rest is committed")
    assert case.node.committed(case.group, case.topic)[0].offset == 1
    case.seen.clear()
    node.produce(case.topic, [{"value": "e"}])
    with case.topology().local(acker=acker) as run:
        case.until_settled(run, lambda: len(case.seen) == 3, "all open records are read")
    assert case.seen == {(0, 1): 1, (0, 4): 1, (0, 6): 1}


def test_two_tasks_share_the_partitions(node: Broker, acker: Acker) -> None:
    case = Case(node, acker, partitions=4)
    node.produce(case.topic, numbered(4, 4))
    with case.running(par=2):

        def is_shared() -> bool:
            """Write a record to each partition. Return True once two tasks have read some."""
            node.produce(case.topic, numbered(4, 4))
            return len(case.tasks) == 4 and len(set(case.tasks.values())) == 2

        case.until(is_shared, "both tasks have partitions")
        case.until_lag(0)
    ends = node.ends(case.topic)
    assert set(case.seen) == {(number, offset) for number, end in ends.items() for offset in range(end)}


def test_open_records_are_bounded_and_the_membership_goes_on(node: Broker, acker: Acker) -> None:
    case = Case(node, acker)
    node.produce(case.topic, [{"value": "held"} for _ in range(20)])
    progress = KafkaProgress(app_of(acker).client, acker.config.app, case.group)

    def numbers() -> dict[str, Any]:
        return progress.read().get(f"{case.topic}/0", {})

    often = {"max.poll.interval.ms": 6000, "session.timeout.ms": 6000}
    with case.topology(pending=5, kafka=often).local(acker=acker) as run:
        case.until_settled(run, lambda: (len(case.seen), numbers().get("open")) == (5, 5), "five records are open")
        begin = int(numbers()["time_ms"])
        # Longer than the poll interval: a member that isn't called would have lost the partition, and published no more.
        case.until(lambda: int(numbers()["time_ms"]) > begin + 8000, "the member goes on")
        assert numbers()["open"] == 5
    assert sum(case.seen.values()) == 5


def test_the_topology_of_the_guide_runs(node: Broker, acker: Acker, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = (block for block in blocks("python", "docs/guides/kafka.md") if "KafkaSpout" in block)
    program: dict[str, Any] = {"KAFKA": {"bootstrap.servers": node.address}, "RetryPolicy": RetryPolicy}
    exec(block, program)
    node.topic("orders", partitions=2)
    node.produce("orders", [{"value": "first", "partition": 1}, {"value": None, "key": "second", "partition": 0}])
    stop = threading.Event()
    run = threading.Thread(target=program["Billing"].run_local, args=(acker,), kwargs={"stop": stop})
    run.start()
    try:
        wait_until(lambda: is_committed(node.address, "billing", "orders"), "all orders are done", timeout_secs=90)
    finally:
        stop.set()
        run.join(120)
    assert "1 0 first" in capsys.readouterr().out
