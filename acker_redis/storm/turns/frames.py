"""Messages that are rows of a DataFrame: their ids in the driver, and the rows of a turn, which stay in Spark."""

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from acker_redis.errors import BadConfigError, BadTupleError, InexactPipelineError, InvalidTopologyError
from acker_redis.model.arrays import Int64Array
from acker_redis.model.types import MAX_PAYLOAD_BYTES
from acker_redis.outages import is_outage
from acker_redis.spark import checks, sql
from acker_redis.spark.emission.corrupt_records import check_corrupt_records, has_corrupt_records, reason_in_sql
from acker_redis.spark.emission.messages import RunMessages, among, id_of, with_message_ids
from acker_redis.spark.runs.options import check_dead_letter_bytes, message_ids
from acker_redis.spark.runtime.jobs import described
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.spark.runtime.worker_errors import own_errors
from acker_redis.storm.components.batch_spout import BatchSpout
from acker_redis.storm.components.dataframe import DataFrameSpout
from acker_redis.storm.core.collectors import Emission, SpoutCollector
from acker_redis.storm.definition.graph import Component
from acker_redis.storm.definition.streams import DEFAULT
from acker_redis.storm.turns.row_step import UNREAD
from acker_redis.storm.turns.steps import Read

log = logging.getLogger("acker_redis.storm")

_ROOT = "_acker_root"
_REASON = "_acker_reason"


class TurnRows(NamedTuple):
    """Rows of a spout in one turn.

    Attributes:
        task: task of the spout.
        frame: id, root, reason why the row can't be read, and the columns of the spout.
        expected: number of the rows, and sum of their roots.
    """

    task: int
    frame: DataFrame
    expected: Read


class FrameSource(ABC):
    """Rows of a `DataFrameSpout`, which stay in Spark. A subclass decides where they come from.

    Attributes:
        name: name of the spout.
        task: its task.
        is_live: True if more rows may come, although there are none now.
        was_stopped: True if the run shall end, because what the rows come from was stopped.
    """

    is_live = False
    was_stopped = False

    def __init__(self, component: Component, spark: SparkSession, *, is_tracking: bool) -> None:
        """Check the DataFrame, without running a job.

        Raises:
            InvalidTopologyError: the spout is a class, or has several tasks.
            BadConfigError: the ids are invalid, the DataFrame belongs to another session, or the source can't do what it says.
            PipelineError: a column is missing, or has a type that workers can't receive.
        """
        spout, name, kind = component.maker, component.name, kind_of(component)
        if not isinstance(spout, DataFrameSpout):
            raise InvalidTopologyError(
                f"The spout {name!r} is a class of {kind}, so it has no DataFrame. Pass an object, such as "
                'DataFrameSpout(frame, ids="id").spec().'
            )
        if component.tasks > 1:
            raise InvalidTopologyError(
                f"The {kind} {name!r} has {component.tasks} tasks, which would all emit the same rows. Omit par, "
                "because Spark reads the DataFrame in parallel anyway."
            )
        self.name = name
        (self.task,) = component.task_ids
        self._kind = kind
        self._ids_from = message_ids(f"{kind} {name!r}", spout.ids)
        self._letter_bytes = spout.dead_letter_bytes
        check_dead_letter_bytes(self._letter_bytes)
        if _session_key(spout.frame.sparkSession) != _session_key(spark):
            raise BadConfigError(
                f"The DataFrame of spout {name!r} belongs to another session than that of the run, which can't read it. Make "
                "it with the session that you pass to run."
            )
        self._check(spout, is_tracking=is_tracking)
        checks.check_column_names(spout.frame.columns, name)
        check_corrupt_records(spout.frame)
        self._columns = spout.frame.columns
        is_marked = has_corrupt_records(spout.frame)
        self._reason = reason_in_sql(self._columns) if is_marked else "cast(null AS string)"
        self._messages = self._messages_in(spout.frame)
        self._ids: Int64Array = np.array([], np.int64)
        self._at = 0
        self._of_turn: dict[int, int] = {}

    @abstractmethod
    def _check(self, spout: DataFrameSpout, *, is_tracking: bool) -> None:
        """Refuse what the source can't do.

        Raises:
            BadConfigError: there is such a thing.
        """

    def opened(self, app: str) -> AbstractContextManager[None]:
        """Open the source for a run of an app. Its exit releases everything.

        Raises:
            PipelineError: an id is null, or occurs twice.
        """
        raise NotImplementedError

    def _messages_in(self, frame: DataFrame) -> RunMessages:
        of = self._ids_from
        frame, column = with_message_ids(frame, of.id_column, of.partition, of.offset, f"{self._kind} {self.name!r}")
        return RunMessages(frame, column, self._letter_bytes)

    def next_id(self) -> int | None:
        """Return the id of the next row; None if there is none now."""
        if self._at == len(self._ids):
            return None
        self._at += 1
        return int(self._ids[self._at - 1])

    def has(self, message_id: object) -> bool:
        """Return True if there is a row with this id, which a dead letter may ask for."""
        return type(message_id) is int and bool((self._ids == message_id).any())

    def note_done(self, message_id: int) -> None:  # noqa: B027  # only some sources keep it
        """Note that a row's message was acked, or that its dead letter was written."""

    def settle(self) -> int:
        """Do what is due between two turns. Returns how much it did.

        Raises:
            Exception: what the rows come from has failed.
        """
        return 0

    # -- turns

    def add(self, message_id: int, root: int) -> None:
        """Add a row to the next turn. Two messages may have one row."""
        self._of_turn[root] = message_id

    def __len__(self) -> int:
        """Count the rows of the next turn."""
        return len(self._of_turn)

    def take(self) -> TurnRows:
        """Begin the turn. Returns its rows."""
        of_turn, self._of_turn = self._of_turn, {}
        roots = np.fromiter(of_turn, np.uint64, len(of_turn))
        ids: Int64Array = np.fromiter(of_turn.values(), np.int64, len(of_turn))
        frame, column = self._messages.frame, self._messages.column
        rows = among(frame, column, ids, {_ROOT: roots.view(np.int64)}).select(
            id_of(column).alias("_acker_id"),
            F.col(_ROOT),
            F.expr(self._reason).alias(_REASON),
            # PySpark takes a dot in a name for a field. The workers read columns by their places.
            *(F.col(sql.quoted(name)).alias(f"c{number}") for number, name in enumerate(self._columns)),
        )
        return TurnRows(self.task, rows, Read(len(of_turn), int(roots.sum(dtype=np.uint64))))

    def check_read(self, read: Read, expected: Read) -> None:
        """Check that a turn has read each of its rows once.

        Raises:
            InexactPipelineError: it has not.
        """
        if read != expected:
            raise InexactPipelineError(
                f"Spout {self.name!r} read {read.rows:,} rows for {expected.rows:,} messages, because its DataFrame doesn't "
                "return the same rows each time it is computed. Rows that weren't read weren't acked. Write the DataFrame to "
                "files or a table, and read these."
            )

    # -- dead letters

    @property
    def keeps_rows(self) -> bool:
        """True if dead letters keep rows."""
        return self._messages.dead_letter_bytes > 0

    def with_rows(self, payloads: Sequence[bytes], ids: Sequence[int]) -> list[bytes]:
        """Add the rows to the payloads of dead letters, where they can be read and aren't too long."""
        try:
            with own_errors(), described(self._messages.frame.sparkSession, f"dead letters of spout {self.name!r}"):
                rows = self._messages.payloads(list(ids))
        except Exception as exc:  # of the user's source; a letter without its row is better than none
            if is_outage(exc):
                log.warning("rows unreachable, dead letters have ids only spout=%r error=%s", self.name, exc)
            else:
                log.exception("rows unreadable, dead letters have ids only spout=%r", self.name)
            return list(payloads)
        return [_with_row(payload, row) for payload, row in zip(payloads, rows, strict=True)]


class FrameCollector(SpoutCollector):
    """Emits of a `DataFrameSpout`: the value of a message is the id of its row.

    Attributes:
        source: its rows.
    """

    source: FrameSource

    def emit_next(self) -> None:
        """Emit the next row, if there is one."""
        message_id = self.source.next_id()
        if message_id is not None:
            self.emit([message_id], message_id)

    def emit(
        self,
        values: Sequence[Any],
        tup_id: Any = None,
        stream: str | None = None,  # noqa: ARG002  # it has one stream
        direct_task: int | None = None,  # noqa: ARG002
    ) -> Sequence[int]:
        """Emit a row, by its id."""
        transport, emission = self._transport, Emission(tup_id, DEFAULT, tuple(values), None)
        root = transport.new_root()
        self.emits += 1
        self.source.add(emission.values[0], root)
        if tup_id is not None and transport.is_tracking:
            transport.init(self._task, root, UNREAD, emission)
            return []
        if tup_id is not None:
            transport.ack_untracked(self._task, emission)
        transport.note_untracked(self._task, emission._replace(tup_id=None))  # type: ignore[attr-defined]
        return []

    def check(self, values: object, stream: str | None, direct_task: int | None = None) -> None:  # noqa: ARG002
        """Check that there is such a row.

        Raises:
            BadTupleError: there is none.
        """
        if not (isinstance(values, (list, tuple)) and len(values) == 1 and self.source.has(values[0])):
            raise BadTupleError(f"{values!r:.100} names no row of spout {self.source.name!r}. Pass the id of a row.")


def kind_of(component: Component) -> str:
    """Return the name of the library's class that a spout of rows derives from."""
    maker = component.maker
    mro = (maker if isinstance(maker, type) else type(maker)).__mro__
    return next(base.__name__ for base in mro if base in (BatchSpout, DataFrameSpout))


def _with_row(payload: bytes, row: bytes | None) -> bytes:
    if row is None:
        return payload
    whole = json.dumps({**json.loads(payload), "row": json.loads(row)}).encode()
    return whole if len(whole) <= MAX_PAYLOAD_BYTES else payload


def _session_key(spark: SparkSession) -> str:
    return str(spark.session_id if is_connect(spark) else spark._jsparkSession.sessionUUID())  # type: ignore[attr-defined]  # noqa: SLF001
