"""Run a pipeline over a DataFrame, until every message was acked or is a dead letter."""

import time
import uuid
from collections.abc import Callable
from contextlib import nullcontext

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame

from acker_redis.acker import Acker, app_of
from acker_redis.errors import BadConfigError
from acker_redis.model.arrays import Int64Array
from acker_redis.spark.emission.corrupt_records import check_corrupt_records
from acker_redis.spark.emission.evidence import MANY_FAILED, OperatorEvidence
from acker_redis.spark.emission.messages import RunMessages, not_done, with_message_ids
from acker_redis.spark.emission.runner import EmissionRunner, Pipeline
from acker_redis.spark.emission.whole_output import WholeOutput
from acker_redis.spark.protocol import arguments
from acker_redis.spark.runs.callbacks import with_retries
from acker_redis.spark.runs.options import MessageIds, ReplayFrom, RunSettings, message_ids, replay_from, run_settings
from acker_redis.spark.runs.run_result import OnProgress, RunResult, progress_of, result_of
from acker_redis.spark.runtime.jobs import described
from acker_redis.spark.runtime.worker_errors import own_errors
from acker_redis.spark.sinks.output_modes import Output, check_output
from acker_redis.spark.sources.files import check_outside
from acker_redis.spark.worker.keep_messages import KeepStep
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.leftover_roots import noting_error
from acker_redis.spout.loop import run_spout
from acker_redis.spout.offset_file import OffsetFile
from acker_redis.spout.retry import RetryPolicy
from acker_redis.spout.spout import Spout
from acker_redis.store.dead_letter import FROM_RUN, DeadLetter
from acker_redis.store.payloads import Payloads

SAVE_SECS = 1.0
"""Offsets are written at most so often, and at the end."""


def run_tracked(
    messages: DataFrame,
    pipeline: Pipeline,
    *,
    acker: Acker,
    ids: str | MessageIds | None = None,
    replay: ReplayFrom | None = None,
    retry: RetryPolicy | None = None,
    output: Output = "by_message",
    stop_if_all_fail: bool = True,
    dead_letter_bytes: int = 0,
    max_spout_pending: int | None = None,
    emit_timeout_secs: float | None = None,
    run_id: str | None = None,
    spout_id: int = 0,
    executor_url: str | None = None,
    on_messages_done: Callable[[Int64Array], object] | None = None,
    progress: OnProgress | None = None,
) -> RunResult:
    """Put every row of a DataFrame through a pipeline, again where it fails or times out, until none is left.

        result = run_tracked(orders, pipeline, acker=acker, ids="order", retry=RetryPolicy(max_attempts=3))
        print(result.counts)

    Guarantee: when this returns, each message was acked, so that everything derived from it was written, or is in
    `RunResult.dead_letters` and the app's dead-letter stream. Not guaranteed: that its work was done once; sinks have to be
    idempotent by message.

    Args:
        messages: one row per message. Has to give the same rows whenever it is computed, as files do; a failed message is
            read from it again, unless `replay` says otherwise.
        pipeline: called once per emission with a tracker and the tracked messages; has to run its sinks before it returns.
            What it writes to must not depend on how messages are spread over emissions. Files that a function writes itself
            carry `tracker.run_id` and `tracker.emission` in their names, so that a replay adds to them.
        acker: of this process, which takes the outcomes.
        ids: integer column of message ids, distinct and not null; or `MessageIds.offsets(...)`, which makes them of
            partition and offset, and may note what is done. None: of the `file` and `row` of `read_files`.
        replay: where failed messages are read again from; see `ReplayFrom`. None: from `messages`.
        retry: when to emit again; see `RetryPolicy`. An attempt counts only against a message that can be to blame: its own
            row failed, another application failed it, it was exported and timed out, or a job failed that had it alone.
        output: `by_message`: what is written belongs to the messages of an emission, so sinks append, groups are
            partial, and failed messages are written later without the others. `whole`: it is made of all messages that
            are acked, and replaces what was there, so sinks overwrite. Nothing is written before every frame of an
            emission was computed and proven and nothing in it failed; failed messages are tried again alone, until each
            comes through or is a dead letter, and then the whole. Where there were messages and each is a dead letter,
            nothing is written. It goes with no progress of offsets, `max_spout_pending`, `replay` from elsewhere than
            the source, or export.
        stop_if_all_fail: end with `OperatorBrokenError` where 20 messages failed by an exception that the pipeline does not
            declare, in an operator that has processed none. False: such exceptions count as an attempt from the first on, as
            they do where the source has fewer than 20 messages.
        dead_letter_bytes: a dead letter keeps its message, as JSON, if it is not longer; 0: its id only. At most 1 MiB.
        max_spout_pending: at most so many messages in flight.
        emit_timeout_secs: the jobs of an emission are cancelled after so long, and it goes out again in parts, until a message
            whose work never ends is alone, as with one that kills its worker. Has to be longer
            than the jobs of all messages together take; what the pipeline does in the driver is not ended. None: never.
        run_id: unique per run: one that an earlier run had is refused; None: a random one.
        spout_id: owner of the roots; see `Spout`.
        executor_url: the acker's server as executors reach it, where that is not as this process does. Executors speak to it
            in exports, and with `ReplayFrom.redis`, only; one is asked before anything is emitted.
        on_messages_done: called with the ids of messages that were acked or are kept as dead letters. Where it raises it is
            called again with the same ids, twice; then the run ends.
        progress: called several times a second with a `Progress`.

    Raises:
        PipelineError: no such column or one of a type that Python workers can't have, or message ids are null or not
            distinct, or `_corrupt_record` of `read_files` was left out; nothing was emitted.
        BadConfigError: a setting is out of range or of another type; the offsets are another app's or source's, in use, or
            inside the source's folder; an executor does not find the acker by `executor_url`; an earlier run had this
            run id. Nothing was emitted.
        NotExactError: the messages can't be read again, or the pipeline ran no sink, leaves rows without one, or drops or
            copies rows otherwise than by the tracker's operators. Nothing was acked.
        OperatorBrokenError: see `stop_if_all_fail`; nothing was dead-lettered for it.
        NotAcceptedError: the output is a whole, and in `max_attempts + 2` emissions of all messages that were left something
            failed; or every message is a dead letter, so that the output would be empty. Nothing was acked, and what
            was there before is there, unless a writer has broken it.
        AckerError: as `run_spout`. An error of the library's own in a Python worker is raised as what it was there.
        Exception: what the pipeline function raised in the driver: it ends the run at once, and counts as nobody's attempt.
            Connection and timeout errors don't: they are waited for, for up to ten minutes.
    """
    settings = run_settings(
        "run_tracked", pipeline, acker=acker, executor_url=executor_url, spout_id=spout_id, retry=retry,
        stop_if_all_fail=stop_if_all_fail, emit_timeout_secs=emit_timeout_secs, max_spout_pending=max_spout_pending,
        dead_letter_bytes=dead_letter_bytes, on_messages_done=on_messages_done, progress=progress,
    )  # fmt: skip
    notify = None if on_messages_done is None else with_retries(on_messages_done, "on_messages_done")
    return run_dataframe(
        messages, pipeline, settings, message_ids("run_tracked", ids), replay_from("run_tracked", replay), run_id, output,
        None if notify is None else lambda done, _: notify(done), progress,
    )  # fmt: skip


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
) -> RunResult:
    """Run a pipeline with checked settings; `on_done` is given the spout, too, which knows what is a dead letter."""
    started = time.monotonic()
    acker, offsets, letter_bytes = settings.acker, ids.progress, settings.dead_letter_bytes
    if not isinstance(messages, DataFrame):
        raise BadConfigError(f"messages={messages!r:.100} is no DataFrame: give one, with a row per message")
    check_output(output)
    if output == "whole":
        _check_whole(ids, replay, settings)
    arguments.check_column_names(messages.columns, "run_tracked")
    check_corrupt_records(messages)
    keeps = replay.max_bytes > 0
    url = settings.url(messages.sparkSession, is_needed=keeps)
    messages, column = with_message_ids(messages, ids.id_column, ids.partition, ids.offset)
    if offsets is not None:
        check_outside(messages, ids.partition, offsets.path)
    with nullcontext() if offsets is None else offsets.open(acker.config.app, ids.partition, ids.offset):
        if offsets is not None:
            messages = not_done(messages, offsets, ids.partition, ids.offset)
        claimed = run_id is not None  # a random one needs no claim
        run_id = uuid.uuid4().hex if run_id is None else run_id
        kept = app_of(acker).payloads(run_id) if keeps else None
        keeping = KeepStep(str(url), acker.config, run_id, replay.max_bytes) if keeps else None
        source = RunMessages(messages, column, letter_bytes, kept, keeping, replay.fetch_messages)
        spout = Spout(
            acker, run_id, settings.spout_id, settings.retry, settings.max_spout_pending,
            payload=source.payloads if letter_bytes else None,
            # What is kept in Redis goes with its dead letter; one message can't be added to an output that is a whole.
            replay=None if keeps or output == "whole" else _ids_of_letters, replays_from=FROM_RUN,
        )  # fmt: skip
        completed = _CompletedMessages(spout, offsets, kept, on_done)
        spout.on_done = completed.done
        with noting_error(acker, spout.lane, run_id, settings.spout_id):
            with own_errors(), described(messages.sparkSession, f"message ids of {acker.config.app}:{run_id}"):
                spout.add(source.read_ids(offsets, ids.partition, ids.offset))
            if claimed:
                app_of(acker).claim_run(run_id)
        evidence = OperatorEvidence(everything_counts=not settings.stop_if_all_fail or spout.state.fresh < MANY_FAILED)
        whole_output = WholeOutput(spout) if output == "whole" else None
        spout.state.one_by_one = whole_output is not None
        runner = EmissionRunner(
            spout,
            pipeline,
            column,
            evidence,
            url,
            settings.emit_timeout_secs,
            whole_output,
            letter_bytes,
            source.failed_payloads,
        )
        spark = messages.sparkSession

        def emit(emission: Emission) -> None:
            runner.run(emission, source, spark)

        def between(is_emitting: bool) -> None:
            while not source.missing.empty():
                spout.exhaust(source.missing.get())
            if progress is not None:
                progress(progress_of(spout, is_emitting=is_emitting))

        def emit_nothing() -> None:  # what the pipeline does of nothing is still done, and has to be right
            with noting_error(acker, spout.lane, run_id, settings.spout_id):
                emit(spout.state.empty_emission())

        if not spout.state.fresh and whole_output is None:
            emit_nothing()
        run_spout(spout, inheritable_thread_target(spark)(emit), between)
        if whole_output is not None and not whole_output.written:
            with noting_error(acker, spout.lane, run_id, settings.spout_id):
                whole_output.check_some_left()
        while whole_output is not None and not whole_output.written:  # there was no message
            if whole_output.refused:
                time.sleep(whole_output.delay_secs)
            emit_nothing()
        return result_of(spout, time.monotonic() - started, completed.end())


def _check_whole(ids: MessageIds, replay: ReplayFrom, settings: RunSettings) -> None:
    """Refuse settings that an output which is a whole can't have.

    Raises:
        BadConfigError: one was given.
    """
    given = {
        "progress of offsets": ids.progress is not None,
        "max_spout_pending": settings.max_spout_pending is not None,
        "ReplayFrom.redis": replay.max_bytes > 0,
        "ReplayFrom.fetch": replay.max_bytes == 0 and replay.fetch_messages is not None,
    }
    refused = [name for name, is_given in given.items() if is_given]
    if refused:
        raise BadConfigError(
            f'output="whole" goes without {", ".join(refused)}: it is written once, of all messages of this run. '
            "Leave it out, or write by message"
        )


def _ids_of_letters(letters: list[DeadLetter]) -> list[int]:
    """See `dead_letter_replay.ReplayLoader`: the source of the run has them all."""
    return [letter.message_id for letter in letters]


class _CompletedMessages:
    """Pass on which messages are done."""

    def __init__(
        self,
        spout: Spout,
        offsets: OffsetFile | None,
        kept: Payloads | None,
        on_done: Callable[[Int64Array, Spout], object] | None,
    ) -> None:
        self._spout, self._offsets, self._kept, self._on_done = spout, offsets, kept, on_done
        self._saved_at = time.monotonic()

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

    def end(self) -> dict[str, int]:
        """Save for the last time; give the completed offsets."""
        offsets = {} if self._offsets is None else self._offsets.save()
        if self._kept is not None:
            self._kept.clear()
        return offsets
