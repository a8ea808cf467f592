"""A pipeline over a DataFrame, or over the micro-batches of a stream, until every message was acked or is a dead letter."""

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import TypedDict

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame

from acker_redis.acker import Acker, app_of
from acker_redis.errors import BadConfigError
from acker_redis.model.arrays import Int64Array
from acker_redis.model.config import check_bound, check_finite
from acker_redis.model.types import MAX_PAYLOAD_BYTES
from acker_redis.spark.emission.evidence import MANY, Evidence
from acker_redis.spark.emission.messages import Fetch, Messages, not_done, with_message_ids
from acker_redis.spark.emission.runner import Emitting, Pipeline
from acker_redis.spark.emission.whole_output import Whole
from acker_redis.spark.protocol import arguments
from acker_redis.spark.runtime.executor_check import check_url
from acker_redis.spark.runtime.jobs import described
from acker_redis.spark.runtime.worker_errors import own_errors
from acker_redis.spark.sinks.output_modes import Output, check_output
from acker_redis.spark.sources.files import FILE, ROW, check_corrupt, check_outside
from acker_redis.spark.worker.keep_messages import KeepStep
from acker_redis.spout.callbacks import insisting
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.leftover_roots import noting
from acker_redis.spout.loop import run_spout
from acker_redis.spout.offset_file import Offsets
from acker_redis.spout.retry import RetryPolicy
from acker_redis.spout.spout import Spout
from acker_redis.store.dead_letter import FROM_RUN, DeadLetter
from acker_redis.store.payloads import Payloads

SAVE_SECS = 1.0
"""Offsets are written at most so often, and at the end."""


class BatchOptions(TypedDict, total=False):
    """Options that all runs have in common, beside `acker`; see `run_tracked`."""

    executor_url: str | None
    retry: RetryPolicy | None
    stop_if_all_fail: bool
    emit_timeout_secs: float | None
    payload_bytes: int


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
    stop_if_all_fail: bool = True,
    emit_timeout_secs: float | None = None,
    max_spout_pending: int | None = None,
    payload_bytes: int = 0,
    keep_payload: bool = False,
    fetch: Fetch | None = None,
    on_messages_done: Callable[[Int64Array], object] | None = None,
    progress: Callable[[Spout, bool], object] | None = None,
    output: Output = "by_message",
) -> Spout:
    """Put every row of a DataFrame through a pipeline, again where it fails or times out, until none is left.

        def pipeline(tracker, messages):
            items = messages.transform(tracker.bolt, split, "order bigint, item string")
            tracker.write(items, lambda writer: writer.mode("append").parquet(path))

        spout = run_tracked(orders, pipeline, acker=acker, id_column="order")
        print(spout.counts)

    Guarantee: when this returns, each message was acked, so that everything derived from it was written, or is in
    `Spout.dead_letters` and the app's dead-letter stream. Not guaranteed: that its work was done once; sinks have to be
    idempotent by message.

    Args:
        messages: one row per message. Has to give the same rows whenever it is computed, as files do; a failed message is
            read from it again, unless `keep_payload` or `fetch` says otherwise.
        pipeline: called once per emission with a tracker and the tracked messages; has to run its sinks before it returns.
            What it writes to must not depend on how messages are spread over emissions. Files that a function writes itself
            carry `tracker.run_id` and `tracker.emission` in their names, so that a replay adds to them.
        acker: of this process, which takes the outcomes.
        executor_url: the acker's server as the executors reach it, where that is not as this process does. Executors speak to
            it in exports, and with `keep_payload`, only; one is asked before anything is emitted.
        id_column: integer column of message ids, distinct and not null. None: a column `message_id` is made of partition and
            offset.
        offsets: where it is noted what is done. A restarted run leaves that out, and repeats what was under way under fresh
            roots. Opened for the acker's app and for these columns, and closed at the end.
        partition: string column, for message ids and offsets that are made of it.
        offset: integer column, counting within a partition.
        run_id: unique per run: one that an earlier run had is refused; None: a random one.
        task: owner of the roots; see `Spout`.
        retry: when to emit again; see `RetryPolicy`. An attempt counts only against a message that can be to blame: its own
            row failed, another application failed it, it was exported and timed out, or a job failed that had it alone.
        stop_if_all_fail: end with `OperatorBrokenError` where 20 messages failed by an exception that the pipeline does not
            declare, in an operator that has processed none. False: such exceptions count as an attempt from the first on, as
            they do where the source has fewer than 20 messages.
        emit_timeout_secs: the jobs of an emission are cancelled after so long, so that a message whose work never ends is
            found like one that kills its worker: the emission goes out again in parts, until it is alone. Has to be longer
            than the jobs of all messages together take; what the pipeline does in the driver is not ended. None: never.
        max_spout_pending: at most so many messages in flight.
        payload_bytes: a dead letter keeps its message, as JSON, if it is not longer; 0: its id only. At most 1 MiB.
        keep_payload: keep messages of up to payload_bytes in Redis while they are not done, and replay them from there, bit
            by bit as they were.
        fetch: called with message ids, gives the DataFrame to replay them from, as where the source can be looked up by id.
            With `keep_payload` it is asked for what was too long to be kept.
        on_messages_done: called with the ids of messages that were acked or are kept as dead letters. Where it raises it is
            called again with the same ids, twice; then the run ends.
        progress: called several times a second with the spout, and whether an emission is under way.
        output: `by_message`: what is written belongs to the messages of an emission, so sinks append, groups are partial, and
            failed messages are written later without the others. `whole`: it is made of all messages that are acked, and
            replaces what was there, so sinks overwrite. Nothing is written before every frame of an emission was computed and
            proven and nothing in it failed; failed messages are tried again alone, until each comes through or is a dead
            letter, and then the whole. Where there were messages and each is a dead letter, nothing is written. It goes with
            no `offsets`, `max_spout_pending`, `keep_payload`, `fetch` or export.

    Raises:
        BadBatchError: no such column or one of a type that Python workers can't have, or message ids are null or not
            distinct, or `_corrupt_record` of `read_files` was left out; nothing was emitted.
        BadConfigError: a setting is out of range; the offsets are another app's or source's, in use, or inside the source's
            folder; an executor does not find the acker by `executor_url`; an earlier run had this run id. Nothing was emitted.
        NotExactError: the messages can't be read again, or the pipeline ran no sink, leaves rows without one, or drops or
            copies rows otherwise than by the tracker's operators. Nothing was acked.
        OperatorBrokenError: see `stop_if_all_fail`; nothing was dead-lettered for it.
        NotAcceptedError: the output is a whole, and in `max_attempts + 2` emissions of all messages that were left something
            failed; or every message is a dead letter, so that the output would be empty. Nothing was acked, and what was there
            before is there, unless a writer has broken it.
        AckerError: as `run_spout`. An error of the library's own in a Python worker is raised as what it was there.
        Exception: what the pipeline function raised in the driver: it ends the run at once, and counts as nobody's attempt.
            Connection and timeout errors don't: they are waited for, for up to ten minutes.
    """
    tell = None if on_messages_done is None else insisting(on_messages_done, "on_messages_done")
    return run_messages(
        messages, pipeline, None if tell is None else lambda ids, _: tell(ids), acker=acker, executor_url=executor_url,
        id_column=id_column, offsets=offsets, partition=partition, offset=offset, run_id=run_id, task=task, retry=retry,
        stop_if_all_fail=stop_if_all_fail, emit_timeout_secs=emit_timeout_secs, max_spout_pending=max_spout_pending,
        payload_bytes=payload_bytes,
        keep_payload=keep_payload, fetch=fetch, progress=progress, output=output,
    )  # fmt: skip


def run_messages(
    messages: DataFrame,
    pipeline: Pipeline,
    on_done: Callable[[Int64Array, Spout], object] | None,
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
    stop_if_all_fail: bool = True,
    emit_timeout_secs: float | None = None,
    max_spout_pending: int | None = None,
    payload_bytes: int = 0,
    keep_payload: bool = False,
    fetch: Fetch | None = None,
    progress: Callable[[Spout, bool], object] | None = None,
    output: Output = "by_message",
) -> Spout:
    """As `run_tracked`; `on_done` is given the spout, too, which knows what is a dead letter."""
    payload_limit(payload_bytes)
    emit_timeout(emit_timeout_secs)
    check_bound("max_spout_pending", max_spout_pending)
    arguments.run("run_tracked", pipeline, acker, retry)
    if keep_payload and not payload_bytes:
        raise BadConfigError("keep_payload needs payload_bytes: give the longest message to keep, in bytes")
    check_output(output)
    if output == "whole":
        _check_whole(
            offsets=offsets, max_spout_pending=max_spout_pending, keep_payload=keep_payload or None, fetch=fetch
        )
    arguments.column_names(messages.columns, "run_tracked")
    check_corrupt(messages)
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
        kept = app_of(acker).payloads(run_id) if keep_payload else None
        keeping = KeepStep(str(url), acker.config, run_id, payload_bytes) if keep_payload else None
        source = Messages(messages, column, payload_bytes, kept, keeping, fetch)
        spout = Spout(
            acker, run_id, task, retry or RetryPolicy(), max_spout_pending,
            payload=source.payloads if payload_bytes else None,
            # What is kept in Redis goes with its dead letter; one message can't be added to an output that is a whole.
            replay=None if keep_payload or output == "whole" else _messages_of, replays_from=FROM_RUN,
        )  # fmt: skip
        noted = _Noted(offsets, kept, None if on_done is None else partial(_told, on_done, spout))
        spout.on_done = noted.done
        with noting(acker, spout.lane, run_id, task):
            with own_errors(), described(messages.sparkSession, f"message ids of {acker.config.app}:{run_id}"):
                spout.add(source.read_ids(offsets, partition, offset))
            if claimed:
                app_of(acker).claim_run(run_id)
        evidence = Evidence(everything_counts=not stop_if_all_fail or spout.state.fresh < MANY)
        whole = Whole(spout) if output == "whole" else None
        spout.state.one_by_one = whole is not None
        emitting = Emitting(
            spout, pipeline, column, evidence, url, emit_timeout_secs, whole, payload_bytes, source.brought
        )
        session = messages.sparkSession

        def emit(emission: Emission) -> None:
            emitting.emit(emission, source, session)

        def between(busy: bool) -> None:
            while not source.gone.empty():
                spout.exhaust(source.gone.get())
            if progress is not None:
                progress(spout, busy)

        def emit_nothing() -> None:  # what the pipeline does of nothing is still done, and has to be right
            with noting(acker, spout.lane, run_id, task):
                emit(spout.state.empty_emission())

        if not spout.state.fresh and whole is None:
            emit_nothing()
        run_spout(spout, inheritable_thread_target(session)(emit), between)
        if whole is not None and not whole.written:
            with noting(acker, spout.lane, run_id, task):
                whole.check_some_left()
        while whole is not None and not whole.written:  # there was no message
            if whole.refused:
                time.sleep(whole.delay_secs)
            emit_nothing()
        noted.end()
        return spout


def _check_whole(**given: object) -> None:
    """None of these was given.

    Raises:
        BadConfigError: one was.
    """
    unfit = [name for name, value in given.items() if value is not None]
    if unfit:
        raise BadConfigError(
            f'output="whole" goes without {", ".join(unfit)}: it is written once, of all messages that are read in this run. '
            "Leave it out, or write by message"
        )


def _messages_of(letters: list[DeadLetter]) -> list[int]:
    """See `replaying.ReplayLoader`: the source of the run has them all."""
    return [letter.message_id for letter in letters]


def _told(on_done: Callable[[Int64Array, Spout], object], spout: Spout, message_ids: Int64Array) -> None:
    on_done(message_ids, spout)


def payload_limit(payload_bytes: int) -> int:
    """The same, checked.

    Raises:
        BadConfigError: it is out of range.
    """
    if not 0 <= payload_bytes <= MAX_PAYLOAD_BYTES:
        raise BadConfigError(
            f"payload_bytes={payload_bytes}: give the longest message to keep, in bytes; at most {MAX_PAYLOAD_BYTES} are kept"
        )
    return payload_bytes


def emit_timeout(secs: float | None) -> float | None:
    """The same, checked.

    Raises:
        BadConfigError: it is out of range.
    """
    if secs is not None:
        check_finite("emit_timeout_secs", secs)
        if not secs:
            raise BadConfigError(f"emit_timeout_secs={secs}: give a time above 0, or None")
    return secs


def check_options(call: str, options: Mapping[str, object], known: type, reason: str) -> None:
    """Options that a call hands on are of those it may hand on.

    Raises:
        BadConfigError: one isn't.
    """
    names = {name for kind in known.__mro__ for name in getattr(kind, "__annotations__", ())}
    unknown = sorted(set(options) - names - set(known.__annotations__))
    if unknown:
        raise BadConfigError(f"{call} takes no {', '.join(unknown)}: {reason}")


class _Noted:
    """Passes on what is done."""

    def __init__(
        self,
        offsets: Offsets | None,
        kept: Payloads | None,
        on_messages_done: Callable[[Int64Array], object] | None,
    ) -> None:
        self._offsets, self._kept, self._on_done = offsets, kept, on_messages_done
        self._saved_at = time.monotonic()

    def done(self, message_ids: Int64Array) -> None:
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
