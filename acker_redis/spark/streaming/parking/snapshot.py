"""Snapshots of the parked messages of a stream, and their Parquet files with one row per message."""

import io
import json
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from acker_redis.model.arrays import FloatArray
from acker_redis.spout.in_flight import Attempts
from acker_redis.spout.outage_table import EARLIER_START, OutageRows
from acker_redis.spout.state import Cause

VERSION = 4
"""Version of the parking location's format. Other versions are refused."""

_COLUMNS = pa.schema([
    ("id", pa.int64()), ("attempts", pa.int64()), ("exempted", pa.int32()), ("losses", pa.int16()),
    ("max_group", pa.int32()), ("first_secs", pa.uint32()), ("wait_ms", pa.int64()), ("since_ms", pa.int64()),
    ("reason", pa.string()), ("last_component", pa.string()), ("queued", pa.bool_()), ("row", pa.binary()),
])  # fmt: skip

_OUTAGE_COLUMNS = pa.schema([
    ("outage_operator", pa.string()), ("outage_since_secs", pa.float64()), ("outage_last_secs", pa.float64()),
    ("outage_failures", pa.int32()), ("outage_first_evidence", pa.bool_()), ("outage_proven", pa.bool_()),
])  # fmt: skip
"""Columns that are null for messages that don't wait for an outage. Files of earlier versions don't have them."""


class ParkedRow(NamedTuple):
    """The row of a parked message.

    Attributes:
        since_ms: time at which it was parked, by that machine's clock, in milliseconds; only for display.
        data: row as packed by `row_codec`.
    """

    since_ms: int
    data: bytes


@dataclass(frozen=True)
class Snapshot:
    """All parked messages, as `ParkedMessages` returns them.

    Attributes:
        attempts: next attempts of messages that were emitted.
        delays_secs: delay until each attempt is due, in seconds, from now or from loading, independent of any clock.
        causes: list that `attempts.cause_numbers` indexes.
        rows: row of each attempt.
        queued: messages that were not emitted because an earlier one with the same id was not done, in order.
        schema: schema of the rows.
        id_column: name of the message id column.
        stream: columns of the stream at that time, as JSON, which may differ from those of the rows; None: unknown.
        outages: messages that wait for the end of an outage.
        outage_operators: list that `outages.operators` indexes.
    """

    attempts: Attempts
    delays_secs: FloatArray
    causes: list[Cause]
    rows: list[ParkedRow]
    queued: list[tuple[int, ParkedRow]]
    schema: StructType
    id_column: str
    stream: str | None = None
    outages: OutageRows = field(default_factory=OutageRows)
    outage_operators: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        """Count the parked messages, with queued ones."""
        return len(self.attempts) + len(self.queued)

    @property
    def message_ids(self) -> list[int]:
        """Ids of all parked messages. The id of a queued message is repeated."""
        return [*self.attempts.message_ids.tolist(), *(message for message, _ in self.queued)]


def to_parquet(snapshot: Snapshot) -> bytes:
    """Convert a snapshot to the bytes of a Parquet file."""
    attempts, queued = snapshot.attempts, snapshot.queued
    causes = [snapshot.causes[number] for number in attempts.cause_numbers.tolist()]
    zeros = [0] * len(queued)
    stream = {} if snapshot.stream is None else {"acker_redis.stream": snapshot.stream}
    metadata = {"acker_redis.columns": snapshot.schema.json(), "acker_redis.id": snapshot.id_column, **stream}
    table = pa.table(
        [
            snapshot.message_ids,
            [*attempts.previous.tolist(), *zeros],
            [*attempts.exempted.tolist(), *zeros],
            [*attempts.losses.tolist(), *zeros],
            [*attempts.max_group.tolist(), *zeros],
            [*attempts.first_secs.tolist(), *zeros],
            [*(snapshot.delays_secs * 1000).astype(np.int64).tolist(), *zeros],
            [*(row.since_ms for row in snapshot.rows), *(row.since_ms for _, row in queued)],
            [*(reason for reason, _ in causes), *([""] * len(queued))],
            [*(component for _, component in causes), *([None] * len(queued))],
            [*([False] * len(attempts)), *([True] * len(queued))],
            [*(row.data for row in snapshot.rows), *(row.data for _, row in queued)],
            *_outage_columns(snapshot),
        ],
        schema=pa.schema([*_COLUMNS, *_OUTAGE_COLUMNS], metadata),
    )
    out = io.BytesIO()
    pq.write_table(table, out, write_page_checksum=True)
    return out.getvalue()


def from_parquet(data: bytes) -> Snapshot:
    """Read a snapshot from a file's bytes.

    Raises:
        OSError, ValueError, KeyError, TypeError: the file is damaged.
    """
    table = pq.read_table(io.BytesIO(data), page_checksum_verification=True)
    metadata = table.schema.metadata
    stream = metadata.get(b"acker_redis.stream")
    schema = StructType.fromJson(json.loads(metadata[b"acker_redis.columns"]))
    outages, outage_operators = _read_outages(table)
    table = table.select(_COLUMNS.names).cast(_COLUMNS)
    is_queued = table.column("queued")
    emitted, queued = table.filter(pc.invert(is_queued)), table.filter(is_queued)
    attempts = Attempts.first(emitted.column("id").to_numpy())
    pairs = list(zip(emitted.column("reason").to_pylist(), emitted.column("last_component").to_pylist(), strict=True))
    causes: list[Cause] = list(dict.fromkeys(pairs))
    numbers = {cause: number for number, cause in enumerate(causes)}
    return Snapshot(
        Attempts(
            message_ids=attempts.message_ids,
            previous=emitted.column("attempts").to_numpy(),
            exempted=emitted.column("exempted").to_numpy(),
            losses=emitted.column("losses").to_numpy(),
            overtaken=attempts.overtaken,
            exempt=attempts.exempt,
            non_retryable=attempts.non_retryable,
            max_group=emitted.column("max_group").to_numpy(),
            first_secs=emitted.column("first_secs").to_numpy(),
            cause_numbers=np.array([numbers[pair] for pair in pairs], np.int16),
            numbers=attempts.numbers.copy(),
        ),
        np.maximum(0.0, emitted.column("wait_ms").to_numpy() / 1000),
        causes,
        _rows(emitted),
        list(zip(queued.column("id").to_pylist(), _rows(queued), strict=True)),
        schema,
        metadata[b"acker_redis.id"].decode(),
        None if stream is None else stream.decode(),
        outages,
        outage_operators,
    )


def _outage_columns(snapshot: Snapshot) -> list[pa.Array]:
    """Return the columns of `_OUTAGE_COLUMNS`."""
    outages, ids = snapshot.outages, snapshot.attempts.message_ids
    rows = np.concatenate([outages.rows_of(ids), np.full(len(snapshot.queued), -1)])
    places = pa.array(np.maximum(rows, 0), mask=rows < 0)
    operators = [snapshot.outage_operators[number] for number in outages.operators.tolist()]
    columns = (
        operators, outages.since_secs, outages.last_secs, outages.failures, outages.is_first_evidence, outages.is_proven,
    )  # fmt: skip
    kinds = zip(columns, _OUTAGE_COLUMNS.types, strict=True)
    return [pa.array(column, kind).take(places) for column, kind in kinds]


def _read_outages(table: pa.Table) -> tuple[OutageRows, list[str]]:
    """Read the messages that wait for the end of an outage, and the operators that they wait for."""
    if "outage_operator" not in table.schema.names:
        return OutageRows(), []
    table = table.select(["id", *_OUTAGE_COLUMNS.names]).cast(pa.schema([_COLUMNS.field("id"), *_OUTAGE_COLUMNS]))
    waiting = table.filter(pc.is_valid(table.column("outage_operator"))).sort_by("id")
    names = waiting.column("outage_operator").to_pylist()
    operators = list(dict.fromkeys(names))
    return OutageRows(
        message_ids=waiting.column("id").to_numpy(),
        since_secs=waiting.column("outage_since_secs").to_numpy(),
        last_secs=waiting.column("outage_last_secs").to_numpy(),
        failures=waiting.column("outage_failures").to_numpy(),
        numbers=np.full(len(waiting), EARLIER_START),
        operators=np.array([operators.index(name) for name in names], np.int16),
        is_first_evidence=waiting.column("outage_first_evidence").to_numpy(),
        is_proven=waiting.column("outage_proven").to_numpy(),
    ), operators


def _rows(table: pa.Table) -> list[ParkedRow]:
    pairs = zip(table.column("since_ms").to_pylist(), table.column("row").to_pylist(), strict=True)
    return [ParkedRow(since_ms, data) for since_ms, data in pairs]
