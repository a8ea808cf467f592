"""DataFrames of messages: their ids, the rows of one emission, and the payloads of dead letters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from acker_redis.errors import PipelineError
from acker_redis.model.arrays import Int64Array
from acker_redis.model.ids import SLOTS
from acker_redis.model.roots import SLOT_BITS
from acker_redis.spark import checks, sql
from acker_redis.spark.emission.place_columns import is_of_kafka, partition_name, place_columns
from acker_redis.spark.protocol.message_json import FROM_JSON, TO_JSON
from acker_redis.spark.runtime import frames
from acker_redis.spark.runtime.jobs import described
from acker_redis.spark.sources.replaced_files import note_hashes, refuse_replaced
from acker_redis.spark.worker.keep_messages import KeepStep
from acker_redis.spark.worker.row_codec import Rows
from acker_redis.spout.in_flight import Emission, in_order
from acker_redis.spout.offset_file import OffsetFile
from acker_redis.store.payloads import Payloads

Fetch: TypeAlias = Callable[[list[int]], DataFrame]
"""Returns messages by id, with all their original columns. Messages it omits become dead letters with reason `lost`."""

MESSAGE_ID = "message_id"
"""Column added when message ids are derived from partition and offset."""

PAYLOAD = "_acker_payload"
_BEGIN, _PARTITION = "_acker_begin", "_acker_partition"


class Places(NamedTuple):
    """Positions of messages in their source.

    Attributes:
        names: names of the partitions.
        of_message: index into `names`, per message.
        offsets: offset in that partition, per message.
    """

    names: list[str]
    of_message: Int64Array
    offsets: Int64Array


@dataclass
class RunMessages:
    """Provide the rows of emissions and the payloads of dead letters.

    Attributes:
        frame: one row per message.
        column: name of the message id column.
        dead_letter_bytes: longest row that a dead letter keeps as JSON, in bytes.
        payload_store: store that keeps messages for replay; None: replays are fetched or read from `frame` again.
        keep_step: step that writes messages to `payload_store`.
        fetch: function that returns messages for replay.
        missing: messages that `fetch` did not return, one array per emission.
    """

    frame: DataFrame
    column: str
    dead_letter_bytes: int = 0
    payload_store: Payloads | None = None
    keep_step: KeepStep | None = None
    fetch: Fetch | None = None
    missing: SimpleQueue[Int64Array] = field(default_factory=SimpleQueue, init=False)
    _count: int = field(default=0, init=False)  # how many the frame has; -1: more than are to be done

    def read_ids(self, offsets: OffsetFile | None, partition: str, offset: str) -> Int64Array:
        """Read the ids of all messages, or, with an offset file, of those that are not completed yet.

        Raises:
            PipelineError: message ids, partitions or offsets are null, or ids are not distinct.
        """
        if offsets is None:
            ids = _read(self.frame, self.column)[0]
        else:
            ids, places = self.read_places(partition, offset)
            is_open = offsets.track(ids, *places)
            note_hashes(self.frame, place_columns(self.frame.schema, partition, offset)[1], offsets)
            if not is_open.all():  # an earlier run did them, beyond a gap
                self._count = -1
                return ids[is_open]
        self._count = len(ids)
        return ids

    def read_places(self, partition: str, offset: str) -> tuple[Int64Array, Places]:
        """Read the ids of all messages, and where they are.

        Raises:
            PipelineError: as `read_ids`.
        """
        ids, places = read_places(self.frame, self.column, partition, offset, are_distinct=True)
        self._count = len(ids)
        return ids, places

    def has_others(self) -> None:
        """Note that the source has messages that aren't to be done."""
        self._count = -1

    def read_ids_among(self, wanted: Int64Array) -> Int64Array:
        """Read which of these ids the messages have. The others aren't to be done.

        Raises:
            PipelineError: such an id is not distinct.
        """
        self._count = -1
        return _read(among(self.frame, self.column, wanted), self.column)[0]

    def all_messages(self) -> DataFrame:
        """Return the rows of all messages."""
        return self.frame

    def read_all_ids(self) -> Int64Array:
        """Read the ids of all messages, as `read_ids` does."""
        return self.read_ids(None, "", "")

    def messages_of(self, emission: Emission) -> tuple[DataFrame, Emission]:
        """Return the rows of an emission, and the emission without messages that are gone."""
        if emission.number == 0 and len(emission.message_ids) == self._count:
            return self.frame, emission
        ids, is_fresh = emission.message_ids, emission.attempts == 0
        parts = [among(self.frame, self.column, ids[is_fresh])] if is_fresh.any() or not len(ids) else []
        again = ids[~is_fresh]
        has, stored = self._stored_rows(again.tolist())
        if stored is not None:
            parts.append(stored)
        left = again[~has]
        if len(left) and self.fetch is None:
            parts.append(among(self.frame, self.column, left))
        elif len(left):
            fetched, missing = self._fetch_rows(left)
            parts.append(fetched)
            emission = emission.only(~np.isin(ids, missing))
        together = parts[0]
        for part in parts[1:]:
            together = together.unionByName(part)
        return together, emission

    def keep_messages(self, emission: Emission) -> None:
        """Store messages that are emitted for the first time. Runs a Spark job."""
        fresh = emission.message_ids[emission.attempts == 0]
        if self.keep_step is None or not len(fresh):
            return
        rows = self.frame if len(fresh) == self._count else among(self.frame, self.column, fresh)
        payload = F.struct(*(F.col(sql.quoted(name)) for name in self.frame.columns))
        to_keep = rows.select(id_of(self.column).alias("id"), payload.alias(PAYLOAD))
        with described(rows.sparkSession, f"messages of {self.keep_step.config.app}:{self.keep_step.run_id} to Redis"):
            to_keep.mapInArrow(self.keep_step, "rows bigint").collect()

    def payloads(self, ids: list[int]) -> list[bytes | None]:
        """Return rows as JSON for dead letters; None for rows longer than `dead_letter_bytes`."""
        by_id: dict[int, bytes | None] = {}
        has, rows = self._stored_rows(ids)
        not_stored = [message_id for message_id, is_stored in zip(ids, has, strict=True) if not is_stored]
        for part in ([] if rows is None else [rows]) + ([self._source_rows(not_stored)] if not_stored else []):
            table = part.select(id_of(self.column), as_json(self.dead_letter_bytes)).toArrow()
            by_id.update(zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True))
        return [by_id.get(message_id) for message_id in ids]

    def _stored_rows(self, ids: list[int]) -> tuple[npt.NDArray[np.bool_], DataFrame | None]:
        """Find which messages are kept in Redis, and their rows."""
        payloads = [None] * len(ids) if self.payload_store is None else self.payload_store.get(ids)
        has = np.array([payload is not None for payload in payloads], np.bool_)
        if not has.any():
            return has, None
        table = pa.table({PAYLOAD: pa.array([payload for payload in payloads if payload is not None], pa.binary())})
        rows = Rows(checks.arrow_schema(self.frame.schema))
        return has, self.frame.sparkSession.createDataFrame(table).mapInArrow(rows, self.frame.schema)

    def _fetch_rows(self, ids: Int64Array) -> tuple[DataFrame, Int64Array]:
        """Fetch messages. Return their rows, and the ids that `fetch` omitted."""
        rows = self._source_rows(ids.tolist())
        fetched_ids = rows.select(id_of(self.column)).toArrow().column(0)
        if fetched_ids.null_count or len(fetched_ids) != len(pc.unique(fetched_ids)):
            raise PipelineError("fetch returned null or repeated message ids. Return each requested message once.")
        missing = np.setdiff1d(ids, fetched_ids.to_numpy())
        if len(missing):
            self.missing.put(missing)
        return rows, missing

    def _source_rows(self, ids: list[int]) -> DataFrame:
        if self.fetch is None:
            return among(self.frame, self.column, np.array(ids, np.int64))
        fetched = self.fetch(ids)
        if not isinstance(fetched, DataFrame):
            raise PipelineError(
                f"fetch returned {fetched!r:.100}, not a DataFrame. Return the messages as a DataFrame."
            )
        missing = set(self.frame.columns) - set(fetched.columns)
        if missing:
            raise PipelineError(f"fetch returned messages without the columns {sorted(missing)}. Return all columns.")
        return fetched.select(*(_like(field) for field in self.frame.schema.fields))


def _like(field: StructField) -> Column:
    """Build a fetched column with the metadata of the source, by which unreadable records of `read_files` are known."""
    column = F.col(sql.quoted(field.name))
    return column.alias(field.name, metadata=field.metadata) if field.metadata else column


def among(frame: DataFrame, column: str, ids: Int64Array, more: Mapping[str, Int64Array] | None = None) -> DataFrame:
    """Select the messages with these ids. `more` adds columns with a value for each."""
    given = more or {}
    wanted = frame.sparkSession.createDataFrame(pa.table({column: ids, **given}))
    names = [*frame.columns, *given]
    return frame.join(F.broadcast(wanted), column).select(*(F.col(sql.quoted(name)) for name in names))


def id_of(column: str) -> Column:
    """Build the column of message ids as 64-bit integers."""
    return F.expr(_bigint(column))


def _bigint(column: str) -> str:
    return f"cast({sql.quoted(column)} AS bigint)"


def as_json(longest: int, columns: Sequence[str] | None = None) -> Column:
    """Build a column with the row, or `columns` of it, as JSON; null if longer than `longest` bytes."""
    row = F.struct("*") if columns is None else F.struct(*(F.col(sql.quoted(name)) for name in columns))
    text = F.encode(F.to_json(row, TO_JSON), "UTF-8")
    return F.when(F.length(text) <= longest, text)


def from_json(column: str, schema: StructType) -> Column:
    """Build a column with the row that `as_json` wrote; null if the text is not such a row."""
    return F.from_json(F.col(column).cast("string"), schema, FROM_JSON)


def read_ids(frame: DataFrame, column: str, *, are_few: bool = False) -> tuple[Int64Array, int]:
    """Read the ids of all messages, and count the rows without an id. Ids may repeat.

    Args:
        frame: one row per message.
        column: name of the message id column.
        are_few: whether a few thousand messages are expected, from a plan without exchanges and caches.
    """
    if are_few:
        read = frames.read_few_integers(frame, _bigint(column)).column(0)
    else:
        read = frames.read_rows(frames.select(frame, _bigint(column))).column(0)
    nulls = read.null_count
    return np.ascontiguousarray((read.drop_null() if nulls else read).to_numpy(), np.int64), nulls


def read_places(
    frame: DataFrame, column: str, partition: str, offset: str, *, are_distinct: bool = False
) -> tuple[Int64Array, Places]:
    """Read the id and the place of every message. `are_distinct` says that neither may repeat, or be unknown.

    Raises:
        PipelineError: a message id is null; or a place is null, or an id repeats, and they have to be distinct.
    """
    partition, offset = place_columns(frame.schema, partition, offset)
    name = partition_name(frame.schema, partition)
    ids, table = _read(frame, column, name, _bigint(offset), repeats=not are_distinct)
    nulls = table.column(0).null_count + table.column(1).null_count
    if nulls and are_distinct:
        raise PipelineError(
            f"{_counted(nulls)} a null in column {partition!r} or {offset!r}. Filter them out, or fill in the missing "
            "values."
        )
    encoded = pc.dictionary_encode(pc.fill_null(table.column(0).combine_chunks(), ""))
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    places = pc.fill_null(table.column(1), 0).to_numpy().astype(np.int64)
    return ids, Places(encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64), places)


def _counted(messages: int) -> str:
    return "1 message has" if messages == 1 else f"{messages} messages have"


def _read(frame: DataFrame, column: str, *places: str, repeats: bool = False) -> tuple[Int64Array, pa.Table]:
    """Read the ids of all messages, and further columns in SQL."""
    table = frames.read_rows(frames.select(frame, _bigint(column), *places))
    nulls = table.column(0).null_count
    if nulls:
        raise PipelineError(
            f"{_counted(nulls)} a null id in column {column!r}. Filter them out, or give each message its own id."
        )
    ids = np.ascontiguousarray(table.column(0).to_numpy(), np.int64)
    if not repeats:
        ordered = in_order(ids)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(twice):
            raise PipelineError(
                f"{len(twice)} rows repeat the id of another row in column {column!r} (for example {twice[0]}). "
                "Give each message its own id."
            )
    return ids, table.remove_column(0)


def with_message_id(frame: DataFrame, *, partition: str = "file", offset: str = "row") -> DataFrame:
    """Add the column `message_id`, derived from partition and offset.

    The ids are those that `MessageIds.offsets` makes. In rows of Kafka the topic is part of the partition.

        lines = with_message_id(read_files(spark, "logs"))
        lines.join(read_dead_letters(spark, acker), "message_id").select("file", "row", "detail").show()

    To run the messages of dead letters again, pass `only_dead_letters` to `run_tracked`.

    Args:
        frame: one row per message.
        partition: name of a string column.
        offset: name of an integer column that counts within a partition.

    Raises:
        PipelineError: a column is missing, or `message_id` exists already.
    """
    return with_message_ids(frame, None, partition, offset)[0]


def with_message_ids(
    frame: DataFrame, id_column: str | None, partition: str, offset: str, call: str = "run_tracked"
) -> tuple[DataFrame, str]:
    """Return the frame and the name of its message id column.

    If `id_column` is None, the column is added, derived from partition and offset.

    Raises:
        PipelineError: a column is missing, or has a type that Arrow can't carry.
    """
    checks.check_arrow_types(frame)
    if id_column is not None:
        return frame, checks.integer_column(frame, id_column, call)
    if MESSAGE_ID in frame.columns:
        raise PipelineError(
            f"The DataFrame already has a column {MESSAGE_ID!r}. Pass ids={MESSAGE_ID!r}, or rename it."
        )
    partition, offset = place_columns(frame.schema, partition, offset)
    if partition not in frame.columns or offset not in frame.columns:
        raise PipelineError(
            f"Columns {partition!r} and {offset!r} not found in {frame.columns}, so there are no message ids. Set ids= to "
            "the column that holds message ids, or to MessageIds.offsets(partition, offset)."
        )
    # The last five bits are the offset's, so that neighbours share a block of the ledger.
    place = F.col(sql.quoted(offset)).cast(LongType())
    names = ["topic", partition] if is_of_kafka(frame.schema, partition) else [partition]
    columns = [F.col(sql.quoted(name)) for name in names]
    hashed = F.xxhash64(*columns, F.shiftright(place, SLOT_BITS))  # without a place, that of none
    made = hashed.bitwiseAND(F.lit(-SLOTS).cast(LongType())).bitwiseOR(
        F.coalesce(place, F.lit(0)).bitwiseAND(SLOTS - 1)
    )
    return frame.withColumn(MESSAGE_ID, made), MESSAGE_ID


def not_done(frame: DataFrame, offsets: OffsetFile, partition: str, offset: str) -> DataFrame:
    """Drop rows before the completed offset of their partition.

    Raises:
        PipelineError: a column is missing.
        BadConfigError: a file of `read_files` was replaced under its name.
    """
    partition, offset = place_columns(frame.schema, partition, offset)
    missing = [column for column in (partition, offset) if column not in frame.columns]
    if missing:
        raise PipelineError(f"Columns {missing} not found. Name yours with MessageIds.offsets(partition, offset).")
    refuse_replaced(frame, partition, offset, offsets)
    known = offsets.known()
    if not known:
        return frame
    begins = frame.sparkSession.createDataFrame(
        pa.table({_PARTITION: list(known), _BEGIN: pa.array(known.values(), pa.int64())})
    )
    is_same = F.expr(partition_name(frame.schema, partition)) == F.col(_PARTITION)
    joined = frame.join(F.broadcast(begins), is_same, "left")
    own_offset = F.col(sql.quoted(offset))
    is_left = F.col(_BEGIN).isNull() | own_offset.isNull() | (own_offset >= F.col(_BEGIN))
    return joined.where(is_left).drop(_PARTITION, _BEGIN)
