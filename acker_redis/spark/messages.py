"""The messages of a run as a DataFrame: their ids, those of one emission, and those to be kept with a dead letter."""

from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from acker_redis.errors import BadBatchError
from acker_redis.offsets import Offsets
from acker_redis.payloads import Payloads
from acker_redis.pending import Emission
from acker_redis.spark import checks
from acker_redis.spark.kept_rows import Rows
from acker_redis.spark.operators import ATTEMPT

Fetch: TypeAlias = Callable[[list[int]], DataFrame]
"""Gives messages by their ids, with all the columns they had; those it leaves out are gone: dead letters, as `lost`."""

MESSAGE_ID = "message_id"
"""Column that is added where message ids are made of partition and offset."""

PAYLOAD = "_acker_payload"
_BEGIN = "_acker_begin"
_JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX", "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"}
"""Spark's default leaves out microseconds, and the seconds of old time zones."""


@dataclass
class Messages:
    """The messages of one run.

    Attributes:
        frame: one row per message.
        column: of message ids.
        payload_bytes: rows not longer than this are kept: as JSON with dead letters, as `kept_rows` in `kept`.
        kept: where messages are kept for replay; None: replays are fetched, or read from `frame` again.
        fetch: gives messages for replays.
        untracked: rows without message id.
        gone: messages that `fetch` did not give, an array per emission.
    """

    frame: DataFrame
    column: str
    payload_bytes: int = 0
    kept: Payloads | None = None
    fetch: Fetch | None = None
    untracked: int = field(default=0, init=False)
    gone: SimpleQueue[npt.NDArray[np.int64]] = field(default_factory=SimpleQueue, init=False)
    _all: int = field(default=0, init=False)

    def read_ids(self, offsets: Offsets | None, partition: str, offset: str) -> npt.NDArray[np.int64]:
        """The ids of all messages; with offsets, which are told of them.

        Raises:
            BadBatchError: ids stand more than once.
        """
        wanted = [self._id()]
        if offsets is not None:
            wanted += [F.col(checks.quoted(partition)), F.col(checks.quoted(offset)).cast(LongType())]
        found = self.frame.select(*wanted).toArrow()
        self.untracked = found.column(0).null_count
        found = found.filter(pc.is_valid(found.column(0)))
        ids = np.ascontiguousarray(found.column(0).to_numpy(), np.int64)
        repeated = len(ids) - len(np.unique(ids))
        if repeated:
            raise BadBatchError(
                f"column {self.column!r}: {repeated} message ids stand more than once: each message needs an id of its own"
            )
        if offsets is not None:
            nulls = found.column(1).null_count + found.column(2).null_count
            if nulls:
                raise BadBatchError(
                    f"{nulls} messages have no {partition!r} or {offset!r}: leave them out, or give them one"
                )
            of = found.column(1).combine_chunks().dictionary_encode()
            of = of.combine_chunks() if isinstance(of, pa.ChunkedArray) else of
            places = of.indices.to_numpy(zero_copy_only=False).astype(np.int64)
            offsets.track(ids, of.dictionary.to_pylist(), places, found.column(2).to_numpy())
        self._all = len(ids)
        return ids

    def of(self, emission: Emission) -> DataFrame:
        """The rows of an emission, with a column ATTEMPT, and a column PAYLOAD where rows are to be kept."""
        first = emission.number == 0
        if first and len(emission.message_ids) == self._all:
            return self._prepared(self._with_payload(self.frame, keep=True))
        is_fresh = emission.attempts == 0
        parts = []
        if is_fresh.any():
            fresh = self._among(self.frame, emission.message_ids[is_fresh])
            parts.append(self._prepared(self._with_payload(fresh, keep=True)))
        if first and self.untracked:
            untracked = self.frame.where(self._id().isNull())
            parts.append(self._prepared(self._with_payload(untracked, keep=False)))
        parts += self._again(emission.message_ids[~is_fresh], emission.attempts[~is_fresh])
        together = parts[0]
        for part in parts[1:]:
            together = together.unionByName(part)
        return together

    def payloads(self, ids: list[int]) -> list[bytes | None]:
        """Rows as JSON, for those that are not longer than payload_bytes."""
        has, rows = self._kept(ids)
        missing = [one for one, kept in zip(ids, has, strict=True) if not kept]
        of: dict[int, bytes | None] = {}
        for part in ([] if rows is None else [rows]) + ([self._source(missing)] if missing else []):
            found = part.select(self._id(), self._as_json()).toArrow()
            of.update(zip(found.column(0).to_pylist(), found.column(1).to_pylist(), strict=True))
        return [of.get(one) for one in ids]

    def _kept(self, ids: list[int]) -> tuple[npt.NDArray[np.bool_], DataFrame | None]:
        """Which messages are kept in Redis, and their rows."""
        payloads = [None] * len(ids) if self.kept is None else self.kept.get(ids)
        has = np.array([payload is not None for payload in payloads], np.bool_)
        if not has.any():
            return has, None
        table = pa.table({PAYLOAD: pa.array([payload for payload in payloads if payload is not None], pa.binary())})
        rows = Rows(checks.arrow_schema(self.frame.schema))
        return has, self.frame.sparkSession.createDataFrame(table).mapInArrow(rows, self.frame.schema)

    def _again(self, ids: npt.NDArray[np.int64], attempts: npt.NDArray[np.int64]) -> list[DataFrame]:
        if not len(ids):
            return []
        parts = []
        has, kept = self._kept(ids.tolist())
        if kept is not None:
            parts.append(self._with_attempts(kept, ids[has], attempts[has]))
        ids, attempts = ids[~has], attempts[~has]
        if len(ids):
            rows = self.frame if self.fetch is None else self._fetched(ids)
            parts.append(self._with_attempts(rows, ids, attempts))
        return [self._with_payload(part, keep=False) for part in parts]

    def _fetched(self, ids: npt.NDArray[np.int64]) -> DataFrame:
        rows = self._source(ids.tolist())
        found = rows.select(self._id()).toArrow().column(0)
        if found.null_count or len(found) != len(pc.unique(found)):
            raise BadBatchError("fetch gave messages twice, or without id: give each of those asked for once")
        gone = np.setdiff1d(ids, found.to_numpy())
        if len(gone):
            self.gone.put(gone)
        return rows

    def _source(self, ids: list[int]) -> DataFrame:
        if self.fetch is None:
            return self._among(self.frame, np.array(ids, np.int64))
        fetched = self.fetch(ids)
        missing = set(self.frame.columns) - set(fetched.columns)
        if missing:
            raise BadBatchError(f"fetch gave messages without {sorted(missing)}: give all columns of the messages")
        return fetched.select(*(F.col(checks.quoted(name)) for name in self.frame.columns))

    def _among(self, frame: DataFrame, ids: npt.NDArray[np.int64]) -> DataFrame:
        return frame.join(F.broadcast(frame.sparkSession.createDataFrame(pa.table({self.column: ids}))), self.column)

    def _with_attempts(
        self, frame: DataFrame, ids: npt.NDArray[np.int64], attempts: npt.NDArray[np.int64]
    ) -> DataFrame:
        wanted = frame.sparkSession.createDataFrame(pa.table({self.column: ids, ATTEMPT: attempts}))
        return frame.join(F.broadcast(wanted), self.column)

    def _prepared(self, frame: DataFrame) -> DataFrame:
        return frame.withColumn(ATTEMPT, F.lit(0).cast(LongType()))

    def _with_payload(self, frame: DataFrame, *, keep: bool) -> DataFrame:
        """The rows, with themselves in a column PAYLOAD if they are to be kept."""
        if self.kept is None:
            return frame
        row = F.struct(*(F.col(checks.quoted(name)) for name in self.frame.columns))
        return frame.select("*", F.when(F.lit(keep), row).alias(PAYLOAD))

    def _as_json(self) -> Column:
        text = F.encode(F.to_json(F.struct("*"), _JSON), "UTF-8")
        return F.when(F.length(text) <= self.payload_bytes, text)

    def _id(self) -> Column:
        return F.col(checks.quoted(self.column)).cast(LongType())


def with_message_ids(frame: DataFrame, message_id: str | None, partition: str, offset: str) -> tuple[DataFrame, str]:
    """The frame and its column of message ids; where none is named it is made of partition and offset.

    Raises:
        BadBatchError: there is no such column, or rows have a type that Arrow does not carry.
    """
    checks.crossing(frame)
    if message_id is not None:
        return frame, checks.integer_column(frame, message_id, "run_tracked")
    if MESSAGE_ID in frame.columns:
        raise BadBatchError(f"the DataFrame has a column {MESSAGE_ID!r}: name it as message_id, or rename it")
    if partition not in frame.columns or offset not in frame.columns:
        raise BadBatchError(f"give message_id, or columns {partition!r} and {offset!r} among {frame.columns}")
    return frame.withColumn(
        MESSAGE_ID, F.xxhash64(F.col(checks.quoted(partition)), F.col(checks.quoted(offset)).cast(LongType()))
    ), MESSAGE_ID


def not_done(frame: DataFrame, offsets: Offsets, partition: str, offset: str) -> DataFrame:
    """Rows from the offset on where their partition begins.

    Raises:
        BadBatchError: a column is missing.
    """
    missing = [column for column in (partition, offset) if column not in frame.columns]
    if missing:
        raise BadBatchError(f"offsets need the columns {missing}: name them with partition= and offset=")
    known = offsets.known()
    if not known:
        return frame
    begins = frame.sparkSession.createDataFrame(
        pa.table({partition: list(known), _BEGIN: pa.array(known.values(), pa.int64())})
    )
    found = frame.join(F.broadcast(begins), partition, "left")
    here = F.col(checks.quoted(offset))
    return found.where(F.col(_BEGIN).isNull() | here.isNull() | (here >= F.col(_BEGIN))).drop(_BEGIN)
