"""Records exported to a topic for one group: another application, or a plain consumer, completes their messages."""

import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame

from acker_redis import Acker, AckerConfig, Anchors, BadConfigError, PipelineError
from acker_redis.spark import Progress, RunResult, Tracker, check_pipeline, run_kafka, run_tracked
from acker_redis.spout.retry import RetryPolicy
from acker_redis.testing import wait_until
from tests.docs.test_readme import blocks
from tests.support.kafka import Broker
from tests.support.spark.cases import write_rows

pytestmark = pytest.mark.spark

ONCE = RetryPolicy(max_attempts=1, first_delay_secs=0)


@pytest.fixture
def config() -> AckerConfig:
    return AckerConfig(app=f"exports-{uuid.uuid4().hex}", shards=2, lanes=2, message_timeout_secs=600)


class Shop:
    """An application that exports the items of its orders, in a thread of its own.

    Attributes:
        topic: where the items go.
        group: the group that is to ack them.
    """

    def __init__(self, spark: Any, node: Broker, acker: Acker, orders: list[tuple[int, str]]) -> None:
        self.spark, self.node, self.acker = spark, node, acker
        self.topic, self.group = node.topic(partitions=2), f"group-{uuid.uuid4().hex[:8]}"
        self.orders = spark.createDataFrame(orders, "order bigint, items string")
        self.results: list[RunResult] = []
        self.kafka = {"bootstrap.servers": node.address, "log_level": 0}

    def pipeline(self, tracker: Tracker, orders: DataFrame) -> None:
        items = tracker.explode(orders, "transform(split(items, ','), item -> struct(order, item))")
        self.export(tracker, items)

    def export(self, tracker: Tracker, items: DataFrame) -> None:
        """With a header of another topic, which must not arrive."""
        records = items.selectExpr(
            "string(order) AS key",
            "to_json(struct(order, item)) AS value",
            "array(struct('acker-anchors' AS key, X'00' AS value), struct('h' AS key, X'01' AS value)) AS headers",
            "_share",
            "_roots",
        )
        tracker.export_kafka(records, topic=self.topic, group=self.group, kafka=self.kafka)

    @contextmanager
    def open(self, **options: Any) -> Iterator[threading.Thread]:
        """Run it, until all of its messages are done."""

        def run() -> None:
            given = {"ids": "order", "retry": ONCE, "pipeline": self.pipeline, **options}
            self.results.append(run_tracked(self.orders, acker=self.acker, **given))

        thread = threading.Thread(target=inheritable_thread_target(self.spark)(run))
        thread.start()
        try:
            yield thread
        finally:
            thread.join(120)
        assert not thread.is_alive()


def test_two_applications_complete_messages_together(
    spark: Any, node: Broker, url: str, config: AckerConfig, tmp_path: Path
) -> None:
    """Beside exported records the topic has a plain one, a forged one, and one that nobody waits for."""
    orders = [(number, "tea,unicorn" if number == 7 else "tea,milk") for number in range(40)]
    seen: list[Any] = []

    def price(tracker: Tracker, records: DataFrame) -> None:
        assert "_acker_bad_anchors" not in records.columns
        seen.extend(records.select("headers").collect())
        priced = tracker.fail_where(records, "string(value) LIKE '%unicorn%'", "no price of 'unicorn'", name="price")
        rows = priced.selectExpr("string(value) AS value", "_share", "_roots")
        tracker.write_partitions(rows, partial(write_rows, tmp_path, f"{tracker.run_id}-{tracker.emission}", None))

    with Acker.connect(url, config) as upstream, Acker.connect(url, config) as acker:
        shop = Shop(spark, node, upstream, orders)
        old = b"\x01" + b"".join(len(n).to_bytes(2, "big") + n.encode() for n in (config.app, shop.group)) + bytes(16)
        for value in (None, b"forged", old):
            node.produce(shop.topic, [{"value": "extra", "headers": [("acker-anchors", value)] if value else None}])
        stop = threading.Event()
        options: dict[str, Any] = {
            "acker": acker, "kafka": shop.kafka, "topics": [shop.topic], "stop": stop, "retry": ONCE, "imports": True,
        }  # fmt: skip
        with shop.open() as thread:

            def progress(now: Progress) -> None:
                if now.counts.acked + now.counts.dead_lettered + now.skipped == 83 and not thread.is_alive():
                    stop.set()

            result = run_kafka(spark, price, group=shop.group, progress=progress, commit_secs=0.1, **options)
        (exported,) = shop.results
        assert (exported.counts.acked, exported.counts.emitted) == (39, 40)
        (letter,) = exported.dead_letters.values()
        assert (letter.message_id, letter.detail, letter.last_component) == (7, "no price of 'unicorn'", "price")
        assert (result.counts.acked, result.counts.dead_lettered, result.skipped) == (80, 2, 1)
        reasons = {letter.detail for letter in result.dead_letters.values()}
        assert any("version 102" in str(reason) for reason in reasons), reasons
        assert {header.key for row in seen for header in row.headers or ()} == {"h"}
        assert node.lag(shop.group, shop.topic) == 0
        written = [row[0] for file in tmp_path.glob("*.rows") for row in json.loads(file.read_text())]
        assert len(written) == len(set(written)) + 0 == 80
        assert acker.stats().unowned == 0

        stop.set()
        with pytest.raises(BadConfigError, match=f"is exported for the group '{shop.group}'"):
            run_kafka(spark, price, group="another", **options)
        assert node.committed("another", shop.topic) == {}
        shop.group = "another"
        with pytest.raises(BadConfigError, match="is exported for the group"):
            run_tracked(shop.orders, shop.pipeline, acker=upstream, ids="order", retry=ONCE)


class Consumer:
    """A plain consumer that acks each record twice, the second time together with earlier ones."""

    def __init__(self, node: Broker, acker: Acker, shop: Shop) -> None:
        self.node, self.acker, self.shop = node, acker, shop
        self.edges: list[int] = []

    def run(self, over: Callable[[], bool]) -> None:
        import confluent_kafka

        settings = {
            "bootstrap.servers": self.node.address, "group.id": self.shop.group, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "log_level": 0,
        }  # fmt: skip
        luck = np.random.default_rng(1)
        known: list[Anchors] = []
        consumer = confluent_kafka.Consumer(settings)
        consumer.subscribe([self.shop.topic])
        try:
            while not over():
                messages = [message for message in consumer.consume(50, 0.1) if message.error() is None]
                fresh = [self.anchors(message) for message in messages]
                known += fresh
                again = [known[place] for place in luck.integers(0, len(known), 30)] if known else []
                for part in (fresh, [*again, *fresh]):
                    if part:
                        roots, edges = (np.concatenate([getattr(a, name) for a in part]) for name in ("roots", "edges"))
                        self.acker.ack_many(roots, edges, record_keys=edges, component="plain")
        finally:
            consumer.close()
        self.edges = [int(edge) for anchors in known for edge in anchors.edges]

    def anchors(self, message: Any) -> Anchors:
        found = Anchors.of_headers(message.headers(), app=self.acker.config.app, group=self.shop.group)
        assert found is not None
        return found


def crash_once(address: str, topic: str, marker: str, order: Any) -> list[tuple[int, str]]:
    """Kill the worker in the middle of its task, after records of the task have reached the topic."""
    from tests.support.kafka import ends

    if order["order"] == 19 and not Path(marker).exists():
        wait_until(lambda: sum(ends(address, topic).values()) > 0, "records are in the topic", timeout_secs=90)
        Path(marker).touch()
        os._exit(1)
    return [(order["order"], item + order["padding"]) for item in order["items"].split(",")]


@pytest.mark.chaos
def test_export_waits_for_a_plain_consumer_and_a_repeated_task_counts_once(
    spark: Any, node: Broker, url: str, config: AckerConfig, tmp_path: Path
) -> None:
    """At most 20 messages are open. A task writes its records twice. The consumer acks records twice, in other groups."""
    marker = str(tmp_path / "crashed")
    with Acker.connect(url, config) as upstream, Acker.connect(url, config) as acker:
        shop = Shop(spark, node, upstream, [(number, "tea,milk") for number in range(50)])
        # Arrow batches leave a worker once they fill a buffer of 64 KiB.
        shop.orders = shop.orders.repartition(1).selectExpr("order", "items", "repeat('x', 100000) AS padding")

        def pipeline(tracker: Tracker, orders: DataFrame) -> None:
            split = partial(crash_once, node.address, shop.topic, marker)
            shop.export(tracker, tracker.flat_map(orders, split, "order bigint, item string"))

        limit = "spark.sql.execution.arrow.maxRecordsPerBatch"
        before = spark.conf.get(limit)
        spark.conf.set(limit, "2")
        try:
            with shop.open(pipeline=pipeline, max_spout_pending=20) as thread:
                wait_until(lambda: acker.pending() == 20 and Path(marker).exists(), "20 are open", timeout_secs=120)
                wait_until(lambda: len({m.key() for m in node.read(shop.topic)}) >= 20, "20 are exported", 90)
                assert len({message.key() for message in node.read(shop.topic)}) == 20
                consumer = Consumer(node, acker, shop)
                consumer.run(lambda: not thread.is_alive())
        finally:
            spark.conf.set(limit, before)
        (exported,) = shop.results
        assert (exported.counts.acked, exported.counts.emitted, exported.counts.failed) == (50, 50, 0)
        assert len(set(consumer.edges)) == 100
        assert len(consumer.edges) > 100, "the repeated task wrote no record twice"


def test_mistakes_of_an_export_are_told_before_a_record_is_written(spark: Any, node: Broker, url: str) -> None:
    topic = node.topic()
    kafka = {"bootstrap.servers": node.address, "log_level": 0}
    orders = spark.range(3).selectExpr("id AS order", "string(id) AS value")

    def with_options(tracker: Tracker, rows: DataFrame, **options: Any) -> None:
        tracker.export_kafka(rows, **{"topic": topic, "group": "g", "kafka": kafka, **options})

    for options, error, text in (
        ({"group": ""}, BadConfigError, "export_kafka: group=''"),
        ({"topic": None}, PipelineError, "export_kafka: topic=None"),
        ({"topic": ""}, PipelineError, "export_kafka: topic=''"),
        ({"kafka": {**kafka, "acks": "1"}}, BadConfigError, "waits for too few replicas"),
    ):
        with pytest.raises(error, match=text):
            check_pipeline(orders, partial(with_options, **options), ids="order")
    assert check_pipeline(orders, with_options, ids="order").written == {"export_kafka": 3}
    with Acker.connect(url, app="whole") as acker, pytest.raises(PipelineError, match='export_kafka: output="whole"'):
        run_tracked(orders, with_options, acker=acker, ids="order", output="whole")
    assert sum(node.ends(topic).values()) == 0


def test_programs_of_the_docs_price_what_another_sold(
    spark: Any, node: Broker, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of kafka.md: the second half is priced without Spark."""
    monkeypatch.setenv("KAFKA_SERVERS", node.address)
    monkeypatch.setenv("ACKER_REDIS_URL", url)
    for name in ("sold", "priced"):
        node.topic(name)
    program: dict[str, Any] = {}
    exec("\n".join(blocks("python", "docs/guides/kafka.md")), program)

    def until_sold(first: int, consume: Callable[[threading.Event], object]) -> None:
        orders = spark.createDataFrame([(first, "tea,milk"), (first + 1, "unicorn")], "order bigint, items string")
        stop = threading.Event()
        other = threading.Thread(target=inheritable_thread_target(spark)(consume), args=(stop,))
        other.start()
        try:
            with Acker.connect(url, AckerConfig(app="shop", lanes=2)) as acker:
                run = run_tracked(orders, program["sell"], acker=acker, ids="order", retry=ONCE)
        finally:
            stop.set()
            other.join()
        assert (run.counts.acked, run.dead_letters[first + 1].detail) == (1, "no price")
        assert run.dead_letters[first + 1].last_component == "price"

    until_sold(1, partial(program["pricing"], spark))
    until_sold(3, program["price_without_spark"])
    assert sorted(message.value() for message in node.read("priced")) == [b"milk", b"tea"]
