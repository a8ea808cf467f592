"""`run_kafka` on a cluster of three brokers that loses one or two of them: it waits or goes on, and no record is missing."""

import logging
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from acker_redis import Acker, AckerConfig
from acker_redis.kafka.commit_metadata import decode
from acker_redis.spark import Progress, RunResult, Tracker
from acker_redis.spout.retry import RetryPolicy
from acker_redis.testing import wait_until
from tests.spark.runs.test_kafka import Case, numbered, write_to
from tests.support.kafka import Broker, brokers, values

pytestmark = [pytest.mark.spark, pytest.mark.chaos]

SECS = 240.0
"""Longest wait for a cluster that elects leaders."""


class Run(Case):
    """A run in a thread of its own, during which brokers die.

    Attributes:
        nodes: the brokers.
        mortal: brokers to kill in the next emission, before its rows are written.
        progress: what the run said last.
    """

    def __init__(self, spark: Any, nodes: list[Broker], acker: Acker, folder: Path) -> None:
        super().__init__(spark, nodes[0], acker, folder)
        self.nodes, self.kafka = nodes, {**nodes[0].client, "session.timeout.ms": 6000}
        self.mortal: list[Broker] = []
        self.progress: Progress | None = None
        self.has_ended = threading.Event()

    def kill(self) -> None:
        """In an emission: the brokers that are to die do so now."""
        while self.mortal:
            self.mortal[-1].kill()
            self.mortal.pop()

    def go(self, topic: str, **options: Any) -> RunResult:
        """Until `has_ended` is set."""

        def until(now: Progress) -> bool:
            self.progress = now
            return self.has_ended.is_set()

        return self.run(until, topics=[topic], kafka=self.kafka, **options)

    @property
    def settled(self) -> int:
        """Number of records that are done."""
        return 0 if self.progress is None else self.progress.counts.acked + self.progress.counts.dead_lettered


@pytest.fixture
def run(spark: Any, url: str, tmp_path: Path) -> Iterator[Run]:
    config = AckerConfig(app=f"kafka-{uuid.uuid4().hex}", shards=2, lanes=2, message_timeout_secs=600)
    with brokers(3) as nodes, Acker.connect(url, config) as acker:
        servers = ",".join(node.address for node in nodes)
        for node in nodes:
            node.client |= {"bootstrap.servers": servers}
        yield Run(spark, nodes, acker, tmp_path)


def test_run_waits_while_two_of_three_brokers_are_gone_and_completes_when_they_are_back(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """One record is open until the brokers are back, and no commit may pass it."""
    topic = run.node.topic(partitions=3, min_insync_replicas="2")
    is_mended = threading.Event()

    def pipeline(tracker: Tracker, records: DataFrame) -> None:
        run.kill()
        run.emissions += 1
        bad = "false" if is_mended.is_set() else "value = encode('poison-10', 'UTF-8')"
        sound = tracker.fail_where(records, bad, "not yet")
        rows = sound.selectExpr("topic", "partition", "offset", "_share", "_roots")
        tracker.write_partitions(rows, write_to(run.folder, tracker))

    def produce(begin: int) -> None:
        records = numbered(begin + 60, 3, lambda n: n == 10)[begin:]
        run.node.produce(topic, records, **{"enable.idempotence": True})

    def commits() -> list[int]:
        """At the open record, which no commit may call done."""
        found = run.node.committed(run.group, topic)
        held = found.get(1)
        progress = held and decode(held.metadata, held.offset)
        assert held is None or held.offset <= 3
        assert progress is None or not any(begin <= 3 < end for begin, end in progress.runs)
        return [found[number].offset if number in found else 0 for number in range(3)]

    retry = RetryPolicy(max_attempts=10_000, first_delay_secs=0.5, multiplier=1)
    caplog.set_level(logging.WARNING, "acker_redis.kafka")
    produce(0)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run.go, topic, pipeline=pipeline, retry=retry)
        try:
            wait_until(lambda: running.done() or commits() == [20, 3, 20], "all but one are committed", SECS)
            run.mortal = run.nodes[1:]
            wait_until(lambda: running.done() or not run.mortal, "two brokers are killed in an emission", SECS)
            wait_until(lambda: running.done() or "brokers not answering" in caplog.text, "the log says it", SECS)
            emissions = run.emissions
            wait_until(lambda: running.done() or run.emissions > emissions + 1, "the run goes on alone", SECS)
            assert not running.done()
            for node in run.nodes[1:]:
                node.start(wait=False)
            for node in run.nodes[1:]:
                node.wait()
            produce(60)
            wait_until(lambda: running.done() or commits() == [40, 3, 40], "the others are committed", SECS)
            is_mended.set()
            wait_until(lambda: running.done() or run.node.lag(run.group, topic) == 0, "all are committed", SECS)
        finally:
            run.has_ended.set()
        result = running.result()
    assert (result.counts.dead_lettered, list(run.acker.dead_letters.read())) == (0, [])
    assert set(run.written()) == {(topic, n % 3, n // 3) for n in range(120)}


def test_run_goes_on_by_itself_when_one_of_three_brokers_is_killed_under_source_and_sink(run: Run) -> None:
    """It leads partitions of both topics, and is the coordinator of the group."""
    topic = run.node.topic(partitions=3, min_insync_replicas="2")
    sink = run.node.topic(partitions=3, min_insync_replicas="2")

    def pipeline(tracker: Tracker, records: DataFrame) -> None:
        run.kill()
        run.emissions += 1
        sound = tracker.fail_where(records, "startswith(value, encode('poison', 'UTF-8'))", "poison")
        rows = tracker.explode(sound, "transform(array(0, 1), i -> struct(concat(string(value), '-', i) AS value))")
        tracker.write_kafka(rows, topic=sink, kafka=run.nodes[0].client)

    records = numbered(600, 3, lambda n: n % 100 == 7)
    run.node.produce(topic, records[:300], **{"enable.idempotence": True})
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run.go, topic, pipeline=pipeline)
        try:
            wait_until(lambda: running.done() or run.settled == 300, "the first records are done", SECS)
            admin = run.node.admin()  # what it was asked ends with it
            group = admin.describe_consumer_groups([run.group])[run.group].result(60)
            coordinator = run.nodes[group.coordinator.id - 1]
            survivor = next(node for node in run.nodes if node is not coordinator)
            run.mortal = [coordinator]
            survivor.produce(topic, records[300:], **{"enable.idempotence": True})
            wait_until(lambda: running.done() or run.settled == 600, "all records are done", SECS)
            wait_until(lambda: running.done() or survivor.lag(run.group, topic) == 0, "all are committed", SECS)
        finally:
            run.has_ended.set()
        result = running.result()
    assert not coordinator.is_running
    assert (result.counts.acked, result.counts.dead_lettered) == (594, 6)
    assert {letter.detail for letter in run.acker.dead_letters.read()} == {"poison"}
    sound = [n for n in range(600) if n % 100 != 7]
    assert set(values(survivor.read(sink))) == {f"{n}-{i}" for n in sound for i in range(2)}
