"""Runs of a pipeline over a DataFrame, until every message is acked or a dead letter."""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession

from acker_redis.acker import Acker, app_of
from acker_redis.errors import BadConfigError
from acker_redis.model.arrays import Int64Array
from acker_redis.publishing.messages import MessageNames, NamesById
from acker_redis.spark import checks
from acker_redis.spark.emission.corrupt_records import check_corrupt_records
from acker_redis.spark.emission.messages import RunMessages, not_done, with_message_ids
from acker_redis.spark.emission.once_letters import OnceLetters
from acker_redis.spark.emission.once_output import OnceOutput
from acker_redis.spark.emission.operator_health import OperatorHealth
from acker_redis.spark.emission.outages import patiently
from acker_redis.spark.emission.pipeline_run import Pipeline
from acker_redis.spark.emission.place_columns import place_columns
from acker_redis.spark.emission.runner import EmissionRunner
from acker_redis.spark.emission.whole_output import WholeOutput
from acker_redis.spark.proof.blame import line_of
from acker_redis.spark.proof.id_lineage import check_id_lineage
from acker_redis.spark.proof.numbered_files import NumberedFiles
from acker_redis.spark.runs.callback_retries import with_retries
from acker_redis.spark.runs.late_ids import may_learn_ids
from acker_redis.spark.runs.once import Once, check_ids, check_once, check_session, open_output
from acker_redis.spark.runs.options import (
    MessageIds,
    ReplayFrom,
    RunSettings,
    check_max_dead_letters,
    check_messages,
    check_only_dead_letters,
    message_ids,
    replay_from,
    run_settings,
)
from acker_redis.spark.runs.run_result import OnProgress, RunResult, progress_of, result_of
from acker_redis.spark.runtime.interrupts import quiet_interrupts, told
from acker_redis.spark.runtime.jobs import reading_ids
from acker_redis.spark.runtime.sessions import steady_splits
from acker_redis.spark.runtime.worker_errors import own_errors
from acker_redis.spark.sinks.output_modes import Output, check_output
from acker_redis.spark.sinks.replaced_sources import WrittenTables
from acker_redis.spark.sources.file_places import FilePlaces
from acker_redis.spark.sources.files import check_outside
from acker_redis.spark.worker.keep_messages import KeepStep
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.leftover_roots import noting_error
from acker_redis.spout.loop import SpoutLoop
from acker_redis.spout.offset_file import OffsetFile
from acker_redis.spout.retry import RetryPolicy
from acker_redis.spout.spout import Spout
from acker_redis.store.dead_letter import FROM_RUN, DeadLetter, DeadLetterFilter
from acker_redis.store.lane_leases import Lease, is_of_held_lane
from acker_redis.store.payloads import Payloads
from acker_redis.store.selected_letters import SelectedLetters

_T = TypeVar("_T")

SAVE_SECS = 1.0
"""Shortest interval between two writes of the offset file, which is also written at the end."""


def run_tracked(
    messages: DataFrame,
    pipeline: Pipeline,
    *,
    acker: Acker,
    ids: str | MessageIds | None = None,
    replay: ReplayFrom | None = None,
    retry: RetryPolicy | None = None,
    output: Output = "by_message",
    max_dead_letters: float | None = None,
    stop_if_broken: bool = True,
    dead_letter_bytes: int = 0,
    only_dead_letters: DeadLetterFilter | None = None,
    once: Once | None = None,
    max_spout_pending: int | None = None,
    emit_timeout_secs: float | None = None,
    run_id: str | None = None,
    spout_id: int = 0,
    executor_url: str | None = None,
    on_messages_done: Callable[[Int64Array], object] | None = None,
    progress: OnProgress | None = None,
) -> RunResult:
    """Run a pipeline over a DataFrame until every message is acked or a dead letter.

        result = run_tracked(orders, pipeline, acker=acker, ids="order", retry=RetryPolicy(max_attempts=3))
        print(result.counts)

    Each row is a message. Messages that fail or time out are emitted again.

    Guarantee: when this returns, every message was either acked, so everything derived from it was written, or is in
    `RunResult.dead_letters` and in the app's dead-letter stream. Not guaranteed: that work is done only once. Sinks have to
    be idempotent by message, except with `once`.

    Args:
        messages: one row per message. It must return the same rows each time it is computed, as files do. Failed messages
            are read from it again, unless you set `replay`.
        pipeline: function that is called once per emission with a tracker and the tracked messages. It must run its sinks
            before it returns. Where it writes must not depend on how messages are spread over emissions. If one of your
            functions writes files itself, put `tracker.run_id` and `tracker.emission` in their names, so that a replay
            adds to them.
        acker: acker of this process, which receives the outcomes.
        ids: name of an integer column with message ids, distinct and not null; or `MessageIds.offsets(...)`, which derives
            them from partition and offset, and can keep the progress. None: ids are derived from the columns `file` and
            `row` of `read_files`.
        replay: source from which failed messages are read again; see `ReplayFrom`. None: `messages`.
        retry: policy for emitting again; see `RetryPolicy`. An attempt counts only against a message that can be to blame:
            its own row failed, another application failed it, it was exported and timed out, or a job failed that
            processed it alone.
        output: `by_message` or `whole`. With `by_message`, the output belongs to the messages of one emission: sinks
            append, groups are partial, and failed messages are written later without the others. With `whole`, the output
            is made of all acked messages and replaces the previous one, so sinks overwrite. Nothing is written before
            every frame of an emission is computed and proven without a failure. Failed messages are retried alone until
            each succeeds or is a dead letter, then the whole is written. If there were messages and all are dead letters,
            or more than `max_dead_letters`, nothing is written. `whole` can't be combined with an `offset_file`,
            `max_spout_pending`, export, or a `replay` from elsewhere than the source.
        max_dead_letters: largest number of dead letters with which an output `whole` is written, as an int; or their share
            of all messages, as a float from 0.0 to below 1.0. The run ends with `OutputNotWrittenError` once there are more.
            None: half of the messages. Only for `whole`.
        stop_if_broken: whether to end with `OperatorBrokenError` after 20 messages failed with an exception that the
            pipeline doesn't declare, in an operator that has processed none. With `by_message`, the run completes all other
            messages first if a sink has got rows. False: such exceptions count as attempts from the first one, as they do
            if the source has fewer than 20 messages. It is also whether to end with an error, and to dead-letter no message
            for failed jobs, if no message has come through in this run. Records of `read_files` that can't be read count as
            messages that failed with such an exception.
        dead_letter_bytes: longest message that a dead letter keeps as JSON, in bytes, at most 1 MiB; 0: only its id.
        only_dead_letters: filter of the dead letters of one run, such as `DeadLetterFilter(run_id="orders-of-monday")`, whose
            messages are run with all attempts. Other messages are left out. A letter is deleted once its message was acked or
            has a new letter, so running again after a crash is safe. Only letters of this `spout_id` that exist at the start
            count, and their ids must belong to the same messages as in the run that wrote them. Letters stay if `messages`
            lacks their message, if a spout was asked to replay them, if they are `unwritten`, or if their message is a record
            of Kafka. `RunResult.letters_left` counts them. It can't be combined with `once`, output `whole` or an
            `offset_file`. None: all messages are run.
        once: log that decides which messages' rows are in the tables, so that these have the rows of one attempt of each;
            see `Once`. Sinks are `write` of files, in append mode. None: a replay writes the rows of its messages again. It
            can't be combined with output `whole` or an `offset_file`, nor with Spark Connect.
        max_spout_pending: limit on messages in flight. None: no limit.
        emit_timeout_secs: time after which the jobs of an emission are cancelled, in seconds. The emission is then retried
            in parts until a message whose work never ends is alone, as with a message that kills its worker. Must be
            longer than the jobs of all messages together take. Code that the pipeline runs in the driver is not
            interrupted. A job that only reads message ids has the same limit, and ends the run beyond it. None: no timeout.
        run_id: id of the run. The id of an earlier run is refused. None: a random one.
        spout_id: owner of the roots; see `Spout`.
        executor_url: URL of the acker's server for executors, if theirs differs from this process's. Executors use it only
            for exports and with `ReplayFrom.redis`. One executor tries it before anything is emitted.
        on_messages_done: function that is called with the ids of messages that were acked or are kept as dead letters. If
            it raises, it is called again with the same ids, up to twice; then the run ends. With `once`, it is called for
            messages that earlier runs have done, too, because they may have ended before they could.
        progress: function that is called several times a second with a `Progress`.

    Raises:
        PipelineError: a column is missing or has a type that Python workers can't receive; `_corrupt_record` of
            `read_files` is missing; or another job may give the message ids to other rows, as those of
            `monotonically_increasing_id` behind a shuffle. Nothing was emitted. Or message ids are null or not distinct.
            Nothing was acked, but the first emission may have been written.
        BadConfigError: a setting is out of range or of the wrong type; the offset file belongs to another app or source, is
            in use, or is inside the source's folder; an executor can't reach the acker with `executor_url`; or `run_id`
            belongs to an earlier run. Nothing was emitted.
        InexactPipelineError: the messages can't be read again; the pipeline ran no sink or leaves rows without one; or rows
            were dropped or copied by other means than the tracker's operators. Nothing was acked.
        OperatorBrokenError: see `stop_if_broken`. Nothing was dead-lettered because of it.
        FencedError: with `once`, a newer run or a person on call writes to the log.
        LogLostError: with `once`, a table has rows that the log doesn't know. Nothing was written.
        FilesNotMovedError: with `once`, files with accepted rows are gone, or stand where they shouldn't. Nothing more was
            acked.
        OutputNotWrittenError: with output `whole`, each of `max_attempts + 2` emissions of all remaining messages had a
            failure, or every message or more than `max_dead_letters` are dead letters, so the output would be empty or lack
            most rows. Nothing was acked. The previous output is still there, unless a writer has broken it.
        AckerError: same as `run_spout`. The library's own errors keep their type if a Python worker raised them.
        Exception: the pipeline function raised it in the driver. The run ends at once, and no message loses an attempt.
            Connection and timeout errors don't end the run: it waits for their end for up to ten minutes. With output
            `whole`, another error of a sink is retried with the whole if another sink has begun to write. Mistakes, such as
            a NameError or an AnalysisException, end the run all the same.
    """
    settings = run_settings(
        "run_tracked", pipeline, acker=acker, executor_url=executor_url, spout_id=spout_id, retry=retry,
        stop_if_broken=stop_if_broken, emit_timeout_secs=emit_timeout_secs, max_spout_pending=max_spout_pending,
        dead_letter_bytes=dead_letter_bytes, on_messages_done=on_messages_done, progress=progress,
    )  # fmt: skip
    notify = None if on_messages_done is None else with_retries(on_messages_done, "on_messages_done")
    try:
        return run_dataframe(
            messages, pipeline, settings, message_ids("run_tracked", ids), replay_from("run_tracked", replay), run_id, output,
            None if notify is None else lambda done, _: notify(done), progress, max_dead_letters, only_dead_letters,
            learns_ids=True, once=check_once("run_tracked", once),
        )  # fmt: skip
    except KeyboardInterrupt as exc:
        raise told(exc, acker.config.app) from None
    except BadConfigError as exc:
        if is_of_held_lane(exc):
            raise exc.with_traceback(None) from None
        raise


def run_dataframe(
    messages: DataFrame,
    pipeline: Pipeline,
    settings: RunSettings,
    ids: MessageIds,
    replay: ReplayFrom,
    run_id: str | None,
    output: Output,
    on_done: Callable[[Int64Array, Spout], object] | None,
    progress: OnProgress | None,
    max_dead_letters: float | None = None,
    only_dead_letters: DeadLetterFilter | None = None,
    *,
    learns_ids: bool = False,
    once: Once | None = None,
) -> RunResult:
    """Run a pipeline with checked settings.

    `on_done` is called with message ids and the spout, which knows the dead letters among them. `learns_ids` says whether the
    first emission may begin before the ids are read, which pays if they are a range. `once` names the log that has each
    message's rows once.
    """
    started = time.monotonic()
    acker, offsets, letter_bytes = settings.acker, ids.offset_file, settings.dead_letter_bytes
    check_messages(messages)
    check_output(output)
    check_max_dead_letters(max_dead_letters, output)
    check_only_dead_letters(only_dead_letters, output, ids)
    if output == "whole":
        _check_whole(ids, replay, settings)
    if once is not None:
        if only_dead_letters is not None:
            raise BadConfigError(
                "only_dead_letters can't be combined with once=. By its log these messages are dead, so they would be acked "
                "without running. Pass Once(..., reopen_dead=True), which runs all dead messages of the source again."
            )
        check_ids(once, ids.id_column, is_stream=False)
        given = {'output="whole"': output == "whole", "an offset_file": offsets is not None}
        check_session(messages.sparkSession, given)
    checks.check_column_names(messages.columns, "run_tracked")
    check_corrupt_records(messages)
    keeps = replay.max_bytes > 0
    url = settings.url(messages.sparkSession, is_needed=keeps)
    messages, column = with_message_ids(messages, ids.id_column, ids.partition, ids.offset)
    numbers_rows = check_id_lineage(messages, column, "run_tracked")
    files = NumberedFiles(messages, column) if numbers_rows else None
    partition, offset = place_columns(messages.schema, ids.partition, ids.offset)
    if offsets is not None:
        check_outside(messages, partition, offsets.path)
    with (
        nullcontext() if offsets is None else offsets.open(acker.config.app, partition, offset),
        steady_splits(messages.sparkSession) if numbers_rows else nullcontext(),
    ):
        claimed = run_id is not None  # a random one needs no claim
        run_id = uuid.uuid4().hex if run_id is None else run_id
        key, spark = f"{acker.config.app}:{run_id}", messages.sparkSession

        def read(source: Callable[[], _T]) -> _T:
            def read_once() -> _T:
                with own_errors(), reading_ids(spark, key, settings.emit_timeout_secs):
                    return source()

            return patiently(read_once, settings.retry.outage_secs)

        if offsets is not None:
            messages = read(partial(not_done, messages, offsets, partition, offset))
        kept = app_of(acker).payloads(run_id) if keeps else None
        keeping = KeepStep(str(url), acker.config, run_id, replay.max_bytes) if keeps else None
        source = RunMessages(messages, column, letter_bytes, kept, keeping, replay.fetch_messages)
        spout = Spout(
            acker, run_id, settings.spout_id, settings.retry, settings.max_spout_pending,
            payload=source.payloads if letter_bytes else None,
            place=None if ids.id_column is not None else FilePlaces.of(messages, partition, offset),
            # Payloads in Redis go with their dead letters. A single message can't be added to an output written as a whole.
            replay=None if keeps or output == "whole" or once is not None else _ids_of_letters, replays_from=FROM_RUN,
        )  # fmt: skip
        completed = _CompletedMessages(spout, offsets, kept, on_done)
        once_output: OnceOutput | None = None
        spout.on_done = completed.done
        with noting_error(acker, spout.lane, run_id, settings.spout_id, line_of):
            if only_dead_letters is not None:
                with _holding(app_of(acker).lease(lane=spout.lane, run_id=run_id)):
                    letters = app_of(acker).selected_letters(settings.spout_id, only_dead_letters)
                    spout.add(read(partial(_of_letters, source, letters)))
                completed.letters = letters
            elif once is not None:
                with _holding(app_of(acker).lease(lane=spout.lane, run_id=run_id)):
                    once_output, read_all = _opened(once, spark, spout, source, read, ids, column)
                    completed.once_letters = once_output.letters
                    is_fresh = once_output.knows_none and not once.reopen_dead
                    if is_fresh and learns_ids and may_learn_ids(messages, settings, ids, replay):
                        once_output.letters.find_old()
                        spout.state.unread = True
                    else:
                        ids_of_all = read_all()
                        if once.reopen_dead:
                            once_output.letters.reopen_dead(ids_of_all)
                        once_output.letters.find_old()
                        fresh = once_output.not_done(ids_of_all)
                        if len(fresh) < len(ids_of_all):
                            source.has_others()
                            completed.before = ids_of_all[~np.isin(ids_of_all, fresh)]
                        spout.add(fresh)
            elif learns_ids and output == "by_message" and may_learn_ids(messages, settings, ids, replay):
                spout.state.unread = True
            else:
                spout.add(read(partial(source.read_ids, offsets, partition, offset)))
            if claimed:
                app_of(acker).claim_run(run_id)
        health = OperatorHealth(everything_counts=not settings.stop_if_broken, completes_others=output == "by_message")
        if not spout.state.unread:
            health.expect(spout.state.fresh)
        whole_output = WholeOutput(spout, spout.state.fresh, max_dead_letters) if output == "whole" else None
        spout.state.one_by_one = whole_output is not None
        spout.state.stops_if_broken = settings.stop_if_broken
        runner = EmissionRunner(
            spout,
            pipeline,
            column,
            health,
            url,
            settings.emit_timeout_secs,
            whole_output,
            once_output=once_output,
            tables=WrittenTables(messages),
            files=files,
        )

        def emit(emission: Emission) -> None:
            if emission.is_unread:  # in the spout's state, the end of the run changes that
                runner.run_unread(emission, source, spark)
            else:
                runner.run(emission, source, spark)

        def between(is_emitting: bool) -> None:
            while not source.missing.empty():
                spout.exhaust(source.missing.get())
            if progress is not None:
                progress(progress_of(spout, is_emitting=is_emitting))
            if whole_output is not None:
                whole_output.check_dead_letters()
            if once_output is not None and once_output.has_published_all:
                completed.pass_on_before()

        def emit_nothing() -> None:  # an empty source still runs the pipeline, which must be correct
            with noting_error(acker, spout.lane, run_id, settings.spout_id, line_of):
                emit(spout.state.empty_emission())

        finishing = nullcontext() if once_output is None else once_output.finishing()
        with finishing, quiet_interrupts(spark), nullcontext() if whole_output is None else whole_output.naming_sinks():
            if not (spout.state.unread or spout.state.fresh) and whole_output is None and completed.letters is None:
                emit_nothing()
            with SpoutLoop(spout, inheritable_thread_target(spark)(emit)) as loop, runner.cancellation.by_interrupt():
                while not spout.done:
                    loop.step()
                    between(loop.emission is not None)
            while whole_output is not None and not whole_output.written:  # there was no message
                if whole_output.refused:
                    time.sleep(whole_output.delay_secs)
                emit_nothing()
        if once_output is not None:
            completed.pass_on_before()
        result = result_of(spout, time.monotonic() - started, completed.end())
        if once_output is not None:
            return replace(result, accepted_before=once_output.accepted_before, dead_before=once_output.dead_before)
        return result if completed.letters is None else replace(result, letters_left=completed.letters.left)


def _check_whole(ids: MessageIds, replay: ReplayFrom, settings: RunSettings) -> None:
    """Refuse settings that can't be combined with output `whole`.

    Raises:
        BadConfigError: such a setting is used.
    """
    given = {
        "an offset_file": ids.offset_file is not None,
        "max_spout_pending": settings.max_spout_pending is not None,
        "ReplayFrom.redis": replay.max_bytes > 0,
        "ReplayFrom.fetch": replay.max_bytes == 0 and replay.fetch_messages is not None,
    }
    refused = [name for name, is_given in given.items() if is_given]
    if refused:
        raise BadConfigError(
            f'output="whole" can\'t be combined with {", ".join(refused)}. The output is written once, from all messages of '
            'the run. Remove the setting, or use output="by_message".'
        )


def _opened(
    once: Once,
    spark: SparkSession,
    spout: Spout,
    source: RunMessages,
    read: Callable[[Callable[[], Any]], Any],
    ids: MessageIds,
    column: str,
) -> tuple[OnceOutput, Callable[[], Int64Array]]:
    """Open the log, which names a message by its id, or by its place. Return a function, too, of the ids of all messages."""
    if ids.id_column is not None:
        output = open_output(once, spark, spout, [column], MessageNames.of_ids)
        return output, lambda: read(source.read_all_ids)
    of_all, places = read(partial(source.read_places, ids.partition, ids.offset))
    names = NamesById(of_all, MessageNames(*places))
    return open_output(once, spark, spout, [ids.partition, ids.offset], names), lambda: of_all


@contextmanager
def _holding(lease: Lease) -> Iterator[None]:
    """Hold a lane of which the run's loop takes hold afterwards. Until then, no other run gets it."""
    try:
        lease.acquire()
        yield
    finally:
        lease.abandon()


def _of_letters(source: RunMessages, letters: SelectedLetters) -> Int64Array:
    """Read the ids of letters whose messages the source has. The other letters stay."""
    ids = letters.message_ids
    if len(ids):
        ids = source.read_ids_among(ids)
    letters.keep_only(ids)
    return ids


def _ids_of_letters(letters: list[DeadLetter]) -> list[int]:
    """Load replays for `dead_letter_replay.ReplayLoader`: the source of the run has every message."""
    return [letter.message_id for letter in letters]


class _CompletedMessages:
    """Pass completed messages on to the callback, the offset file, the payload store, and the letters that are run again.

    Attributes:
        letters: letters that are deleted with their messages; None: all messages are run.
        once_letters: letters of messages that run again, as a publish log has decided; None: there is no log.
        before: messages that an earlier run has done, and wasn't sure to have passed on.
    """

    def __init__(
        self,
        spout: Spout,
        offsets: OffsetFile | None,
        kept: Payloads | None,
        on_done: Callable[[Int64Array, Spout], object] | None,
    ) -> None:
        self._spout, self._offsets, self._kept, self._on_done = spout, offsets, kept, on_done
        self._saved_at = time.monotonic()
        self.letters: SelectedLetters | None = None
        self.once_letters: OnceLetters | None = None
        self.before = np.array([], np.int64)

    def pass_on_before(self) -> None:
        """Pass on messages that an earlier run has done. Their rows are published."""
        if self._on_done is not None and len(self.before):
            self._on_done(self.before, self._spout)
        self.before = self.before[:0]

    def done(self, message_ids: Int64Array) -> None:
        if self._on_done is not None:
            self._on_done(message_ids, self._spout)
        if self._offsets is not None:
            self._offsets.complete(message_ids)
            if time.monotonic() - self._saved_at >= SAVE_SECS:
                self._offsets.save()
                self._saved_at = time.monotonic()
        if self._kept is not None:
            self._kept.remove(message_ids.tolist())
        if self.letters is not None:
            self.letters.done(message_ids)
        if self.once_letters is not None:
            self.once_letters.delete_old(message_ids)

    def end(self) -> dict[str, int]:
        """Save for the last time. Return the completed offsets."""
        offsets = {} if self._offsets is None else self._offsets.save()
        if self._kept is not None:
            self._kept.clear()
        return offsets
