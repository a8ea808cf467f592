"""A Kafka spout on Spark: its member is in the driver, and the executors ack its records."""

import threading
import uuid
from pathlib import Path
from typing import Any

from acker_redis import Acker, RetryPolicy
from acker_redis.storm import Bolt, KafkaSpout, RowFailedError, RunResult, Topology, Tuple
from acker_redis.testing import wait_until
from tests.support.kafka import Broker


def test_records_are_committed_once_executors_acked_them_or_there_is_a_letter(
    run: Any, spark: Any, acker: Acker, node: Broker, tmp_path: Path
) -> None:
    topic, group = node.topic(partitions=2), f"group-{uuid.uuid4().hex[:8]}"
    given: list[dict[str, Any]] = [{"value": f"{n}", "partition": n % 2} for n in range(100)]
    given += [
        {"value": "poison", "partition": 0},
        {"key": "k", "value": None, "partition": 1, "headers": [("a", b"\xff"), ("b", None)], "timestamp": 7},
    ]
    node.produce(topic, given)

    class Judge(Bolt):
        def process(self, tup: Tuple) -> None:
            if tup.values.value == b"poison":
                raise RowFailedError("poison")

    class Records(Topology):
        records = KafkaSpout(
            [topic], group, kafka={"bootstrap.servers": node.address, "log_level": 0},
            retry=RetryPolicy(max_attempts=2, first_delay_secs=0),
        ).spec()  # fmt: skip
        judge = Judge.spec(inputs=[records])

    stop = threading.Event()
    results: list[RunResult] = []

    def go() -> None:
        results.append(
            run(
                Records, stop=stop, turn_secs=0.2,
                sinks={"records": lambda writer: writer.mode("append").parquet(str(tmp_path / "out"))},
            )
        )  # fmt: skip

    thread = threading.Thread(target=go)
    thread.start()
    try:
        wait_until(lambda: not thread.is_alive() or node.lag(group, topic) == 0, "the lag is 0", timeout_secs=90)
    finally:
        stop.set()
        thread.join(120)
    (result,) = results
    assert (result.acked, result.dead_letters, result.unfinished) == (101, 1, 0)
    assert node.lag(group, topic) == 0
    rows = spark.read.parquet(str(tmp_path / "out")).distinct().collect()
    assert {(row.partition, row.offset) for row in rows} == {(n, offset) for n in (0, 1) for offset in range(51)}
    (last,) = (row for row in rows if row.timestamp == 7)
    assert (bytes(last.key), last.value) == (b"k", None)
    assert [(pair.key, pair.value) for pair in last.headers] == [("a", bytearray(b"\xff")), ("b", None)]
