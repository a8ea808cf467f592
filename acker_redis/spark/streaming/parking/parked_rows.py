"""DataFrames of messages that are not done, from the micro-batch's frame and from parked bytes."""

import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
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
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from acker_redis.errors import AckerError, BadConfigError, PipelineError
from acker_redis.model.arrays import Int64Array
from acker_redis.model.interrupts import interrupt_behind
from acker_redis.outages import is_outage
from acker_redis.spark import checks, sql
from acker_redis.spark.emission.messages import PAYLOAD, Places, among, as_json, from_json, id_of, read_places
from acker_redis.spark.emission.place_columns import place_columns
from acker_redis.spark.protocol.message_json import MISFIT
from acker_redis.spark.streaming.parking.parked_messages import ParkedMessages
from acker_redis.spark.streaming.parking.schema_changes import SchemaChange, is_case_sensitive
from acker_redis.spark.streaming.parking.snapshot import ParkedRow, Snapshot
from acker_redis.spark.worker import row_codec
from acker_redis.spout.dead_letter_replay import LoadedReplays
from acker_redis.spout.in_flight import Emission
from acker_redis.store.dead_letter import DeadLetter

log = logging.getLogger("acker_redis.spark")

_KEYS = "_acker_keys"
_MISFIT = StructField(MISFIT, StringType())

_PLAIN = (BooleanType, IntegralType, StringType, BinaryType, DateType, TimestampType, TimestampNTZType, DecimalType)
"""Types whose Arrow arrays Spark keeps unchanged. Rows with others go through a Python worker, which keeps every bit."""


class ParkedRows:
    """Provide the rows of emissions, and park rows that are not done when their micro-batch ends.

    Attributes:
        messages: parked messages.
        column: name of the message id column.
        schema: schema of the rows, in which every column except the ids is nullable; None: no row was seen yet.
        stream: columns of the stream, as JSON; None: unknown.
    """

    def __init__(
        self,
        messages: ParkedMessages,
        dead_letter_bytes: int,
        keep: Callable[[], object] = lambda: None,
        names: Mapping[str, str | None] | None = None,
    ) -> None:
        """Start without a micro-batch.

        Args:
            messages: parked messages.
            dead_letter_bytes: longest row that a dead letter keeps as JSON, in bytes.
            keep: function that is called before a part of the micro-batch is read, as many others may be.
            names: present names of columns of parked rows; see `TrackedBatches`.
        """
        self.messages = messages
        self.column = ""
        self.schema: StructType | None = None
        self.stream: str | None = None
        self._dead_letter_bytes, self._keep, self._names = dead_letter_bytes, keep, names or {}
        self._frame: DataFrame | None = None
        self._ids = np.array([], np.int64)
        self._has_others = False
        self._inexact: set[int] = set()  # whose new payload doesn't reproduce their row
        self._spark: SparkSession | None = None

    def restore(self, snapshot: Snapshot) -> list[int]:
        """Resume from a snapshot. Return the messages to emit for the first time."""
        self.schema, self.column = snapshot.schema, snapshot.id_column
        return self.messages.restore(snapshot)

    def snapshot(self) -> Snapshot | None:
        """Create a snapshot, between micro-batches or at the end of one; None: no row was seen yet."""
        return None if self.schema is None else self.messages.snapshot(self.schema, self.column, self.stream)

    def places(self, partition: str, offset: str) -> tuple[Int64Array, Places] | None:
        """Read the places of parked messages, as `read_places` does; None if their rows lack such columns."""
        if self.schema is None:
            return None
        wanted = {name.lower() for name in (*place_columns(self.schema, partition, offset), self.column)}
        if not wanted <= {name.lower() for name in self.schema.names}:
            return None
        return read_places(self._frame_of([row.data for row in self.messages.rows()]), self.column, partition, offset)

    def start_batch(self, frame: DataFrame, column: str, ids: Int64Array) -> Int64Array:
        """Start a micro-batch. Return the ids of the messages that may be emitted.

        Raises:
            BadConfigError: a column has another type than in parked rows, or one is missing of which they have values.
        """
        if len(self.messages):
            self._check_column(column)
        frame = _nullable(frame, column)
        if self.schema is not None and self.schema != frame.schema:
            change = SchemaChange(is_case_sensitive(frame.sparkSession), self._names)
            converter = change.converter(self.schema, frame.schema)
            if converter is not None:
                self.messages.refit(lambda data: row_codec.refit(data, converter), change.check_lost)
        self.schema, self.column, self._spark = frame.schema, column, frame.sparkSession
        left = self.messages.left_ids()
        unique, counts = np.unique(ids, return_counts=True)
        repeated = unique[counts > 1]
        first = self._take_repeated(frame, repeated, set(left.tolist())) if len(repeated) else np.array([], np.int64)
        ids = ids[~np.isin(ids, repeated)]
        self._frame, self._ids, self._has_others = frame, ids, len(repeated) > 0
        is_left = np.isin(ids, left)
        for message in ids[is_left].tolist():
            self.messages.queue(message, None)
        return np.concatenate([ids[~is_left], first])

    def _take_repeated(self, frame: DataFrame, ids: Int64Array, left: set[int]) -> Int64Array:
        """Park rows with repeated ids in the micro-batch: the first goes ahead, and the others queue behind it."""
        selected = among(frame, self.column, ids)
        rows = self._packed(selected.select("*", id_of(self.column).alias(PAYLOAD)), frame.columns)
        first: dict[int, ParkedRow] = {}
        for message, row in rows:
            if message in left or message in self.messages or message in first:
                self.messages.queue(message, row)
            else:
                first[message] = row
        self.messages.park(first)
        return np.array(list(first), np.int64)

    @property
    def has_to_read(self) -> bool:
        """Whether `finish_batch` may read rows, in a job."""
        return self._frame is not None and bool(self.messages.left or self.messages.queued_in_batch)

    def finish_batch(self) -> None:
        """Park the rows of the micro-batch whose messages are not done."""
        if self._frame is None:
            return
        messages, queued = self.messages, self.messages.queued_in_batch
        ids = np.intersect1d(messages.left_ids(), self._ids).tolist()
        left = [message for message in ids if message not in messages]
        rows = self._rows_of(self._frame, [*left, *queued])
        messages.park({message: rows[message] for message in left})
        messages.set_queued_rows({message: rows[message] for message in queued})
        self.discard_batch()

    def discard_batch(self) -> None:
        """Release the micro-batch."""
        self._frame, self._ids = None, np.array([], np.int64)

    def messages_of(self, emission: Emission) -> tuple[DataFrame, Emission]:
        """Return the rows of an emission, for `MessageSource`.

        Raises:
            PipelineError: the rows can't be converted to a DataFrame. No message is to blame, and the query ends.
        """
        try:
            return self._frame_with(emission.message_ids), emission
        except Exception as exc:
            if isinstance(exc, AckerError) or is_outage(exc):
                raise
            raise PipelineError(
                f"The rows of {len(emission.message_ids)} messages, some of them parked, could not be converted to a "
                "DataFrame. They stay parked, and no attempt counts. Start the previous version of the program and drain() "
                f"it first. Error: {exc}"
            ) from exc

    def keep_messages(self, emission: Emission) -> None:
        """Do nothing, for `MessageSource`: the driver has every row it needs."""

    def payloads(self, ids: list[int]) -> list[bytes | None]:
        """Return rows as JSON for dead letters."""
        table = (
            self._frame_with(np.array(ids, np.int64))
            .select(id_of(self.column), as_json(self._dead_letter_bytes))
            .toArrow()
        )
        by_id = dict(zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True))
        texts = {message: text for message, text in by_id.items() if text is not None}
        self._inexact |= texts.keys() - self._exact(texts)
        return [by_id.get(message) for message in ids]

    def is_exact(self, letter: DeadLetter) -> bool:
        """Return True if the new payload of a letter reproduces its row exactly."""
        exact = letter.message_id not in self._inexact
        self._inexact.discard(letter.message_id)
        return exact

    def _exact(self, texts: dict[int, bytes]) -> set[int]:
        """Find the messages whose JSON reproduces their rows exactly."""
        if self.schema is None or not _is_read_from_json(self.schema):
            return set()
        try:
            rows = {message: self.messages[message] for message in texts if message in self.messages}
            if self._frame is not None:
                rows |= self._rows_of(self._frame, [message for message in texts if message not in rows])
            back = self._from_letters(list(texts.values()))
        except Exception as exc:
            if (interrupt := interrupt_behind(exc)) is not None:
                raise interrupt from None
            log.info("dead letters are not replayable from their payload messages=%d error=%s", len(texts), exc)
            return set()
        return {
            message for message, row in back if message in rows and row_codec.are_equal(row.data, rows[message].data)
        }

    def _from_letters(
        self, payloads: Sequence[bytes | None], keys: Sequence[list[str | None]] = ()
    ) -> list[tuple[int, ParkedRow]]:
        """Read rows from the payloads of letters, each with its message id, except those with a value that doesn't fit.

        Args:
            payloads: rows as JSON.
            keys: keys from which the columns are read, by letter; see `SchemaChange.letter_keys`. Empty: their names.
        """
        if self._spark is None or self.schema is None:
            raise AssertionError("no rows")
        schema, table = self.schema, pa.table({PAYLOAD: pa.array([one or b"" for one in payloads], pa.binary())})
        others = [
            {key for key in found if key not in (None, name)} for name, *found in zip(schema.names, *keys, strict=True)
        ]
        if any(others):
            table = table.append_column(_KEYS, pa.array(keys, pa.list_(pa.string())))
            letters = self._spark.createDataFrame(table)
            columns = [_of_keys(at, schema[at], of_column) for at, of_column in enumerate(others)]
            read = letters.select(
                *(column.getField(name).alias(name) for name, column in zip(schema.names, columns, strict=True)),
                F.coalesce(*(column.getField(MISFIT) for column in columns)).alias(MISFIT),
            )
        else:
            with_misfit = StructType([*schema, _MISFIT])
            structs = self._spark.createDataFrame(table).select(from_json(PAYLOAD, with_misfit).alias(PAYLOAD))
            read = structs.select(f"{PAYLOAD}.*")
        rows = read.where(F.col(MISFIT).isNull()).drop(MISFIT)
        with_ids = rows.select("*", id_of(self.column).alias(PAYLOAD))
        return self._packed(with_ids.where(F.col(PAYLOAD).isNotNull()), schema.names)

    def load_replays(self, letters: list[DeadLetter]) -> LoadedReplays | None:
        """Load replays for `dead_letter_replay.ReplayLoader`, from the letters' JSON. Log why others are refused."""
        if self._spark is None or self.schema is None:
            return None
        try:
            keys = self._keys_of(letters, SchemaChange(is_case_sensitive(self._spark), self._names), self.schema)
            letters = [letter for letter in letters if letter.message_id in keys]
            rows = self._from_letters([letter.payload for letter in letters], list(keys.values())) if keys else []
        except Exception as exc:
            if (interrupt := interrupt_behind(exc)) is not None:
                raise interrupt from None
            log.exception("could not read the messages of dead letters to replay letters=%d", len(letters))
            return LoadedReplays([])
        wanted = {letter.message_id for letter in letters}
        loaded = {message: row for message, row in rows if message in wanted}
        if misfits := [letter.entry_id for letter in letters if letter.message_id not in loaded]:
            log.warning(
                "dead letters not replayed, a value doesn't fit its column count=%d entry_ids=%s", len(misfits),
                ",".join(misfits[:10]),
            )  # fmt: skip
        self.messages.park_replayed(loaded)
        return LoadedReplays(list(loaded))

    def _keys_of(
        self, letters: list[DeadLetter], change: SchemaChange, schema: StructType
    ) -> dict[int, list[str | None]]:
        """Find the keys of the columns in each letter's JSON, in the letters' order; none if the letter would lose a value."""
        keys: dict[int, list[str | None]] = {}
        refused: defaultdict[str, list[str]] = defaultdict(list)
        for letter in letters:
            try:
                keys[letter.message_id] = change.letter_keys(_object_in(letter.payload), schema)
            except BadConfigError as exc:
                refused[str(exc)].append(letter.entry_id)
        for problem, entry_ids in refused.items():
            log.warning(
                "dead letters not replayed, they stay count=%d entry_ids=%s problem=%s", len(entry_ids),
                ",".join(entry_ids[:10]), problem,
            )  # fmt: skip
        return keys

    def use_session(self, spark: SparkSession, column: str) -> None:
        """Set the session for frames until the first micro-batch.

        Raises:
            BadConfigError: parked messages have their ids in another column.
        """
        if len(self.messages):
            self._check_column(column)
        if self._spark is None:
            self._spark = spark

    def _frame_with(self, ids: Int64Array) -> DataFrame:
        """Build a frame of some rows. A parked row takes precedence over the micro-batch's row with the same id."""
        messages = self.messages
        fresh = [message for message in ids.tolist() if message not in messages]
        kept = [messages[message].data for message in ids.tolist() if message in messages]
        if self._frame is None or not fresh:
            return self._frame_of(kept)
        rows = self._frame
        if len(fresh) < len(self._ids) or self._has_others:
            self._keep()
            rows = among(self._frame, self.column, np.array(fresh, np.int64))
        return rows.unionByName(self._frame_of(kept)) if kept else rows

    def _frame_of(self, rows: list[bytes]) -> DataFrame:
        if self._spark is None or self.schema is None:
            raise AssertionError("no rows")
        arrow = checks.arrow_schema(self.schema)
        if all(isinstance(field.dataType, _PLAIN) for field in self.schema):
            return self._spark.createDataFrame(pa.Table.from_batches([row_codec.from_bytes(rows, arrow)]), self.schema)
        table = pa.table({PAYLOAD: pa.array(rows, pa.binary())})
        return self._spark.createDataFrame(table).mapInArrow(row_codec.Rows(arrow), self.schema)

    def _rows_of(self, frame: DataFrame, ids: list[int]) -> dict[int, ParkedRow]:
        """Read rows of the frame into the driver's memory."""
        if not ids:
            return {}
        selected = among(frame, self.column, np.array(ids, np.int64))
        return dict(self._packed(selected.select("*", id_of(self.column).alias(PAYLOAD)), frame.columns))

    def _packed(self, frame: DataFrame, names: list[str]) -> list[tuple[int, ParkedRow]]:
        """Read rows, each with its message id, which is the last column."""
        table = frame.toArrow()
        now_ms = time.time_ns() // 1_000_000
        rows: list[tuple[int, ParkedRow]] = []
        for batch in table.to_batches():
            *columns, ids = batch.columns
            packed = row_codec.to_bytes(pa.StructArray.from_arrays(columns, names=names), longest=1 << 31)
            rows += [
                (message, ParkedRow(now_ms, data or b"")) for message, data in zip(ids.to_pylist(), packed, strict=True)
            ]
        return rows

    def _check_column(self, column: str) -> None:
        if column.lower() != self.column.lower():
            raise BadConfigError(
                f"{len(self.messages)} parked messages have their ids in column {self.column!r}, but the stream now has them "
                f"in {column!r}. Start the previous version of the program and drain() it first."
            )


def _object_in(payload: bytes | None) -> dict[str, object]:
    """Read the JSON object of a dead letter.

    Raises:
        BadConfigError: there is none.
    """
    try:
        read = json.loads(payload or b"")
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise BadConfigError("The payload is no JSON object, so it wasn't written by a stream.")
    return read


def _of_keys(at: int, column: StructField, others: set[str | None]) -> Column:
    """Build a struct of a column's value and `MISFIT`, from JSON whose letter names the key: the column's own, or another."""
    key, own = F.element_at(_KEYS, at + 1), StructType([StructField(column.name, column.dataType), _MISFIT])
    values = [
        F.when(key == one, from_json(PAYLOAD, StructType([StructField(one, column.dataType), _MISFIT])).cast(own))
        for one in {column.name, *others}
        if one is not None
    ]
    return F.coalesce(*values)


def _is_read_from_json(kind: DataType) -> bool:
    """Return True if Spark can read such values from JSON. Maps need string keys."""
    if isinstance(kind, StructType):
        return all(_is_read_from_json(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return _is_read_from_json(kind.elementType)
    return not isinstance(kind, MapType) or (
        isinstance(kind.keyType, StringType) and _is_read_from_json(kind.valueType)
    )


def _nullable(frame: DataFrame, column: str) -> DataFrame:
    """Make all columns except the ids nullable: parked rows have no value for a column that is added later.

    This is always done, so that the pipeline gets the same columns no matter what is parked.
    """
    if all(field.nullable for field in frame.schema if field.name != column):
        return frame
    return frame.select(
        *(
            F.col(name)
            if field.nullable or field.name == column
            else F.expr(f"if({name} IS NULL, NULL, {name})").alias(field.name, metadata=field.metadata)
            for field, name in ((field, sql.quoted(field.name)) for field in frame.schema)
        )
    )
