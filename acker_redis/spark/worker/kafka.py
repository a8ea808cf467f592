"""Produce the records of a partition to Kafka, with a delivery report for each.

The client itself takes the reports of success (`delivery.report.only.error`). It calls Python for the others.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, NamedTuple, Self, TypeAlias

import pyarrow as pa

from acker_redis.errors import OutageError, RowFailedError, RowsRefusedError
from acker_redis.kafka.client import confluent, without_secrets
from acker_redis.model.anchors import HEADER as ANCHORS_HEADER
from acker_redis.spark.protocol.columns import ANCHORS
from acker_redis.spark.worker.kafka_producers import WorkerProducer

KEY, VALUE, HEADERS, TIMESTAMP, TOPIC, PARTITION = "key", "value", "headers", "timestamp", "topic", "partition"
"""Columns of a record. The driver converts them to the types that the client takes."""

RECORD_ID = "_acker_record_id"
"""Column with the value of the header `acker-id`. Empty: the row comes from several messages. Null: so is a value of it."""

NO_TEXT = b"\0"
"""What that column has instead of an id if a value is a string that isn't UTF-8."""

_RECORD_ID_HEADER = "acker-id"

_REFUSED = {
    "INVALID_MSG_SIZE",
    "INVALID_RECORD",
    "INVALID_TIMESTAMP",
    "MSG_SIZE_TOO_LARGE",
    "RECORD_LIST_TOO_LARGE",
    "_INVALID_DIFFERENT_RECORD",
}
"""Errors for a record's own sake. A broker refuses the whole batch that the client put the record into."""

_NO_TOPIC = {"TOPIC_EXCEPTION", "UNKNOWN_TOPIC_OR_PART", "_INVALID_ARG", "_UNKNOWN_TOPIC"}
_NO_PARTITION = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION"}
"""Errors of an address. They are about the record if its own columns have the address."""

_POLL_EVERY = 100
"""Number of records after which reports are taken."""

_REPORT_SECS = 1.0
"""Time after which they are taken with the next record, because a slow pipeline sends few."""

_POLL_SECS = 0.1
_TOO_LARGE = "the record is larger than the client's queue"

_Refused: TypeAlias = dict[int, str | RowFailedError]
"""Number of a row in the partition -> why its record was refused."""


class _Record(NamedTuple):
    """A record, and the number of its row in the partition."""

    number: int
    topic: str | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str | None, bytes | None]] | None
    timestamp: int | None
    partition: int | None
    record_id: bytes | None


@dataclass(frozen=True)
class KafkaWrite:
    """Function of a sink that returns once the broker has acknowledged every record of a partition.

    Attributes:
        component: name of the sink.
        topic: name of the topic; None: each record names its own.
        settings: the producer's settings.
        has_ids: whether rows have an id (`RECORD_ID`). They come in the order of their ids then, and all rows of an id are in
            one partition.
    """

    component: str
    topic: str | None
    settings: dict[str, Any] = field(repr=False)  # may hold a password
    has_ids: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch], partition: int) -> None:  # noqa: ARG002
        """Run on one partition.

        Raises:
            OutageError: Kafka did not acknowledge a record, and not because of the record.
            RowsRefusedError: the other records were acknowledged, and these were refused.
        """
        refused: _Refused = {}
        suspects: deque[_Record] = deque()
        with _Sender(self, self.settings, refused, suspects.append) as together:
            together.send(self._records(batches, refused))
            together.finish()
        if suspects:  # those that shared a batch with a refused record are not refused, so send each one by itself
            with _Sender(self, {**self.settings, "batch.num.messages": 1}, refused) as alone:
                alone.send(suspects)
                alone.finish()
        if refused:
            raise RowsRefusedError(refused)

    def _records(self, batches: Iterator[pa.RecordBatch], refused: _Refused) -> Iterator[_Record]:
        """Yield the records that can be sent."""
        records = chain.from_iterable(self._read(batches))
        for record in _unique(records, refused) if self.has_ids else records:
            if (reason := _why_not(record)) is None:
                yield record
            else:
                refused[record.number] = RowFailedError(reason, retry=False)

    def _read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Iterator[_Record]]:
        """Yield the records of each batch."""
        begin = 0
        for batch in batches:
            columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
            nothing = [None] * batch.num_rows
            record_ids = columns.get(RECORD_ID, nothing)
            headers = columns.get(HEADERS, nothing)
            if not columns.keys().isdisjoint((HEADERS, ANCHORS, RECORD_ID)):
                own: dict[str, list[Any]] = {_RECORD_ID_HEADER: record_ids}
                if ANCHORS in columns:
                    own[ANCHORS_HEADER] = columns[ANCHORS]
                rows = zip(headers, zip(*own.values(), strict=True), strict=True)
                headers = [_headers(pairs, dict(zip(own, values, strict=True))) for pairs, values in rows]
            end = begin + batch.num_rows
            topics = columns.get(TOPIC, nothing) if self.topic is None else [self.topic] * batch.num_rows
            keys, times, partitions = (columns.get(name, nothing) for name in (KEY, TIMESTAMP, PARTITION))
            fields = (range(begin, end), topics, keys, columns[VALUE], headers, times, partitions, record_ids)
            yield map(_Record._make, zip(*fields, strict=True))
            begin = end


def _headers(
    headers: list[dict[str, Any] | None] | None, own: dict[str, bytes | None]
) -> list[tuple[str | None, bytes | None]] | None:
    """Return the headers of a record.

    Args:
        headers: those of the row. It may have copied some from the record that it came from.
        own: header of the sink -> its value, which replaces the row's. None: the record has no such header.
    """
    added: list[tuple[str | None, bytes | None]] = [(name, value) for name, value in own.items() if value is not None]
    if headers is None:
        return added or None
    pairs = ((header["key"], header["value"]) if header else (None, None) for header in headers)
    return [pair for pair in pairs if pair[0] not in own] + added


def _unique(records: Iterator[_Record], refused: _Refused) -> Iterator[_Record]:
    """Yield the records that alone have their id. They come in the order of their ids."""
    for record_id, same in groupby(records, key=attrgetter("record_id")):
        first = next(same)
        others = [record.number for record in same]  # noqa: B031  # the rest
        if record_id and record_id != NO_TEXT and not others:
            yield first
            continue
        if record_id is None:
            reason = "a value of record_id is null"
        elif not record_id:
            reason = "the row comes from several messages, so it has no record_id"
        elif record_id == NO_TEXT:
            reason = "a value of record_id is a string that is not UTF-8. Make its text with hex"
        else:
            reason = f"{len(others) + 1} rows have the record_id {record_id.decode()}"
        refused.update({number: RowFailedError(reason, retry=False) for number in (first.number, *others)})


def _why_not(record: _Record) -> str | None:
    """Return why a record can't be sent, which the client would not say."""
    if not record.topic:
        return "the record's topic is null or empty"
    if record.partition is not None and record.partition < 0:
        return f"the record's partition is {record.partition}"
    if record.timestamp is not None and record.timestamp <= 0:
        return "the record's timestamp is not after 1970-01-01 00:00 UTC"
    if record.headers is not None and any(name is None for name, _ in record.headers):
        return "a header of the record has no key"
    return None


def _more(record: _Record) -> dict[str, Any]:
    """Return the arguments that most records don't have."""
    given = {"headers": record.headers, "timestamp": record.timestamp, "partition": record.partition}
    return {name: value for name, value in given.items() if value is not None}


class _Sender:
    """A producer, and the reports of its records."""

    def __init__(
        self,
        sink: KafkaWrite,
        settings: dict[str, Any],
        refused: _Refused,
        doubt: Callable[[_Record], object] | None = None,
    ) -> None:
        """Take a producer.

        Args:
            sink: the sink.
            settings: settings of the producer.
            refused: gets the refused records.
            doubt: called with each record of a batch of which the broker refuses some; None: each record is a batch.
        """
        self._sink, self._settings, self._refused, self._doubt = sink, settings, refused, doubt
        self._kafka = confluent()
        self._broken: str | None = None
        self._taken = WorkerProducer.take(settings)
        self._producer = self._taken.client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Drop the records that wait if the task fails. Otherwise leave the producer to the next task."""
        if kind is None:
            self._taken.leave(self._settings)
        else:
            self._producer.purge()
            self._producer.flush(1)

    def send(self, records: Iterable[_Record]) -> None:
        """Send records.

        Raises:
            OutageError: an earlier record was not acknowledged.
        """
        produce, failed, monotonic = self._producer.produce, self._failed, time.monotonic
        polled_at = monotonic()
        for count, record in enumerate(records, 1):
            try:
                if record.headers is None and record.timestamp is None and record.partition is None:
                    produce(record.topic, record.value, record.key, on_delivery=partial(failed, record))
                else:
                    produce(
                        record.topic, record.value, record.key, on_delivery=partial(failed, record), **_more(record)
                    )
            except (BufferError, self._kafka.KafkaException) as exc:
                self._send_again(record, exc)
            if count % _POLL_EVERY == 0 or monotonic() - polled_at > _REPORT_SECS:
                polled_at = monotonic()
                self._producer.poll(0)
                self._check()

    def _send_again(self, record: _Record, error: Exception) -> None:
        """Send a record that the client didn't take, if only its queue was full."""
        while isinstance(error, BufferError):
            if not len(self._producer):
                self._refused[record.number] = RowFailedError(_TOO_LARGE, retry=False)
                return
            self._producer.poll(_POLL_SECS)
            self._check()
            try:
                self._producer.produce(
                    record.topic, record.value, record.key, on_delivery=partial(self._failed, record), **_more(record)
                )
            except (BufferError, self._kafka.KafkaException) as exc:
                error = exc
            else:
                return
        refusal = error.args[0]
        self._taken.has_failed |= refusal.name() not in _REFUSED  # what it knows of topics may be old
        self._judge(record, refusal, None)

    def finish(self) -> None:
        """Wait for all reports. Each comes before its delivery timeout is over.

        The client counts a record until its report was taken, so at 0 each record has had one.

        Raises:
            OutageError: a record was not acknowledged.
        """
        while len(self._producer):
            self._producer.flush(_POLL_SECS)
            self._check()
        self._check()

    def _failed(self, record: _Record, error: Any, _message: object) -> None:
        """Take the report of a record that was not acknowledged."""
        self._taken.has_failed = True
        self._judge(record, error, self._doubt)

    def _judge(self, record: _Record, error: Any, doubt: Callable[[_Record], object] | None) -> None:
        name, words = error.name(), error.str()
        if name in _REFUSED and doubt is not None:
            doubt(record)
        elif name in _REFUSED:
            self._refused[record.number] = RowFailedError(words, retry=False)
        elif self._is_addressed(record, name):
            self._refused[record.number] = words
        elif self._broken is None:
            said = self._taken.words  # a report says only that the time is over
            self._broken = f"topic {record.topic!r}: {words}" + (f" ({said})" if said else "")

    def _is_addressed(self, record: _Record, name: str) -> bool:
        """Return True if an error is about an address that the record's own columns have."""
        if self._sink.topic is None and name in _NO_TOPIC:
            return True
        return record.partition is not None and name in _NO_PARTITION

    def _check(self) -> None:
        if self._broken is not None:
            raise OutageError(
                f"sink {self._sink.component!r}: Kafka did not acknowledge a record of "
                f"{without_secrets(self._broken, self._sink.settings)}. No message is to blame. Repair the broker, the topic "
                "or the permissions; the pipeline waits for that."
            )
