"""The records that the sink of Kafka makes of a partition: their headers, and ids that several rows have. And when it
takes the reports of the brokers."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from acker_redis.errors import OutageError, RowFailedError, RowsRefusedError
from acker_redis.kafka.client import confluent
from acker_redis.spark.protocol.columns import ANCHORS
from acker_redis.spark.worker import kafka
from acker_redis.spark.worker.kafka import NO_TEXT, RECORD_ID, KafkaWrite, _Record
from acker_redis.spark.worker.kafka_producers import WorkerProducer

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def batches(ids: Sequence[bytes | None] | None, *, size: int, **columns: Any) -> Iterator[pa.RecordBatch]:
    """Rows with these ids, in batches of `size` rows."""
    given = {} if ids is None else {RECORD_ID: pa.array(ids, pa.binary())}
    table = pa.table({**columns, **given})
    return iter(table.to_batches(max_chunksize=size))


def records(write: KafkaWrite, rows: Iterator[pa.RecordBatch]) -> tuple[list[_Record], dict[int, str]]:
    """The records to send, and the reasons of the rows that are refused for good, by number."""
    refused: dict[int, Any] = {}
    sent = list(write._records(rows, refused))
    assert all(isinstance(reason, RowFailedError) and not reason.retry for reason in refused.values())
    return sent, {number: str(reason) for number, reason in refused.items()}


def test_rows_that_share_an_id_are_all_refused_also_across_batches() -> None:
    ids = [b'["1"]', b'["2"]', b'["2"]', b'["2"]', b'["3"]', b'["4"]', b'["4"]']
    write = KafkaWrite("write_kafka", "items", {}, has_ids=True)
    for size in (1, 2, 3, 7):
        sent, refused = records(write, batches(ids, size=size, value=[b"%d" % number for number in range(7)]))
        assert [(record.value, record.headers) for record in sent] == [
            (b"0", [("acker-id", b'["1"]')]),
            (b"4", [("acker-id", b'["3"]')]),
        ]
        assert refused == {
            1: '3 rows have the record_id ["2"]',
            2: '3 rows have the record_id ["2"]',
            3: '3 rows have the record_id ["2"]',
            5: '2 rows have the record_id ["4"]',
            6: '2 rows have the record_id ["4"]',
        }


def test_rows_without_an_id_are_refused_alone() -> None:
    write = KafkaWrite("write_kafka", "items", {}, has_ids=True)
    sent, refused = records(
        write, batches([None, None, b"", NO_TEXT, b'["1"]'], size=2, value=[b"a", b"b", b"c", b"d", b"e"])
    )
    assert [record.value for record in sent] == [b"e"]
    assert refused == {
        0: "a value of record_id is null",
        1: "a value of record_id is null",
        2: "the row comes from several messages, so it has no record_id",
        3: "a value of record_id is a string that is not UTF-8. Make its text with hex",
    }


def test_record_that_cannot_be_sent_has_its_own_reason_if_its_id_is_unique() -> None:
    write = KafkaWrite("write_kafka", None, {}, has_ids=True)
    topics = [None, "a", None, None]
    sent, refused = records(write, batches([b"1", b"2", b"3", b"3"], size=4, value=[b"x"] * 4, topic=topics))
    assert [record.topic for record in sent] == ["a"]
    assert refused[0] == "the record's topic is null or empty"
    assert refused.keys() == {0, 2, 3}
    assert "record_id" in refused[2]


def test_id_of_the_record_that_a_row_came_from_is_not_passed_on() -> None:
    old = [{"key": "acker-id", "value": b"old"}, {"key": "h", "value": b"1"}, {"key": "acker-id", "value": None}]
    columns = {"value": [b"a", b"b"], "headers": pa.array([old, None], HEADERS)}
    sent, _ = records(KafkaWrite("write_kafka", "items", {}), batches(None, size=2, **columns))
    assert [record.headers for record in sent] == [[("h", b"1")], None]
    write = KafkaWrite("export_kafka", "items", {}, has_ids=True)
    anchors = pa.array([b"edges", None], pa.binary())
    sent, _ = records(write, batches([b"1", b"2"], size=2, **columns, **{ANCHORS: anchors}))
    assert [record.headers for record in sent] == [
        [("h", b"1"), ("acker-id", b"1"), ("acker-anchors", b"edges")],
        [("acker-id", b"2")],
    ]


class Brokers:
    """A client whose brokers answer at once, but which tells it only while it is polled.

    Attributes:
        error: their answer; None: they acknowledge each record.
        polls: number of polls.
    """

    def __init__(self, error: object = None) -> None:
        self.error, self.polls = error, 0
        self.answers: list[Any] = []

    def produce(self, topic: str, value: bytes, key: bytes | None, *, on_delivery: Any) -> None:
        self.answers.append(on_delivery)

    def poll(self, timeout_secs: float) -> None:
        self.polls += 1
        self.flush(timeout_secs)

    def flush(self, timeout_secs: float) -> None:
        answers, self.answers = self.answers, []
        for answer in answers if self.error is not None else ():
            answer(self.error, None)

    def purge(self) -> None:
        """Nothing waits."""

    def __len__(self) -> int:
        return len(self.answers)


class FullQueue(Brokers):
    """A client whose queue has room for one record.

    Attributes:
        again: what a record raises that is sent again.
        sent: values of the records that it took.
    """

    def __init__(self, again: Exception | None = None) -> None:
        super().__init__()
        self.again, self.sent, self.is_full = again, list[bytes](), False

    def produce(self, topic: str, value: bytes, key: bytes | None, *, on_delivery: Any) -> None:
        if self.answers:
            self.is_full = True
            raise BufferError("Local: Queue full")
        if self.is_full and self.again is not None:
            raise self.again
        self.sent.append(value)
        super().produce(topic, value, key, on_delivery=on_delivery)


class Clock:
    """A clock that the test moves on."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def written(brokers: Brokers, clock: Clock, count: int, secs: float, monkeypatch: pytest.MonkeyPatch) -> int:
    """Write rows of which each takes the pipeline some time. Returns how many it made until the sink ended."""
    monkeypatch.setattr(kafka, "time", clock)
    taken = WorkerProducer.__new__(WorkerProducer)
    taken.client, taken.words, taken.has_failed = brokers, "", False
    monkeypatch.setattr(WorkerProducer, "take", lambda settings: taken)
    monkeypatch.setattr(WorkerProducer, "leave", lambda self, settings: None)
    left = [pa.RecordBatch.from_pylist([{"value": b"x"}]) for _ in range(count)]

    def rows() -> Iterator[pa.RecordBatch]:
        while left:
            clock.now += secs
            yield left.pop()

    with suppress(OutageError):
        KafkaWrite("write_kafka", "items", {})(rows(), 0)
    return count - len(left)


def test_outage_ends_a_task_of_a_slow_pipeline_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hundredth record may be made much later."""
    error = confluent().KafkaError(confluent().KafkaError._MSG_TIMED_OUT)
    assert written(Brokers(error), Clock(), 50, 2.0, monkeypatch) == 1
    assert written(Brokers(error), Clock(), 50, 0.3, monkeypatch) == 4


def test_reports_of_a_fast_pipeline_are_taken_by_the_hundred(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers()
    assert written(brokers, Clock(), 350, 0.0, monkeypatch) == 350
    assert brokers.polls == 3
    assert len(brokers) == 0


def test_records_wait_for_room_in_the_queue_and_each_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = FullQueue()
    assert written(brokers, Clock(), 3, 0.0, monkeypatch) == 3
    assert brokers.sent == [b"x"] * 3 and len(brokers) == 0


def test_a_record_that_is_refused_when_there_is_room_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    error = confluent().KafkaError(confluent().KafkaError.MSG_SIZE_TOO_LARGE)
    with pytest.raises(RowsRefusedError) as raised:
        written(FullQueue(confluent().KafkaException(error)), Clock(), 3, 0.0, monkeypatch)
    assert raised.value.rows.keys() == {1, 2}


def test_a_record_that_an_empty_queue_has_no_room_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers()
    monkeypatch.setattr(brokers, "produce", Mock(side_effect=BufferError("Local: Queue full")))
    with pytest.raises(RowsRefusedError) as raised:
        written(brokers, Clock(), 1, 0.0, monkeypatch)
    assert str(raised.value.rows[0]) == "the record is larger than the client's queue"
