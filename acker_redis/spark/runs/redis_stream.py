"""Runs of a pipeline over a Redis stream, whose entries are acknowledged once everything derived from them is done."""

import json
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession

from acker_redis.acker import Acker
from acker_redis.client.client import Client
from acker_redis.client.replies import Fields
from acker_redis.errors import BadConfigError
from acker_redis.model import ids
from acker_redis.model.arrays import Int64Array
from acker_redis.model.config import check_finite
from acker_redis.outages import Outages
from acker_redis.spark.emission.messages import MESSAGE_ID, as_json, id_of
from acker_redis.spark.emission.operator_health import OperatorHealth
from acker_redis.spark.emission.pipeline_run import Pipeline
from acker_redis.spark.emission.runner import EmissionRunner
from acker_redis.spark.runs.options import check_endless, run_settings
from acker_redis.spark.runs.redis_group import RedisGroup
from acker_redis.spark.runs.run_result import OnProgress, RunResult, progress_of, result_of
from acker_redis.spark.runtime.interrupts import quiet_interrupts
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.loop import POLL_MS, SpoutLoop, log
from acker_redis.spout.retry import RetryPolicy
from acker_redis.spout.spout import Spout
from acker_redis.store.dead_letter import FROM_SOURCE, DeadLetter
from acker_redis.store.lane_leases import is_of_held_lane

ENTRY_ID = "entry_id"
"""Column with the id of the stream entry."""

LETTERS = 1000
"""Number of dead letters that the spout of a stream keeps in memory."""

_SEQUENCE_BITS = 16


def run_redis_stream(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    acker: Acker,
    source: str,
    stream: str,
    fields: Sequence[str],
    group: str,
    consumer: str,
    stop: threading.Event,
    retry: RetryPolicy | None = None,
    stop_if_broken: bool = True,
    dead_letter_bytes: int = 0,
    max_spout_pending: int = 10_000,
    claim_secs: float = 60.0,
    stop_wait_secs: float = 2.0,
    block_ms: int = 1000,
    emit_timeout_secs: float | None = None,
    spout_id: int = 0,
    executor_url: str | None = None,
    progress: OnProgress | None = None,
) -> RunResult:
    """Run a pipeline over the entries of a Redis stream until `stop` is set.

        run_redis_stream(spark, pipeline, source=url, stream="orders", fields=["item"], group="g", consumer="c1",
                         stop=stop, acker=acker)

    Entries are read with a consumer group. Reading goes on while earlier entries are in flight. The entries read by the time
    the job of an emission ends make the next emission. An entry is acknowledged (XACK) once it is acked or a dead letter, in
    any order, so an entry that hangs never blocks others. Several processes may share a group under different consumer
    names. The stream is not trimmed, and other groups may read it.

    Guarantee: an entry that is not acknowledged is delivered again: at once to the next process with this consumer name, or
    after `claim_secs` to another consumer of the group. Not guaranteed: that attempts are counted across restarts.

    Args:
        spark: session.
        pipeline: function that is called once per emission with a tracker and the tracked messages. These have the columns
            `entry_id` (string), `message_id`, and a string column per field. The message id is derived from the entry id:
            65 536 times its milliseconds, plus its number.
        acker: acker of this process, which receives the outcomes.
        source: URL of the server with the stream, which may be another than the acker's.
        stream: key of the stream.
        fields: names of the fields to read; null where an entry has no such field.
        group: consumer group. It is created at the beginning of the stream if it doesn't exist.
        consumer: name of this process within the group. It must be unique, and the same after a restart.
        stop: event to set from another thread or a signal handler. The current emission is finished first.
        retry: policy for emitting again; see `RetryPolicy`.
        stop_if_broken: whether to end with `OperatorBrokenError` after 20 messages failed with an exception that the
            pipeline doesn't declare, in an operator that has processed none. False: such exceptions count as attempts from
            the first one.
        dead_letter_bytes: longest message that a dead letter keeps as JSON, in bytes, at most 1 MiB; 0: only its id.
        max_spout_pending: limit on entries that are read and not done. They are kept in the driver's memory.
        claim_secs: time after which entries of another consumer that hasn't renewed its claim are taken over, in seconds.
        stop_wait_secs: time to wait for entries in flight after `stop`, in seconds. The rest is delivered again at the next
            start.
        block_ms: time to wait for new entries before `stop` is checked again, in milliseconds.
        emit_timeout_secs: time after which the jobs of an emission are cancelled, in seconds. The emission is then retried
            in parts until a message whose work never ends is alone. Must be longer than the jobs of `max_spout_pending`
            entries take. None: no timeout.
        spout_id: owner of the roots. Each process that shares the app needs its own, in its own lane.
        executor_url: URL of the acker's server for executors, if theirs differs from this process's.
        progress: function that is called several times a second with a `Progress`.

    Raises:
        BadConfigError: a setting is out of range or of the wrong type, or an executor can't reach the acker with
            `executor_url`.
        InexactPipelineError: the pipeline ran no sink, or rows were dropped or copied by other means than the tracker's
            operators.
        OperatorBrokenError: see `stop_if_broken`. Nothing was dead-lettered because of it.
        AckerError: a server was unreachable for too long, or lost its data.
        Exception: the pipeline function raised it in the driver.
    """
    started = time.monotonic()
    settings = run_settings(
        "run_redis_stream", pipeline, acker=acker, executor_url=executor_url, spout_id=spout_id, retry=retry,
        stop_if_broken=stop_if_broken, emit_timeout_secs=emit_timeout_secs, max_spout_pending=max_spout_pending,
        dead_letter_bytes=dead_letter_bytes, progress=progress,
    )  # fmt: skip
    if isinstance(fields, str) or {MESSAGE_ID, ENTRY_ID} & set(fields) or not fields:
        raise BadConfigError(
            f"fields={fields!r} is not usable. Pass a list of one or more field names, without {MESSAGE_ID!r} and "
            f"{ENTRY_ID!r}, which run_redis_stream adds."
        )
    for name, secs in {"claim_secs": claim_secs, "stop_wait_secs": stop_wait_secs}.items():
        check_finite(name, secs)
    if (
        max_spout_pending is None
        or isinstance(block_ms, bool)
        or not isinstance(block_ms, int)
        or block_ms < 1
        or not claim_secs
    ):
        raise BadConfigError(
            f"max_spout_pending={max_spout_pending!r}, block_ms={block_ms!r} and claim_secs={claim_secs!r} are not all in "
            "range. Use integers of 1 or more for the first two, and a number above 0 for claim_secs."
        )
    check_endless("run_redis_stream", spark, stop)
    url = settings.url(spark)
    client = Client(source)
    try:
        redis_group = RedisGroup(client, stream, group, consumer, claim_secs)
        open_entries = _OpenEntries(spark, redis_group, fields, dead_letter_bytes)
        spout = Spout(
            acker, uuid.uuid4().hex, settings.spout_id, settings.retry,
            payload=open_entries.payloads if dead_letter_bytes else None, on_done=open_entries.done, keep_letters=LETTERS,
            replay=open_entries.load_replays, replays_from=FROM_SOURCE, goes_on=True,
        )  # fmt: skip
        health = OperatorHealth(
            everything_counts=not stop_if_broken, goes_on=True, max_open=max_spout_pending,
            max_attempts=settings.retry.max_attempts,
        )  # fmt: skip
        runner = EmissionRunner(spout, pipeline, MESSAGE_ID, health, url, emit_timeout_secs)

        def emit(emission: Emission) -> None:
            runner.run(emission, open_entries, spark)

        emits = inheritable_thread_target(spark)(emit)
        with quiet_interrupts(spark), SpoutLoop(spout, emits) as loop, runner.cancellation.by_interrupt():
            _run(
                loop,
                spout,
                open_entries,
                stop,
                max_spout_pending,
                stop_wait_secs,
                min(block_ms, client.max_block_ms),
                progress,
            )
    except BadConfigError as exc:
        if is_of_held_lane(exc):
            raise exc.with_traceback(None) from None
        raise
    finally:
        client.close()
    return result_of(spout, time.monotonic() - started)


def _run(
    loop: SpoutLoop,
    spout: Spout,
    open_entries: "_OpenEntries",
    stop: threading.Event,
    max_open: int,
    stop_wait_secs: float,
    block_ms: int,
    progress: OnProgress | None,
) -> None:
    outages = Outages(log)
    end: float | None = None
    while True:
        outages.wait_for(open_entries.keep_claimed)  # before the read, which takes over entries whose claims are old
        if stop.is_set():
            if end is None or loop.emission is not None:
                end = time.monotonic() + stop_wait_secs
            elif not spout.pending or time.monotonic() > end:
                return
        else:
            room = max_open - spout.state.left
            if room > 0:
                wait_ms = 0 if spout.state.left else block_ms
                fresh = outages.wait_for(lambda: open_entries.read(room, wait_ms))  # noqa: B023
                spout.add(fresh)
                if len(fresh) and spout.state.poison_search.is_stuck:
                    loop.hurry()  # new messages may show which one is poison
        loop.step(POLL_MS if spout.state.left else 0, may_emit=end is None)
        if progress is not None:
            progress(progress_of(spout, is_emitting=loop.emission is not None))


class _OpenEntries:
    """Keep the entries that are read and not done, and provide them to emissions."""

    def __init__(self, spark: SparkSession, group: RedisGroup, fields: Sequence[str], dead_letter_bytes: int) -> None:
        self._spark, self._group, self._fields, self._dead_letter_bytes = spark, group, fields, dead_letter_bytes
        self._entries: dict[int, tuple[bytes, Fields]] = {}

    def read(self, count: int, block_ms: int) -> Int64Array:
        """Read entries. Return their message ids."""
        read = self._group.read(count, block_ms)
        if not read:
            return np.array([], np.int64)
        self._group.acknowledge([entry_id for entry_id, fields in read if not fields])  # deleted from the stream
        made = {_message_id(entry_id): (entry_id, fields) for entry_id, fields in read if fields}
        fresh = [message for message in made if message not in self._entries]  # a claimed entry may come again
        self._entries |= made
        return np.array(fresh, np.int64)

    def load_replays(self, letters: list[DeadLetter]) -> list[int]:
        """Load replays for `dead_letter_replay.ReplayLoader`, from the stream, else from the letter's JSON."""
        entries = {letter.message_id: _entry_id(letter.message_id) for letter in letters if letter.message_id >= 0}
        in_stream = self._group.find(list(entries.values()))
        taken = []
        for letter in letters:
            entry_id = entries.get(letter.message_id)
            fields = in_stream.get(entry_id) if entry_id is not None else None
            entry = (entry_id, fields) if entry_id is not None and fields else _from_json(letter.payload)
            if entry is not None:
                self._entries[letter.message_id] = entry
                taken.append(letter.message_id)
        return taken

    def keep_claimed(self) -> None:
        """Renew the claim to all open entries."""
        self._group.keep_claimed([entry_id for entry_id, _ in self._entries.values()])

    def done(self, message_ids: Int64Array) -> None:
        """Acknowledge completed messages, except those that were acknowledged already."""
        known = [message for message in message_ids.tolist() if message in self._entries]
        self._group.acknowledge([self._entries[message][0] for message in known])
        for message in known:
            del self._entries[message]

    def messages_of(self, emission: Emission) -> tuple[DataFrame, Emission]:
        """Return the rows of an emission, for `MessageSource`."""
        return self._frame(emission.message_ids), emission

    def keep_messages(self, emission: Emission) -> None:
        """Do nothing, as the stream and this object have all entries."""

    def payloads(self, message_ids: list[int]) -> list[bytes | None]:
        """Return entries as JSON for dead letters."""
        rows = self._frame(np.array(message_ids, np.int64))
        table = rows.select(id_of(MESSAGE_ID), as_json(self._dead_letter_bytes)).toArrow()
        by_id = dict(zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True))
        return [by_id.get(message_id) for message_id in message_ids]

    def _frame(self, message_ids: Int64Array) -> DataFrame:
        entries = [self._entries[message] for message in message_ids.tolist()]
        columns: dict[str, Any] = {
            ENTRY_ID: pa.array([entry_id.decode() for entry_id, _ in entries], pa.string()),
            MESSAGE_ID: message_ids,
        }
        for name in self._fields:
            values = [fields.get(name.encode()) for _, fields in entries]
            columns[name] = pa.array([v if v is None else v.decode(errors="replace") for v in values], pa.string())
        return self._spark.createDataFrame(pa.table(columns))


def _message_id(entry_id: bytes) -> int:
    """Derive the message id of an entry. Ids keep the entries' order; too large ones become a hash below zero."""
    ms, number = (int(part) for part in entry_id.split(b"-"))
    if ms < 1 << (63 - _SEQUENCE_BITS) and number < 1 << _SEQUENCE_BITS:
        return ms << _SEQUENCE_BITS | number
    return ids.derive(entry_id) | -1 << 63


def _entry_id(message_id: int) -> bytes:
    """Convert a message id back to the entry id."""
    return f"{message_id >> _SEQUENCE_BITS}-{message_id & ((1 << _SEQUENCE_BITS) - 1)}".encode()


def _from_json(payload: bytes | None) -> tuple[bytes, Fields] | None:
    """Read an entry from the payload of a dead letter. Its fields are those that this program reads."""
    try:
        row = json.loads(payload or b"")
        entry_id = row.pop(ENTRY_ID).encode()
    except (ValueError, KeyError, AttributeError):
        return None
    row.pop(MESSAGE_ID, None)
    return entry_id, {name.encode(): str(value).encode() for name, value in row.items() if value is not None}
