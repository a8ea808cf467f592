"""The rows of a stream's messages that are not done: those of the micro-batch under way in its frame, parked ones as bytes."""

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from acker_redis.client.backoff import is_outage
from acker_redis.errors import AckerError, BadConfigError, PipelineError
from acker_redis.model.interrupts import interrupt_behind
from acker_redis.spark.emission.messages import PAYLOAD, Places, among, as_json, from_json, id_of, read_places
from acker_redis.spark.protocol import arguments
from acker_redis.spark.streaming.park_store import Row
from acker_redis.spark.streaming.schema_changes import Fit, fit
from acker_redis.spark.worker import row_codec
from acker_redis.spout.in_flight import Emission, Int64Array
from acker_redis.store.dead_letters import DeadLetter

log = logging.getLogger("acker_redis.spark")

_PLAIN = (BooleanType, IntegralType, StringType, BinaryType, DateType, TimestampType, TimestampNTZType, DecimalType)
"""Types whose Arrow arrays are taken as they are; others go through a Python worker, which makes them bit by bit."""


class ParkedRows:
    """Gives emissions their rows. Ids are distinct among those that are not done: a later message of an id waits behind.

    Attributes:
        column: of message ids.
        schema: of the rows, of which each column but the ids may be null; None: no row was seen yet.
        parked: rows by id.
    """

    def __init__(self, payload_bytes: int) -> None:
        """Nothing is parked, and there is no micro-batch."""
        self.column = ""
        self.schema: StructType | None = None
        self.parked: dict[int, Row] = {}
        self._payload_bytes = payload_bytes
        self._behind: dict[int, deque[Row | None]] = {}
        self._frame: DataFrame | None = None
        self._ids = np.array([], np.int64)
        self._has_others = False
        self._inexact: set[int] = set()  # whose payload, made just now, does not give their row
        self._session: SparkSession | None = None

    @property
    def waiting(self) -> int:
        """Messages that wait for an earlier one of the same id."""
        return sum(map(len, list(self._behind.values())))

    @property
    def behind(self) -> list[tuple[int, Row]]:
        """These messages, once their rows are parked."""
        return [(message, row) for message, rows in self._behind.items() for row in rows if row is not None]

    def resume(
        self,
        ids: Iterable[int],
        rows: Iterable[Row],
        behind: Iterable[tuple[int, Row]],
        schema: StructType,
        column: str,
    ) -> list[int]:
        """What an earlier process had parked; gives the messages that have nobody to wait for any more."""
        self.schema, self.column = schema, column
        self.parked = dict(zip(ids, rows, strict=True))
        fresh = []
        for message, row in behind:
            if message not in self.parked:
                self.parked[message] = row
                fresh.append(message)
            else:
                self._behind.setdefault(message, deque()).append(row)
        return fresh

    def places(self, partition: str, offset: str) -> tuple[Int64Array, Places] | None:
        """What is parked and where it is, as `read_places` says it; None where its rows have no such columns."""
        wanted = {name.lower() for name in (partition, offset, self.column)}
        if self.schema is None or not wanted <= {name.lower() for name in self.schema.names}:
            return None
        return read_places(self._frame_of([row.data for row in self.parked.values()]), self.column, partition, offset)

    def begin(self, frame: DataFrame, column: str, ids: Int64Array, left: Int64Array) -> Int64Array:
        """A micro-batch; gives the ids of the messages that may be emitted. `left` are those of before that are not done.

        Raises:
            BadConfigError: columns have other types than those of parked rows.
        """
        if self.parked:
            self._check_column(column)
        frame = _nullable(frame, column)
        if self.schema is not None and self.schema != frame.schema:
            is_case_sensitive = frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
            found = fit(self.schema, frame.schema, case_sensitive=is_case_sensitive)
            if found is not None:
                self._refit(found)
        self.schema, self.column, self._session = frame.schema, column, frame.sparkSession
        unique, counts = np.unique(ids, return_counts=True)
        repeated = unique[counts > 1]
        first = self._take_repeated(frame, repeated, set(left.tolist())) if len(repeated) else np.array([], np.int64)
        ids = ids[~np.isin(ids, repeated)]
        self._frame, self._ids, self._has_others = frame, ids, len(repeated) > 0
        again = np.isin(ids, left)
        for message in ids[again].tolist():
            self._behind.setdefault(message, deque()).append(None)
        return np.concatenate([ids[~again], first])

    def _take_repeated(self, frame: DataFrame, ids: Int64Array, left: set[int]) -> Int64Array:
        """Rows whose id stands more than once in the micro-batch: one goes first, the others wait behind it."""
        found = among(frame, self.column, ids)
        rows = self._packed(found.select("*", id_of(self.column).alias(PAYLOAD)), frame.columns)
        first = []
        for message, row in rows:
            if message in left or message in self.parked:
                self._behind.setdefault(message, deque()).append(row)
            else:
                self.parked[message] = row
                first.append(message)
        return np.array(first, np.int64)

    def end(self, left: Int64Array) -> None:
        """The micro-batch is over: park the rows of its messages that are not done, of which `left` is one at least."""
        if self._frame is None:
            return
        behind = [message for message, rows in self._behind.items() if rows[-1] is None]
        fresh = [one for one in np.intersect1d(left, self._ids).tolist() if one not in self.parked]
        rows = self._rows_of(self._frame, [*fresh, *behind])
        self.parked |= {message: rows[message] for message in fresh}
        for message in behind:
            self._behind[message][-1] = rows[message]
        self._frame, self._ids = None, np.array([], np.int64)

    def drop(self) -> None:
        """The micro-batch broke off."""
        self._frame, self._ids = None, np.array([], np.int64)

    def done(self, ids: Int64Array) -> list[int]:
        """Let go of messages; gives those that waited for them, which may be emitted now."""
        following = []
        for message in ids.tolist():
            self.parked.pop(message, None)
            waiting = self._behind.get(message)
            if waiting:
                row = waiting.popleft()
                if row is not None:  # else it is in the frame
                    self.parked[message] = row
                following.append(message)
                if not waiting:
                    del self._behind[message]
        return following

    def of(self, emission: Emission) -> tuple[DataFrame, Emission]:
        """See `emitting.Source`.

        Raises:
            PipelineError: the rows don't make a frame, which is no message's fault and ends the query.
        """
        try:
            return self._found(emission.message_ids), emission
        except Exception as exc:
            if isinstance(exc, AckerError) or is_outage(exc):
                raise
            raise PipelineError(
                f"the rows of {len(emission.message_ids)} messages, parked ones among them, make no DataFrame: {exc}. They "
                "stay parked, and none of them is to blame: start the program as it was, and drain() it first"
            ) from exc

    def keep_messages(self, emission: Emission) -> None:
        """See `emitting.Source`: nothing, as the driver has what it needs."""

    def payloads(self, ids: list[int]) -> list[bytes | None]:
        """Rows as JSON, for dead letters."""
        found = self._found(np.array(ids, np.int64)).select(id_of(self.column), as_json(self._payload_bytes)).toArrow()
        of = dict(zip(found.column(0).to_pylist(), found.column(1).to_pylist(), strict=True))
        texts = {message: text for message, text in of.items() if text is not None}
        self._inexact |= texts.keys() - self._exact(texts)
        return [of.get(one) for one in ids]

    def is_exact(self, letter: DeadLetter) -> bool:
        """Whether the payload of a letter, made just now, gives its row as it is."""
        exact = letter.message_id not in self._inexact
        self._inexact.discard(letter.message_id)
        return exact

    def _exact(self, texts: dict[int, bytes]) -> set[int]:
        """Messages whose texts give their rows, bit by bit."""
        if self.schema is None or not _is_read_from_json(self.schema):
            return set()
        try:
            of = {one: self.parked[one] for one in texts if one in self.parked}
            if self._frame is not None:
                of |= self._rows_of(self._frame, [one for one in texts if one not in of])
            back = self._from_letters(list(texts.values()))
        except Exception as exc:
            if (interrupt := interrupt_behind(exc)) is not None:
                raise interrupt from None
            log.info("dead letters can't be replayed from their payload: %s", exc)
            return set()
        return {one for one, row in back if one in of and row_codec.are_equal(row.data, of[one].data)}

    def _from_letters(self, payloads: Sequence[bytes | None]) -> list[tuple[int, Row]]:
        """The rows that payloads of letters give, each with its id."""
        if self._session is None or self.schema is None:
            raise AssertionError("no rows")
        table = pa.table({PAYLOAD: pa.array([payload or b"" for payload in payloads], pa.binary())})
        found = self._session.createDataFrame(table).select(from_json(PAYLOAD, self.schema).alias(PAYLOAD))
        with_ids = found.select(f"{PAYLOAD}.*").select("*", id_of(self.column).alias(PAYLOAD))
        return self._packed(with_ids.where(F.col(PAYLOAD).isNotNull()), self.schema.names)

    def take_letters(self, letters: list[DeadLetter]) -> list[int] | None:
        """See `replaying.TakeLetters`: the messages are in the letters, as JSON."""
        if self._session is None or self.schema is None:
            return None
        try:
            rows = self._from_letters([letter.payload for letter in letters])
        except Exception as exc:
            if (interrupt := interrupt_behind(exc)) is not None:
                raise interrupt from None
            log.exception("the messages of dead letters could not be read")
            return []
        wanted = {letter.message_id for letter in letters}
        taken = {message: row for message, row in rows if message in wanted}
        self.parked |= taken
        return list(taken)

    def use(self, session: SparkSession, column: str) -> None:
        """Make frames in a session, as long as there was no micro-batch.

        Raises:
            BadConfigError: the ids are in another column than those of what is parked.
        """
        if self.parked:
            self._check_column(column)
        if self._session is None:
            self._session = session

    def _found(self, ids: Int64Array) -> DataFrame:
        """Some rows; what is parked is that, whatever the frame has under the same id."""
        fresh = [one for one in ids.tolist() if one not in self.parked]
        kept = [self.parked[one].data for one in ids.tolist() if one in self.parked]
        if self._frame is None or not fresh:
            return self._frame_of(kept)
        rows = (
            self._frame
            if len(fresh) == len(self._ids) and not self._has_others
            else among(self._frame, self.column, np.array(fresh, np.int64))
        )
        return rows.unionByName(self._frame_of(kept)) if kept else rows

    def _frame_of(self, rows: list[bytes]) -> DataFrame:
        if self._session is None or self.schema is None:
            raise AssertionError("no rows")
        arrow = arguments.arrow_schema(self.schema)
        if all(isinstance(field.dataType, _PLAIN) for field in self.schema):
            return self._session.createDataFrame(
                pa.Table.from_batches([row_codec.from_bytes(rows, arrow)]), self.schema
            )
        table = pa.table({PAYLOAD: pa.array(rows, pa.binary())})
        return self._session.createDataFrame(table).mapInArrow(row_codec.Rows(arrow), self.schema)

    def _rows_of(self, frame: DataFrame, ids: list[int]) -> dict[int, Row]:
        """Rows of the frame, for the driver's memory."""
        if not ids:
            return {}
        found = among(frame, self.column, np.array(ids, np.int64))
        return dict(self._packed(found.select("*", id_of(self.column).alias(PAYLOAD)), frame.columns))

    def _packed(self, frame: DataFrame, names: list[str]) -> list[tuple[int, Row]]:
        """Rows, each with the id that stands in the last column."""
        found = frame.toArrow()
        now_ms = time.time_ns() // 1_000_000
        rows: list[tuple[int, Row]] = []
        for batch in found.to_batches():
            *columns, of = batch.columns
            packed = row_codec.to_bytes(pa.StructArray.from_arrays(columns, names=names), longest=1 << 31)
            rows += [(one, Row(now_ms, data or b"")) for one, data in zip(of.to_pylist(), packed, strict=True)]
        return rows

    def _check_column(self, column: str) -> None:
        if column.lower() != self.column.lower():
            raise BadConfigError(
                f"the ids of {len(self.parked)} parked messages are in column {self.column!r}, and those of the stream in "
                f"{column!r} now: start the program as it was, and drain() it first"
            )

    def _refit(self, fit: Fit) -> None:
        """Give parked rows the columns that the stream has now: new ones are null, others are left out."""

        def made(row: Row) -> Row:
            return Row(row.since_ms, row_codec.refit(row.data, fit))

        self.parked = {message: made(row) for message, row in self.parked.items()}
        self._behind = {
            message: deque(None if row is None else made(row) for row in rows) for message, rows in self._behind.items()
        }


def _is_read_from_json(kind: DataType) -> bool:
    """Whether Spark makes such values of JSON: of maps only those whose keys are texts."""
    if isinstance(kind, StructType):
        return all(_is_read_from_json(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return _is_read_from_json(kind.elementType)
    return not isinstance(kind, MapType) or (
        isinstance(kind.keyType, StringType) and _is_read_from_json(kind.valueType)
    )


def _nullable(frame: DataFrame, column: str) -> DataFrame:
    """The frame, whose columns may all be null but the ids: parked rows have no value for a column that comes later.

    Always, so that the pipeline gets the same columns whatever is parked.
    """
    if all(field.nullable for field in frame.schema if field.name != column):
        return frame
    return frame.select(
        *(
            F.col(name)
            if field.nullable or field.name == column
            else F.expr(f"if({name} IS NULL, NULL, {name})").alias(field.name, metadata=field.metadata)
            for field, name in ((field, arguments.quoted(field.name)) for field in frame.schema)
        )
    )
