"""The messages of a run as a DataFrame: their ids, those of one emission, and those to be kept with a dead letter."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType

from acker_redis.errors import PipelineError
from acker_redis.model.arrays import Int64Array
from acker_redis.model.ids import SLOTS
from acker_redis.model.roots import SLOT_BITS
from acker_redis.spark.protocol import arguments
from acker_redis.spark.protocol.message_json import FROM_JSON, TO_JSON
from acker_redis.spark.runtime.jobs import described
from acker_redis.spark.worker.keep_messages import KeepStep
from acker_redis.spark.worker.row_codec import Rows
from acker_redis.spout.in_flight import Emission, in_order
from acker_redis.spout.offset_file import OffsetFile
from acker_redis.store.payloads import Payloads

Fetch: TypeAlias = Callable[[list[int]], DataFrame]
"""Gives messages by their ids, with all the columns they had; those it leaves out become dead letters, as `lost`."""

MESSAGE_ID = "message_id"
"""Column that is added where message ids are made of partition and offset."""

PAYLOAD = "_acker_payload"
_BEGIN = "_acker_begin"


class Places(NamedTuple):
    """Where messages are in their source.

    Attributes:
        names: of partitions.
        of_message: for each message the number of its partition.
        offsets: for each message its offset there.
    """

    names: list[str]
    of_message: Int64Array
    offsets: Int64Array


@dataclass
class RunMessages:
    """Give the emissions of a run their rows, and dead letters their payloads.

    Attributes:
        frame: one row per message.
        column: of message ids.
        dead_letter_bytes: rows not longer than this are kept as JSON with dead letters.
        payload_store: where messages are kept for replay; None: replays are fetched, or read from `frame` again.
        keep_step: puts them there.
        fetch: gives messages for replays.
        missing: messages that `fetch` did not give, an array per emission.
        failed_payloads: payloads that came with the failures of failed messages, by id.
    """

    frame: DataFrame
    column: str
    dead_letter_bytes: int = 0
    payload_store: Payloads | None = None
    keep_step: KeepStep | None = None
    fetch: Fetch | None = None
    missing: SimpleQueue[Int64Array] = field(default_factory=SimpleQueue, init=False)
    failed_payloads: dict[int, bytes] = field(default_factory=dict, init=False)
    _count: int = field(default=0, init=False)  # how many the frame has; -1: more than are to be done

    def read_ids(self, offsets: OffsetFile | None, partition: str, offset: str) -> Int64Array:
        """Read the ids of all messages; with offsets, which track them, of those that are to be done.

        Raises:
            PipelineError: ids stand more than once, or are null.
        """
        if offsets is None:
            ids = _read(self.frame, self.column)[0]
        else:
            place = F.col(arguments.quoted(partition)), F.col(arguments.quoted(offset)).cast(LongType())
            ids, places = _read(self.frame, self.column, *place)
            nulls = places.column(0).null_count + places.column(1).null_count
            if nulls:
                raise PipelineError(
                    f"{nulls} messages have no {partition!r} or {offset!r}: leave them out, or give them one"
                )
            names = places.column(0).combine_chunks().dictionary_encode()
            names = names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names
            rows = names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
            is_open = offsets.track(ids, names.dictionary.to_pylist(), rows, places.column(1).to_numpy())
            if not is_open.all():  # an earlier run did them, beyond a gap
                self._count = -1
                return ids[is_open]
        self._count = len(ids)
        return ids

    def messages_of(self, emission: Emission) -> tuple[DataFrame, Emission]:
        """Give the rows of an emission; and the emission, without messages that are gone."""
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
        """Keep the messages that are emitted for the first time. Runs a job."""
        fresh = emission.message_ids[emission.attempts == 0]
        if self.keep_step is None or not len(fresh):
            return
        rows = self.frame if len(fresh) == self._count else among(self.frame, self.column, fresh)
        payload = F.struct(*(F.col(arguments.quoted(name)) for name in self.frame.columns))
        to_keep = rows.select(id_of(self.column).alias("id"), payload.alias(PAYLOAD))
        with described(rows.sparkSession, f"messages of {self.keep_step.config.app}:{self.keep_step.run_id} to Redis"):
            to_keep.mapInArrow(self.keep_step, "rows bigint").collect()

    def payloads(self, ids: list[int]) -> list[bytes | None]:
        """Make JSON of the rows that are not longer than dead_letter_bytes."""
        by_id: dict[int, bytes | None] = {
            message_id: self.failed_payloads.pop(message_id) for message_id in ids if message_id in self.failed_payloads
        }
        others = [message_id for message_id in ids if message_id not in by_id]
        has, rows = self._stored_rows(others)
        not_stored = [message_id for message_id, is_stored in zip(others, has, strict=True) if not is_stored]
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
        rows = Rows(arguments.arrow_schema(self.frame.schema))
        return has, self.frame.sparkSession.createDataFrame(table).mapInArrow(rows, self.frame.schema)

    def _fetch_rows(self, ids: Int64Array) -> tuple[DataFrame, Int64Array]:
        """Fetch messages; give their rows, and the ids of those that `fetch` left out."""
        rows = self._source_rows(ids.tolist())
        fetched_ids = rows.select(id_of(self.column)).toArrow().column(0)
        if fetched_ids.null_count or len(fetched_ids) != len(pc.unique(fetched_ids)):
            raise PipelineError("fetch gave messages twice, or without id: give each of those asked for once")
        missing = np.setdiff1d(ids, fetched_ids.to_numpy())
        if len(missing):
            self.missing.put(missing)
        return rows, missing

    def _source_rows(self, ids: list[int]) -> DataFrame:
        if self.fetch is None:
            return among(self.frame, self.column, np.array(ids, np.int64))
        fetched = self.fetch(ids)
        if not isinstance(fetched, DataFrame):
            raise PipelineError(f"fetch gave {fetched!r:.100}, from which nothing can be replayed: give a DataFrame")
        missing = set(self.frame.columns) - set(fetched.columns)
        if missing:
            raise PipelineError(f"fetch gave messages without {sorted(missing)}: give all columns of the messages")
        return fetched.select(*(F.col(arguments.quoted(name)) for name in self.frame.columns))


def among(frame: DataFrame, column: str, ids: Int64Array) -> DataFrame:
    """Give the messages with these ids."""
    wanted = frame.sparkSession.createDataFrame(pa.table({column: ids}))
    return frame.join(F.broadcast(wanted), column).select(*(F.col(arguments.quoted(c)) for c in frame.columns))


def id_of(column: str) -> Column:
    """Give message ids as 64-bit integers."""
    # In SQL: each method of a column is half a dozen calls of Java.
    return F.expr(f"cast({arguments.quoted(column)} AS bigint)")


def as_json(longest: int, columns: Sequence[str] | None = None) -> Column:
    """Make JSON of a row, or of these columns of it; null if it is longer than so many bytes."""
    row = F.struct("*") if columns is None else F.struct(*(F.col(arguments.quoted(name)) for name in columns))
    text = F.encode(F.to_json(row, TO_JSON), "UTF-8")
    return F.when(F.length(text) <= longest, text)


def from_json(column: str, schema: StructType) -> Column:
    """Read the row that `as_json` made a text of; null where it is none."""
    return F.from_json(F.col(column).cast("string"), schema, FROM_JSON)


def read_ids(frame: DataFrame, column: str) -> Int64Array:
    """Read the ids of all messages, with repeats.

    Raises:
        PipelineError: ids are null.
    """
    return _read(frame, column, repeats=True)[0]


def read_places(frame: DataFrame, column: str, partition: str, offset: str) -> tuple[Int64Array, Places]:
    """Read the ids of all messages, and where each is.

    Raises:
        PipelineError: ids are null.
    """
    names = F.col(arguments.quoted(partition)).cast("string")
    ids, table = _read(frame, column, names, F.col(arguments.quoted(offset)).cast(LongType()), repeats=True)
    encoded = pc.dictionary_encode(pc.fill_null(table.column(0).combine_chunks(), ""))
    places = pc.fill_null(table.column(1), 0).to_numpy().astype(np.int64)
    return ids, Places(encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64), places)


def _read(frame: DataFrame, column: str, *places: Column, repeats: bool = False) -> tuple[Int64Array, pa.Table]:
    """Read the ids of all messages, and other columns."""
    table = frame.select(id_of(column), *places).toArrow()
    nulls = table.column(0).null_count
    if nulls:
        raise PipelineError(
            f"column {column!r}: {nulls} messages have no id: leave them out, or give each an id of its own"
        )
    ids = np.ascontiguousarray(table.column(0).to_numpy(), np.int64)
    if not repeats:
        ordered = in_order(ids)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(twice):
            raise PipelineError(
                f"column {column!r}: {len(twice)} rows have the id of another ({twice[0]}, for one): each "
                "message needs an id of its own"
            )
    return ids, table.remove_column(0)


def with_message_id(frame: DataFrame, *, partition: str = "file", offset: str = "row") -> DataFrame:
    """Add the column `message_id`, made of partition and offset as `MessageIds.offsets` makes it.

        lines = with_message_id(read_files(spark, "logs"))
        again = lines.join(read_dead_letters(spark, acker).select("message_id"), "message_id", "left_semi")
        run_tracked(again, pipeline, acker=acker, ids="message_id")

    Args:
        frame: one row per message.
        partition: string column.
        offset: integer column, counting within a partition.

    Raises:
        PipelineError: a column is missing, or there is a column `message_id`.
    """
    return with_message_ids(frame, None, partition, offset)[0]


def with_message_ids(frame: DataFrame, id_column: str | None, partition: str, offset: str) -> tuple[DataFrame, str]:
    """Give the frame and its column of message ids; where none is named, make it of partition and offset.

    Raises:
        PipelineError: there is no such column, or rows have a type that Arrow does not carry.
    """
    arguments.check_arrow_types(frame)
    if id_column is not None:
        return frame, arguments.integer_column(frame, id_column, "run_tracked")
    if MESSAGE_ID in frame.columns:
        raise PipelineError(f"the DataFrame has a column {MESSAGE_ID!r}: name it with ids={MESSAGE_ID!r}, or rename it")
    if partition not in frame.columns or offset not in frame.columns:
        raise PipelineError(
            f"no ids were named, and columns {partition!r} and {offset!r} are not among {frame.columns}: give the column of "
            "message ids with ids=, or MessageIds.offsets(partition, offset)"
        )
    # The last five bits are the offset's, so that neighbours share a block of the ledger.
    place = F.col(arguments.quoted(offset)).cast(LongType())
    hashed = F.xxhash64(
        F.col(arguments.quoted(partition)), F.shiftright(place, SLOT_BITS)
    )  # without a place, that of none
    made = hashed.bitwiseAND(F.lit(-SLOTS).cast(LongType())).bitwiseOR(
        F.coalesce(place, F.lit(0)).bitwiseAND(SLOTS - 1)
    )
    return frame.withColumn(MESSAGE_ID, made), MESSAGE_ID


def not_done(frame: DataFrame, offsets: OffsetFile, partition: str, offset: str) -> DataFrame:
    """Leave out rows before the completed offset of their partition.

    Raises:
        PipelineError: a column is missing.
    """
    missing = [column for column in (partition, offset) if column not in frame.columns]
    if missing:
        raise PipelineError(f"offsets need the columns {missing}: name them with MessageIds.offsets(partition, offset)")
    known = offsets.known()
    if not known:
        return frame
    begins = frame.sparkSession.createDataFrame(
        pa.table({partition: list(known), _BEGIN: pa.array(known.values(), pa.int64())})
    )
    joined = frame.join(F.broadcast(begins), partition, "left")
    own_offset = F.col(arguments.quoted(offset))
    return joined.where(F.col(_BEGIN).isNull() | own_offset.isNull() | (own_offset >= F.col(_BEGIN))).drop(_BEGIN)
