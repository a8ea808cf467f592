"""`run_kafka` to `write_kafka` against a stream with Spark's own source and sink: records per second, and latency.

Both read records of 100 bytes from a topic, put their values into capitals, and write them to another one. The latency of
the tracked side ends when the driver knows that a record is acked. That of the other side ends earlier, when a record is in
the second topic.
"""

import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pyspark
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from acker_redis.spark import Progress, Tracker, run_kafka
from acker_redis.spark.runs.kafka_records import KafkaRecords
from acker_redis.testing import wait_until
from benchmarks import jobs
from benchmarks.harness import Bench, Row
from benchmarks.kafka.members import WAIT_SECS, send
from spark.applications.kafka_words.account import Topic
from spark.support.kafka import Node

_RECORDS, _BYTES, _PARTITIONS, _ROUNDS = 400_000, 100, 2, 3
_PENDING = 150_000
_SECS, _WARM_SECS = 20, 2.0
_TARGET, _TARGET_LATENCY = 0.7, 1.0
_PACKAGES = {"4.0": "4.0.0", "4.1": "4.1.1", "4.2": "4.2.0", "4.3": "4.2.0"}
"""Version of Spark -> version of its connector that was published, and works."""


def connector() -> dict[str, str]:
    """Return Spark's setting that loads the connector of Kafka."""
    version = ".".join(pyspark.__version__.split(".")[:2])
    if (folder := os.environ.get("ACKER_JARS")) is not None:
        return {"spark.jars": ",".join(sorted(map(str, (Path(folder) / f"kafka-{version}").glob("*.jar"))))}
    return {"spark.jars.packages": f"org.apache.spark:spark-sql-kafka-0-10_2.13:{_PACKAGES[version]}"}


def rows(bench: Bench, node: Node) -> Iterator[Row]:
    """Measure records per second of both sides in turn, then the latency at a tenth of that rate."""
    count = bench.size(_RECORDS, least=2000)
    with jobs.session(**connector()) as spark, TemporaryDirectory(prefix="bench-") as folder:
        sides = _Sides(bench, node, spark, Path(folder))
        given = sides.filled(count)
        rates: dict[str, list[float]] = {"tracked": [], "plain": []}
        micros = []
        rounds = _ROUNDS if bench.scale >= 1 else 1
        for number in range(rounds + 1 if bench.scale >= 1 else rounds):
            plain = count / sides.plain(given, count)
            cpu = time.process_time()
            tracked = count / sides.tracked(given, count)
            if number or bench.scale < 1:  # the first warms up
                micros.append((time.process_time() - cpu) / count * 1e6)
                rates["plain"].append(plain)
                rates["tracked"].append(tracked)
        reached = float(np.median(rates["tracked"]))
        yield bench.row(
            f"records/s, {count:,} records of {_BYTES} bytes: tracked / Spark's source and sink",
            [a / b for a, b in zip(rates["tracked"], rates["plain"], strict=True)], "x", target=_TARGET, at_least=True,
            context=f"{reached:,.0f} / {np.median(rates['plain']):,.0f} records/s, at most {_PENDING:,} in flight",
        )  # fmt: skip
        yield bench.row("CPU of the driver's Python per record", micros, "µs")
        yield from _latencies(bench, sides, reached / 10)


def _latencies(bench: Bench, sides: "_Sides", per_sec: float) -> Iterator[Row]:
    secs = max(4.0, _SECS * bench.scale)
    tracked, plain = sides.tracked_ages(per_sec, secs), sides.plain_ages(per_sec, secs)
    for share in (50, 99):
        values = [float(np.percentile(ages, share)) for ages in (tracked, plain)]
        yield bench.row(
            f"produced to acked, p{share}: tracked / Spark's source and sink", [values[0] / values[1]], "x",
            target=_TARGET_LATENCY, context=f"{values[0]:,.0f} ms / {values[1]:,.0f} ms, at {per_sec:,.0f} records/s",
        )  # fmt: skip


class _Sides:
    """Both sides, and the topics between them."""

    def __init__(self, bench: Bench, node: Node, spark: SparkSession, folder: Path) -> None:
        self._bench, self._node, self._spark, self._folder = bench, node, spark, folder

    def topic(self) -> str:
        name = f"topic-{uuid.uuid4().hex[:8]}"
        return self._node.topic(name, _PARTITIONS, message_timestamp_type="LogAppendTime")

    def filled(self, count: int) -> str:
        """Make a topic with records."""
        topic, producer = self.topic(), Producer({**self._node.client, "linger.ms": 20})
        for n in range(count):
            send(producer, topic, str(n), f"{n:x<{_BYTES}}")
        producer.flush(WAIT_SECS)
        return topic

    def plain(self, given: str, count: int) -> float:
        """Return the seconds of a query that reads all records and ends."""
        out, began = self.topic(), time.perf_counter()
        self._query(given, out, availableNow=True).awaitTermination()
        secs = time.perf_counter() - began
        self._check(out, count)
        return secs

    def tracked(self, given: str, count: int) -> float:
        """Return the seconds until all records are acked."""
        out, stop = self.topic(), threading.Event()
        began = ended = time.perf_counter()

        def progress(now: Progress) -> None:
            nonlocal ended
            if now.counts.acked == count and not stop.is_set():
                ended = time.perf_counter()
                stop.set()

        self._run(given, out, stop, progress)
        self._check(out, count)
        return ended - began

    def tracked_ages(self, per_sec: float, secs: float) -> list[float]:
        """Return the milliseconds from produced to acked."""
        given, out, stop = self.topic(), self.topic(), threading.Event()
        total = 0

        def produce() -> None:
            nonlocal total
            total = self._produce(given, out, per_sec, secs)

        producing = threading.Thread(target=produce)

        def progress(now: Progress) -> None:
            if producing.ident is None:
                producing.start()
            elif not producing.is_alive() and now.counts.acked == total:
                stop.set()

        with _noted_acks() as ages:
            self._run(given, out, stop, progress)
        return _settled(ages)

    def plain_ages(self, per_sec: float, secs: float) -> list[float]:
        """Return the milliseconds from produced to written."""
        given, out = self.topic(), self.topic()
        query = self._query(given, out)
        total = self._produce(given, out, per_sec, secs)
        topic = Topic(self._node.address, out)
        wait_until(lambda: not query.isActive or topic.count() == total, "all records are written", WAIT_SECS)
        query.stop()
        written = topic.fresh()
        topic.close()
        return _settled([(float(record.key()), record.timestamp()[1] - float(record.key())) for record in written])

    def _produce(self, given: str, out: str, per_sec: float, secs: float) -> int:
        """Produce at a rate, once a first record came through. The key is the time, in ms. Return the number of records."""
        producer, number = Producer({**self._node.client, "linger.ms": 1}), 1
        send(producer, given, f"{time.time() * 1000:.3f}", "x" * _BYTES)
        producer.flush(WAIT_SECS)
        topic = Topic(self._node.address, out)
        wait_until(lambda: topic.count() == 1, "the first record comes through", WAIT_SECS)
        topic.close()
        began = time.monotonic()
        while (since := time.monotonic() - began) < secs:
            while number < since * per_sec:
                send(producer, given, f"{time.time() * 1000:.3f}", "x" * _BYTES)
                number += 1
            producer.poll(0.002)
        producer.flush(WAIT_SECS)
        return number

    def _query(self, given: str, out: str, **trigger: Any) -> Any:
        servers = {"kafka.bootstrap.servers": self._node.address}
        read = (
            self._spark.readStream.format("kafka")
            .options(**servers, subscribe=given, startingOffsets="earliest")
            .load()
        )
        rows = read.selectExpr("key", "upper(string(value)) AS value")
        checkpoint = {"checkpointLocation": str(self._folder / uuid.uuid4().hex)}
        writer = rows.writeStream.format("kafka").options(**servers, **checkpoint, topic=out)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def _run(self, given: str, out: str, stop: threading.Event, progress: Any) -> None:
        kafka = self._node.client

        def pipeline(tracker: Tracker, records: DataFrame) -> None:
            rows = records.selectExpr("key", "upper(string(value)) AS value", "_share", "_roots")
            tracker.write_kafka(rows, topic=out, kafka=kafka)

        with self._bench.acker("kafka", empty=True) as acker:
            result = run_kafka(
                self._spark, pipeline, acker=acker, kafka=kafka, topics=[given], group=f"group-{out}", stop=stop,
                max_spout_pending=_PENDING, progress=progress,
            )  # fmt: skip
        if result.counts.replayed or result.counts.dead_lettered:
            raise RuntimeError(f"not every record was acked at its first attempt: {result.counts}")

    def _check(self, out: str, count: int) -> None:
        topic = Topic(self._node.address, out)
        written = topic.count()
        topic.close()
        if written != count:
            raise RuntimeError(f"{written} records were written, and {count} were there")


@contextmanager
def _noted_acks() -> Iterator[list[tuple[float, float]]]:
    """Note when each record was produced, by its key, and how long it took until it was done, in milliseconds."""
    ages: list[tuple[float, float]] = []
    done = KafkaRecords.done

    def noting(records: KafkaRecords, message_ids: Any) -> None:
        now = time.time() * 1000
        for message_id in message_ids.tolist():
            if (found := records._find(message_id)) is not None:  # noqa: SLF001
                produced = float(found[1].key())
                ages.append((produced, now - produced))
        done(records, message_ids)

    with patch.object(KafkaRecords, "done", noting):
        yield ages


def _settled(ages: list[tuple[float, float]]) -> list[float]:
    """Return the ages of all records but those of the first seconds."""
    first = min(produced for produced, _ in ages)
    return [age for produced, age in ages if produced - first > _WARM_SECS * 1000]
