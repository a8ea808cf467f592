"""Topics of Kafka as source, on a real broker: what is committed was acked or is a dead letter, and nothing is missing."""

import base64
import json
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import Acker, AckerConfig
from acker_redis.kafka.commit_metadata import decode
from acker_redis.spark import Progress, RunResult, Tracker, run_kafka
from acker_redis.spout.retry import RetryPolicy
from acker_redis.testing import wait_until
from tests.docs.test_readme import blocks
from tests.support.jobs import kafka_job, parking_job
from tests.support.kafka import Broker, committed, is_committed, values
from tests.support.spark.cases import write_rows
from tests.support.spark.cluster import JOB_SECS, kill, start_python
from tests.support.spark.warm import Warm, read_answer

pytestmark = pytest.mark.spark

ONCE = RetryPolicy(max_attempts=1, first_delay_secs=0)


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    config = AckerConfig(app=f"kafka-{uuid.uuid4().hex}", shards=2, lanes=4, message_timeout_secs=600)
    with Acker.connect(url, config) as acker:
        yield acker


class Case:
    """A group of its own, and a folder that the pipeline writes to.

    Attributes:
        group: name of the group.
        seen: rows of the messages of each emission, as the pipeline received them.
    """

    def __init__(self, spark: Any, node: Broker, acker: Acker, folder: Path) -> None:
        self.spark, self.node, self.acker, self.folder = spark, node, acker, folder
        self.group = f"group-{uuid.uuid4().hex[:8]}"
        self.emissions = 0

    def pipeline(self, tracker: Tracker, records: DataFrame) -> None:
        """Write (topic, partition, offset); values that begin with `poison` fail."""
        self.emissions += 1
        sound = tracker.fail_where(records, "startswith(value, encode('poison', 'UTF-8'))", "poison")
        rows = sound.selectExpr("topic", "partition", "offset", "_share", "_roots")
        tracker.write_partitions(rows, write_to(self.folder, tracker))

    def run(self, until: Callable[[Progress], object], *, topics: list[str] | None = None, **options: Any) -> RunResult:
        """Run until a condition holds."""
        stop = threading.Event()

        def progress(now: Progress) -> None:
            if until(now):
                stop.set()

        given: dict[str, Any] = {
            "pipeline": self.pipeline, "group": self.group, "retry": ONCE, "commit_secs": 0.1, "topics": topics, **options,
        }  # fmt: skip
        kafka = {
            "bootstrap.servers": self.node.address,
            "session.timeout.ms": 60_000,
            "heartbeat.interval.ms": 500,
            **given.pop("kafka", {}),
        }
        return run_kafka(self.spark, acker=self.acker, kafka=kafka, stop=stop, progress=progress, **given)

    def written(self) -> Counter[tuple[str, int, int]]:
        """How often each record was written."""
        rows = (row for file in self.folder.glob("*.rows") for row in json.loads(file.read_text()))
        return Counter((topic, partition, offset) for topic, partition, offset, *_ in rows)


def write_to(folder: Path, tracker: Tracker) -> Any:
    return partial(write_rows, folder, f"{tracker.run_id}-{tracker.emission}", None)


@pytest.fixture
def case(spark: Any, node: Broker, acker: Acker, tmp_path: Path) -> Case:
    return Case(spark, node, acker, tmp_path)


@pytest.fixture
def rotator(url: str) -> Iterator[None]:
    command = [sys.executable, "-m", "acker_redis", "rotator", "--redis", url, "--all"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        yield
        process.terminate()


def numbered(count: int, partitions: int, poison: Callable[[int], bool] = lambda n: False) -> list[dict[str, Any]]:
    return [
        {"value": f"poison-{n}" if poison(n) else f"{n}", "key": f"{n}", "partition": n % partitions}
        for n in range(count)
    ]


def test_commits_reach_the_end_once_every_record_is_acked_or_a_letter(case: Case) -> None:
    topic = case.node.topic(partitions=3)
    case.node.produce(topic, numbered(300, 3, lambda n: n % 100 == 7))
    result = case.run(lambda now: now.counts.acked + now.counts.dead_lettered == 300, topics=[topic])
    assert (result.counts.acked, result.counts.dead_lettered) == (297, 3)
    assert case.node.lag(case.group, topic) == 0
    letters = {(letter.place, letter.detail) for letter in case.acker.dead_letters.read()}
    assert len(letters) == 3
    written = case.written()
    assert len(written) == 297
    assert set(written.values()) == {1}
    for at in case.node.committed(case.group, topic).values():
        assert decode(at.metadata, at.offset) is not None


def test_records_arrive_unchanged(case: Case) -> None:
    topic = case.node.topic(partitions=2)
    headers = [("name", b"\xff\x00"), ("name", b"again"), ("null", None), ("empty", b"")] + [("many", b"x")] * 296
    given: list[dict[str, Any]] = [
        {"key": b"\x00k", "value": b"\xffv", "headers": headers, "timestamp": 1_700_000_000_123},
        {"key": None, "value": b"no key", "timestamp": 1},
        {"key": b"tombstone", "value": None, "timestamp": 2},
        {"key": b"", "value": b"", "timestamp": 3},
        {"key": b"large", "value": b"y" * 900_000, "timestamp": 4},
    ]
    case.node.produce(topic, [{**record, "partition": 1} for record in given])
    rows: list[Any] = []

    def pipeline(tracker: Tracker, records: DataFrame) -> None:
        assert records.columns[:8] == [
            "topic", "topic_id", "partition", "offset", "timestamp", "key", "value", "headers",
        ]  # fmt: skip
        rows.extend(records.drop("_share", "_roots").withColumn("ms", F.unix_millis("timestamp")).collect())
        case.pipeline(tracker, records)

    case.run(lambda now: now.counts.acked == 5, topics=[topic], pipeline=pipeline)
    found = sorted(rows, key=lambda row: row.offset)
    assert [(row.topic, row.partition, row.offset) for row in found] == [(topic, 1, n) for n in range(5)]
    assert [(row.key and bytes(row.key), row.value and bytes(row.value), row.ms) for row in found] == [
        (record["key"], record["value"], record["timestamp"]) for record in given
    ]
    assert [(header.key, header.value) for header in found[0].headers] == headers
    assert found[1].headers is None


def test_restart_emits_only_the_records_that_were_open(case: Case) -> None:
    topic = case.node.topic(partitions=3)
    case.node.produce(topic, numbered(600, 3, lambda n: n in (10, 200)))
    later = RetryPolicy(max_attempts=99, first_delay_secs=600)
    first = case.run(lambda now: now.counts.acked == 598, topics=[topic], retry=later)
    assert first.counts.dead_lettered == 0
    assert case.node.lag(case.group, topic) == (600 - 10) // 3 + 1 + (600 - 200) // 3 + 1
    second = case.run(lambda now: now.counts.dead_lettered == 2, topics=[topic], dead_letter_bytes=1000)
    assert (second.counts.emitted, second.counts.acked) == (2, 0)
    assert case.node.lag(case.group, topic) == 0
    assert set(case.written().values()) == {1}
    letters = [
        (json.loads(letter.place or ""), json.loads(letter.payload or b"")) for letter in case.acker.dead_letters.read()
    ]
    assert {(place["topic"], place["partition"], place["offset"]) for place, _ in letters} == {
        (topic, 1, 3),
        (topic, 2, 66),
    }
    assert {base64.b64decode(record["value"]) for _, record in letters} == {b"poison-10", b"poison-200"}
    assert len({place["topic_id"] for place, _ in letters}) == 1


@pytest.mark.chaos
def test_drivers_of_a_group_share_partitions_and_hand_over(case: Case, url: str) -> None:
    """Each partition has one open record, which is all that moves with it."""
    topic = case.node.topic(partitions=4)
    case.node.produce(topic, numbered(400, 4, lambda n: n in (1, 2, 3, 4)))
    later = RetryPolicy(max_attempts=99, first_delay_secs=600)
    results: list[RunResult] = []
    with Acker.connect(url, case.acker.config) as second:
        other = Case(case.spark, case.node, second, case.folder)
        other.group = case.group

        def join() -> None:
            results.append(other.run(lambda now: now.counts.failed == 2, topics=[topic], retry=later))

        thread = threading.Thread(target=join)

        def until(now: Progress) -> bool:
            if now.counts.acked == 396 and now.counts.failed == 4 and thread.ident is None:
                thread.start()
            return thread.ident is not None and not thread.is_alive()

        first = case.run(until, topics=[topic], retry=later)
        thread.join()
    last = case.run(lambda now: now.counts.dead_lettered == 4, topics=[topic])
    assert [first.counts.acked, results[0].counts.emitted, last.counts.emitted] == [396, 2, 4]
    assert case.node.lag(case.group, topic) == 0
    assert set(case.written().values()) == {1}


def check_oracle(folder: Path, url: str, servers: str, topic: str) -> None:
    """What is committed was written, or has a letter. The commits are read first."""
    commits = committed(servers, kafka_job.GROUP, topic)
    rows = {tuple(row) for file in (folder / "rows").glob("*.rows") for row in json.loads(file.read_text())}
    with Acker.connect(url, parking_job.CONFIG) as acker:
        places = [json.loads(letter.place or "") for letter in acker.dead_letters.read()]
    rows |= {(place["partition"], place["offset"]) for place in places}
    for number, at in commits.items():
        found = decode(at.metadata, at.offset)
        runs = [(0, at.offset), *(found.runs if found is not None else [])]
        missing = {(number, offset) for begin, end in runs for offset in range(begin, min(end, 100))} - rows
        assert not missing, f"committed, but neither written nor a letter: {missing}"


@pytest.mark.chaos  # test_kafka_words.py has a short form: a demo whose driver is killed
@pytest.mark.usefixtures("rotator")
@pytest.mark.parametrize("points", [("done",), kafka_job.POINTS], ids=["some", "all"])
def test_killed_driver_loses_no_record(
    node: Broker, url: str, warm: Warm, tmp_path: Path, points: Sequence[str]
) -> None:
    topic = node.topic(partitions=3)
    node.produce(topic, [{"value": str(n), "partition": n % 3} for n in range(300)])
    module = "tests.support.jobs.kafka_job"
    for point in points:
        job = start_python(tmp_path, module, url, str(tmp_path), point, node.address, topic)

        def is_dead(job: Any = job) -> bool:
            check_oracle(tmp_path, url, node.address, topic)
            return job.poll() is not None

        try:
            wait_until(is_dead, "it dies", JOB_SECS)
        finally:
            kill(job)
        assert job.returncode < 0, (tmp_path / f"{module}.log").read_text()[-3000:]
    assert read_answer(warm.run_module(module, url, str(tmp_path), "never", node.address, topic, url=url)) == 0
    check_oracle(tmp_path, url, node.address, topic)
    assert node.lag(kafka_job.GROUP, topic) == 0


@pytest.mark.usefixtures("rotator")
def test_program_of_the_docs_bills_orders(case: Case, url: str, node: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of kafka.md."""
    monkeypatch.setenv("KAFKA_SERVERS", node.address)
    monkeypatch.setenv("ACKER_REDIS_URL", url)
    for name in ("orders", "items"):
        node.topic(name, partitions=2)
    orders = [{"order": 1, "items": "tea,milk"}, {"order": 2, "items": "bread"}, {"items": "nobody's"}]
    node.produce("orders", [{"value": json.dumps(order)} for order in orders])
    node.produce("orders", [{"key": "2", "value": None}])
    program: dict[str, Any] = {}
    exec("\n".join(blocks("python", "docs/guides/kafka.md")), program)
    stop = threading.Event()
    run = threading.Thread(target=program["bill"], args=(case.spark, stop))
    run.start()
    try:
        # The record without an order has three attempts, with 3 s between them.
        wait_until(lambda: is_committed(node.address, "billing", "orders"), "all orders are done", timeout_secs=240)
    finally:
        stop.set()
        run.join()
    assert values(node.read("items")) == [
        '{"order":1,"item":"milk"}', '{"order":1,"item":"tea"}', '{"order":2,"item":"bread"}',
    ]  # fmt: skip
    with Acker.connect(url, AckerConfig(app="billing", lanes=4)) as acker:
        (letter,) = acker.dead_letters.read()
    assert letter.detail == "no order"
