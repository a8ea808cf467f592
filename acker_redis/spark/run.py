"""A pipeline over a DataFrame, or over the micro-batches of a stream, until every message was acked or is a dead letter."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession

from acker_redis.acker import Acker
from acker_redis.emitter import HOPELESS
from acker_redis.errors import BadConfigError, NotProvenError
from acker_redis.model import MAX_PAYLOAD_BYTES
from acker_redis.offsets import Offsets
from acker_redis.payloads import Payloads
from acker_redis.pending import Emission
from acker_redis.retry import RetryPolicy
from acker_redis.spark import checks, edges, sql
from acker_redis.spark.actions import described, running
from acker_redis.spark.emission import Roots, edges_of, salts
from acker_redis.spark.form import Form, with_form
from acker_redis.spark.messages import Fetch, Messages, not_done, with_message_ids
from acker_redis.spark.proof import Proof
from acker_redis.spark.reach import check_url
from acker_redis.spark.sinks.exports import Origin
from acker_redis.spark.sources.files import FILE, ROW, check_outside, has_corrupt, without_corrupt
from acker_redis.spark.tracker import Tracker
from acker_redis.spark.worker_errors import own_errors
from acker_redis.spout import Spout

Pipeline: TypeAlias = Callable[[Tracker, DataFrame], object]
"""Operators and sinks of one emission: called with its tracker and its tracked messages."""

SAVE_SECS = 1.0
"""Offsets are written at most so often, and at the end."""


class BatchOptions(TypedDict, total=False):
    """Options that all runs have in common, beside `acker`; see `run_tracked`."""

    executor_url: str | None
    retry: RetryPolicy | None
    payload_bytes: int
    keep_payload: bool
    fetch: Fetch | None


class StreamOptions(BatchOptions, total=False):
    """Options of `each_batch`, beside `acker`; see `run_tracked`."""

    task: int
    max_spout_pending: int | None
    id_column: str | None
    partition: str
    offset: str
    on_messages_done: Callable[[npt.NDArray[np.int64]], object] | None
    progress: Callable[[Spout, bool], object] | None


def run_tracked(
    messages: DataFrame,
    pipeline: Pipeline,
    *,
    acker: Acker,
    executor_url: str | None = None,
    id_column: str | None = None,
    offsets: Offsets | None = None,
    partition: str = FILE,
    offset: str = ROW,
    run_id: str | None = None,
    task: int = 0,
    retry: RetryPolicy | None = None,
    max_spout_pending: int | None = None,
    payload_bytes: int = 0,
    keep_payload: bool = False,
    fetch: Fetch | None = None,
    on_messages_done: Callable[[npt.NDArray[np.int64]], object] | None = None,
    progress: Callable[[Spout, bool], object] | None = None,
    batch_id: int | None = None,
) -> Spout:
    """Put every row of a DataFrame through a pipeline, again where it fails or times out, until none is left.

    Guarantee: when this returns, each message was acked, so that everything derived from it was written, or is in
    `Spout.dead_letters` and the app's dead-letter stream. Not guaranteed: that its work was done once; sinks have to be
    idempotent by message.

    Args:
        messages: one row per message. Has to give the same rows whenever it is computed, as files do; a failed message is
            read from it again, unless `keep_payload` or `fetch` says otherwise.
        pipeline: called once per emission with a tracker and the tracked messages; has to run its sinks before it returns.
            What it writes to must not depend on how messages are spread over emissions, or carry `tracker.emission` in its
            name.
        acker: of this process, which takes the outcomes.
        executor_url: the acker's server as the executors reach it, where that is not as this process does. Executors speak to
            it in exports, and with `keep_payload`, only; one is asked before anything is emitted.
        id_column: integer column of message ids, distinct and not null. None: a column `message_id` is made of partition and
            offset.
        offsets: where to begin, and where to note what is done. A restarted run goes on with the first message of each
            partition that is not known to be done; what was under way beyond it is repeated under fresh roots. Opened for
            the acker's app and for these columns, and closed at the end.
        partition: string column, for message ids and offsets that are made of it.
        offset: integer column, counting within a partition.
        run_id: unique per run: one that an earlier run had is refused; None: a random one.
        task: owner of the roots; see `Spout`.
        retry: when to emit again.
        max_spout_pending: at most so many messages in flight.
        payload_bytes: a dead letter keeps its message, as JSON, if it is not longer; 0: its id only. At most 1 MiB.
        keep_payload: keep messages of up to payload_bytes in Redis while they are not done, and replay them from there, bit
            by bit as they were.
        fetch: called with message ids, gives the DataFrame to replay them from, as where the source can be looked up by id.
            With `keep_payload` it is asked for what was too long to be kept.
        on_messages_done: called with the ids of messages that were acked or are kept as dead letters.
        progress: called several times a second with the spout, and whether an emission is under way.
        batch_id: becomes `Tracker.batch_id`.

    Raises:
        BadBatchError: no such column or one of a type that Python workers can't have, or message ids are null or not
            distinct; nothing was emitted.
        BadConfigError: a setting is out of range; the offsets are another app's or source's, in use, or inside the source's
            folder; an executor does not find the acker by `executor_url`; an earlier run had this run id. Nothing was emitted.
        NotExactError: the messages can't be read again, or the pipeline ran no sink, leaves rows without one, or drops or
            copies rows otherwise than by the tracker's operators. Nothing was acked.
        AckerError: as `Spout.run`. An error of the library's own in a Python worker is raised as what it was there.
    """
    given = on_messages_done
    return run_messages(
        messages, pipeline, None if given is None else lambda ids, _: given(ids), acker=acker, executor_url=executor_url,
        id_column=id_column, offsets=offsets, partition=partition, offset=offset, run_id=run_id, task=task, retry=retry,
        max_spout_pending=max_spout_pending, payload_bytes=payload_bytes, keep_payload=keep_payload, fetch=fetch,
        progress=progress, batch_id=batch_id,
    )  # fmt: skip


def run_messages(
    messages: DataFrame,
    pipeline: Pipeline,
    on_done: Callable[[npt.NDArray[np.int64], Spout], object] | None,
    *,
    acker: Acker,
    executor_url: str | None = None,
    id_column: str | None = None,
    offsets: Offsets | None = None,
    partition: str = FILE,
    offset: str = ROW,
    run_id: str | None = None,
    task: int = 0,
    retry: RetryPolicy | None = None,
    max_spout_pending: int | None = None,
    payload_bytes: int = 0,
    keep_payload: bool = False,
    fetch: Fetch | None = None,
    progress: Callable[[Spout, bool], object] | None = None,
    batch_id: int | None = None,
) -> Spout:
    """As `run_tracked`; `on_done` is given the spout, too, which knows what is a dead letter."""
    if payload_bytes < 0 or (keep_payload and not payload_bytes):
        raise BadConfigError(f"payload_bytes={payload_bytes}: give the longest message to keep, in bytes")
    if payload_bytes > MAX_PAYLOAD_BYTES:
        raise BadConfigError(f"payload_bytes={payload_bytes}: at most {MAX_PAYLOAD_BYTES} bytes of a message are kept")
    checks.column_names(messages.columns, "run_tracked")
    url = acker.url if executor_url is None else executor_url
    if executor_url is not None or keep_payload:
        url = check_url(messages.sparkSession, url, acker)
    messages, column = with_message_ids(messages, id_column, partition, offset)
    if offsets is not None:
        check_outside(messages, partition, offsets.path)
    with nullcontext() if offsets is None else offsets.open(acker.config.app, partition, offset):
        if offsets is not None:
            messages = not_done(messages, offsets, partition, offset)
        claimed = run_id is not None  # a random one needs no claim
        run_id = uuid.uuid4().hex if run_id is None else run_id
        kept = acker.payloads(run_id) if keep_payload else None
        source = Messages(messages, column, payload_bytes, kept, fetch)
        spout = Spout(
            acker, run_id, task, retry or RetryPolicy(), max_spout_pending,
            payload=source.payloads if payload_bytes else None,
        )  # fmt: skip
        noted = _Noted(offsets, kept, None if on_done is None else partial(_told, on_done, spout))
        spout.on_done = noted.done
        with own_errors(), described(messages.sparkSession, f"message ids of {acker.config.app}:{run_id}"):
            ids = source.read_ids(offsets, partition, offset)
        if claimed:
            acker.claim_run(run_id)
        emitting = _Emitting(spout, source, pipeline, messages, column, url, batch_id)

        def between(busy: bool) -> None:
            while not source.gone.empty():
                spout.give_up(source.gone.get())
            if progress is not None:
                progress(spout, busy)

        spout.add(ids)
        if not len(ids):  # what the pipeline does of nothing is still done, and has to be right
            emitting.emit(Emission(0, ids, ids, ids))
        spout.run(inheritable_thread_target(messages.sparkSession)(emitting.emit), between)
        noted.end()
        return spout


@dataclass(frozen=True)
class _Emitting:
    """Emits: makes the tracked messages of an emission, runs the pipeline over them, and closes their roots."""

    spout: Spout
    source: Messages
    pipeline: Pipeline
    messages: DataFrame
    id_column: str
    url: str | None = field(repr=False)  # may hold a password
    batch_id: int | None

    def emit(self, emission: Emission) -> None:
        """Run one emission."""
        spout, session = self.spout, self.messages.sparkSession
        acker, app = spout.acker, spout.acker.config.app
        _activate(session)
        with _excusing(spout, emission), own_errors():
            messages, emission = self.source.of(emission)
        of_emission = salts(app, spout.run_id, emission.number)
        own = edges_of(of_emission[1], emission)
        key = f"{app}:{spout.run_id}:{emission.number}"
        tag = f"acker:{key}".replace(",", "_")
        proof = Proof(session, key, edges.total(own), len(own), tag, acker.ledger.stage_number)
        tracker = Tracker(
            spout.run_id, emission.number, self.batch_id,
            _proof=proof, _origin=Origin(self.url, acker),
        )  # fmt: skip
        try:
            # The spout waits for outages, and goes no further after mistakes.
            with (
                running(session, tag),
                Roots(spout, emission, own) as roots,
                _excusing(spout, emission),
                own_errors(),
            ):
                if self.source.kept is not None:
                    with described(session, f"messages of {key} to Redis"):
                        self.source.keep(emission, str(self.url), acker.config, spout.run_id)
                rows = sql.spouted(messages, self.id_column, of_emission)
                tracked = with_form(rows, Form(key, proof.add("spout", "spout", []).name))
                self.pipeline(tracker, without_corrupt(tracker, tracked) if has_corrupt(self.messages) else tracked)
                proof.close()
                roots.close(proof.failed())
        finally:
            proof.end()


@contextmanager
def _excusing(spout: Spout, emission: Emission) -> Iterator[None]:
    """Where the messages are not to blame, say so before their roots fail: it costs them no attempt."""
    try:
        yield
    except (NotProvenError, *HOPELESS):
        spout.excuse(emission.roots)
        raise


def each_batch(
    pipeline: Pipeline,
    *,
    acker: Acker,
    on_batch_done: Callable[[DataFrame, Spout], object] | None = None,
    **options: Unpack[StreamOptions],
) -> Callable[[DataFrame, int], None]:
    """A function for `DataStreamWriter.foreachBatch`: every micro-batch goes through `run_tracked`.

        stream.writeStream.foreachBatch(each_batch(pipeline, acker=acker, id_column="id")).start()

    A micro-batch ends when each of its messages was acked or is a dead letter; only then does Spark commit its offsets. If
    the query dies before, Spark gives the batch again after its restart, which is another run: roots of the one that died
    time out and wait for no one.

    Args:
        pipeline: as for `run_tracked`.
        acker: as for `run_tracked`.
        on_batch_done: called with the micro-batch and its spout before the batch ends; the place to keep what became of it.
        options: as for `run_tracked`; Spark's checkpoint has the offsets.
    """
    check_options("each_batch", options, StreamOptions, "Spark's checkpoint has the offsets, and each batch is a run")

    def handle(batch: DataFrame, batch_id: int) -> None:
        batch.persist()  # read once, not for every job
        try:
            spout = run_tracked(batch, pipeline, acker=acker, batch_id=batch_id, **options)
            if on_batch_done is not None:
                on_batch_done(batch, spout)
        finally:
            batch.unpersist()

    return handle


def _told(
    on_done: Callable[[npt.NDArray[np.int64], Spout], object], spout: Spout, message_ids: npt.NDArray[np.int64]
) -> None:
    on_done(message_ids, spout)


def check_options(call: str, options: Mapping[str, object], known: type, reason: str) -> None:
    """Options that a call hands on are of those it may hand on.

    Raises:
        BadConfigError: one isn't.
    """
    names = {name for kind in known.__mro__ for name in getattr(kind, "__annotations__", ())}
    unknown = sorted(set(options) - names - set(known.__annotations__))
    if unknown:
        raise BadConfigError(f"{call} takes no {', '.join(unknown)}: {reason}")


def _activate(session: SparkSession) -> None:
    """Make a session the thread's active one, where Spark looks for Python data sources; a new thread has none."""
    java = getattr(session, "_jsparkSession", None)
    if java is not None:  # else Spark Connect
        session.sparkContext._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(java)  # type: ignore[union-attr]  # noqa: SLF001


class _Noted:
    """Passes on what is done."""

    def __init__(
        self,
        offsets: Offsets | None,
        kept: Payloads | None,
        on_messages_done: Callable[[npt.NDArray[np.int64]], object] | None,
    ) -> None:
        self._offsets, self._kept, self._on_done = offsets, kept, on_messages_done
        self._saved_at = time.monotonic()

    def done(self, message_ids: npt.NDArray[np.int64]) -> None:
        if self._on_done is not None:
            self._on_done(message_ids)
        if self._offsets is not None:
            self._offsets.complete(message_ids)
            if time.monotonic() - self._saved_at >= SAVE_SECS:
                self._offsets.save()
                self._saved_at = time.monotonic()
        if self._kept is not None:
            self._kept.remove(message_ids.tolist())

    def end(self) -> None:
        if self._offsets is not None:
            self._offsets.save()
        if self._kept is not None:
            self._kept.clear()
