"""Runs of a pipeline over topics of Kafka, whose offsets are committed once everything derived from them is done."""

import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Literal

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from acker_redis.acker import Acker, app_of
from acker_redis.errors import BadConfigError
from acker_redis.kafka.consumer import check_group, consumer_settings, subscription
from acker_redis.kafka.group_member import GroupMember
from acker_redis.kafka.letter_topic import LetterTopic
from acker_redis.kafka.record_reader import RecordReader
from acker_redis.model.config import check_finite
from acker_redis.outages import Outages
from acker_redis.spark.emission.operator_health import OperatorHealth
from acker_redis.spark.emission.pipeline_run import Pipeline
from acker_redis.spark.emission.runner import EmissionRunner
from acker_redis.spark.runs.kafka_imports import KafkaImports, failing_bad_anchors
from acker_redis.spark.runs.kafka_records import IDENTITY, RECORD, KafkaRecords
from acker_redis.spark.runs.options import KafkaPolicies, check_endless, run_settings
from acker_redis.spark.runs.run_result import OnProgress, RunResult, progress_of, result_of
from acker_redis.spark.runtime.interrupts import quiet_interrupts
from acker_redis.spout.garbage import garbage_kept
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.loop import POLL_MS, SpoutLoop, log
from acker_redis.spout.retry import RetryPolicy
from acker_redis.spout.spout import Spout
from acker_redis.store.dead_letter import FROM_SOURCE
from acker_redis.store.kafka_progress import KafkaProgress
from acker_redis.store.lane_leases import hold_free_lane, holders

LETTERS = 1000
"""Number of dead letters that the spout keeps in memory."""

_FREE_SECS = 5.0
"""Interval between two looks for replays that were requested of drivers that don't run."""

_MANY = 1000
"""Number of records read at once after which the next ones are read without a wait for outcomes."""

_WAIT_SECS = 0.5
"""Time to wait for records before `stop` is checked again."""


def run_kafka(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    acker: Acker,
    kafka: Mapping[str, object],
    topics: Sequence[str] | None = None,
    pattern: str | None = None,
    group: str,
    stop: threading.Event,
    start: Literal["earliest", "latest"] = "earliest",
    on_lost: Literal["letter", "raise"] = "letter",
    on_recreated: Literal["raise", "restart"] = "raise",
    dead_letters: str | None = None,
    imports: bool = False,
    retry: RetryPolicy | None = None,
    stop_if_broken: bool = True,
    dead_letter_bytes: int = 0,
    max_spout_pending: int = 10_000,
    max_pending_bytes: int = 256 * 2**20,
    emit_timeout_secs: float | None = 600.0,
    commit_secs: float = 1.0,
    stop_wait_secs: float = 2.0,
    executor_url: str | None = None,
    progress: OnProgress | None = None,
) -> RunResult:
    """Run a pipeline over the records of Kafka topics until `stop` is set.

        run_kafka(spark, pipeline, acker=acker, kafka={"bootstrap.servers": "host:9092"}, topics=["orders"], group="billing",
                  stop=stop)

    The driver is a member of the consumer group, and no connector jar is needed. Records are read while earlier ones are in
    flight. Those read by the time the job of an emission ends make the next emission. The driver commits, per partition, the
    first offset that is not done, so the group's lag is the work that is left. Records done beyond it stand in the commit's
    metadata (at most 4 095 bytes), so a restart repeats only those that were open or not committed yet. (Storm's KafkaSpout
    commits the same offset, and repeats everything behind it.) Several processes may share a group. Each takes a free lane of
    the app, and the group spreads the partitions.

    Guarantee: a record below the committed offset, or within the runs of its metadata, was acked or is a dead letter. Not
    guaranteed: the order of records, and that attempts are counted across restarts and rebalances.

    Args:
        spark: session.
        pipeline: function that is called once per emission with a tracker and the tracked messages. These have the columns
            `topic`, `topic_id`, `partition`, `offset`, `timestamp`, `key` and `value` (binary), and `headers`
            (`array<struct<key string, value binary>>`). Topic id, partition and offset identify a record.
        acker: acker of this process, which receives the outcomes.
        kafka: settings of the client, as librdkafka names them. Those that the library sets itself are refused.
            `isolation.level` is `read_committed` unless it is set.
        topics: names of the topics. Pass these or `pattern`.
        pattern: POSIX extended regular expression of topic names, which begins with `^`. New topics are found within
            seconds.
        group: consumer group.
        stop: event to set from another thread or a signal handler. The current emission is finished first.
        start: where to begin in a topic of which the group has committed nothing: `earliest` or `latest`. It is committed
            before the first record is read. Partitions that are added later begin at their earliest record. So does a topic
            that a driver read within the last week, because its commits were deleted.
        on_lost: whether records that were deleted before they were read make a dead letter per range (`letter`), or end the
            run (`raise`).
        on_recreated: whether a topic that was deleted and created again ends the run (`raise`), or is read from its
            beginning (`restart`), whatever `start` is.
        dead_letters: topic that gets the dead letters, too: key, value and headers unchanged, with the headers of Kafka
            Connect (`__connect.errors.*`) and ours (`acker-*`). It must exist, and no `pattern` matches it. None: they are in
            Redis only.
        imports: whether the records were written by `Tracker.export_kafka` in another application of this app, for this
            group. Their messages there are acked once a record is done here, fail once it is a dead letter, and are renewed
            meanwhile. Records of which no message is pending any more are skipped and counted. Records without the header
            `acker-anchors` are processed like others. The header is hidden from the pipeline. A damaged one makes its record
            a dead letter.
        retry: policy for emitting again; see `RetryPolicy`.
        stop_if_broken: whether to end with `OperatorBrokenError` after 20 messages failed with an exception that the
            pipeline doesn't declare, in an operator that has processed none. False: such exceptions count as attempts from
            the first one.
        dead_letter_bytes: longest record that a dead letter keeps as JSON, in bytes, at most 1 MiB; 0: only its place.
        max_spout_pending: limit on records that are read and not done. They are kept in the driver's memory.
        max_pending_bytes: limit on the bytes of these records. A single larger one is read all the same.
        emit_timeout_secs: time after which the jobs of an emission are cancelled, in seconds; see `run_redis_stream`. The next
            emission waits for them, so a job that never returns would stop the group. None: no timeout.
        commit_secs: time between commits, in seconds.
        stop_wait_secs: time to wait for records in flight after `stop`, in seconds. The rest is read again at the next start.
        executor_url: URL of the acker's server for executors, if theirs differs from this process's.
        progress: function that is called several times a second with a `Progress`.

    Raises:
        BadConfigError: a setting is out of range, of the wrong type, or the library's own; no lane of the app is free; or an
            executor can't reach the acker with `executor_url`. With `imports`, also: a topic is exported for another group,
            or the app has only one lane.
        PipelineError: confluent-kafka is not installed.
        InexactPipelineError: the pipeline ran no sink, or rows were dropped or copied by other means than the tracker's
            operators.
        OperatorBrokenError: see `stop_if_broken`. Nothing was dead-lettered because of it.
        AckerError: a server was unreachable for too long, or lost its data; the brokers refuse the member; or see `on_lost`
            and `on_recreated`.
        Exception: the pipeline function raised it in the driver.
    """
    started = time.monotonic()
    settings = run_settings(
        "run_kafka", pipeline, acker=acker, executor_url=executor_url, spout_id=0, retry=retry,
        stop_if_broken=stop_if_broken, emit_timeout_secs=emit_timeout_secs, max_spout_pending=max_spout_pending,
        dead_letter_bytes=dead_letter_bytes, progress=progress,
    )  # fmt: skip
    if max_spout_pending is None:
        raise BadConfigError(
            "run_kafka: max_spout_pending=None is no limit, and records would fill the memory. Set one."
        )
    policies = KafkaPolicies(on_lost, on_recreated, start, group, dead_letter_bytes, max_pending_bytes)
    names = subscription("run_kafka", topics, pattern)
    check_group("run_kafka", group)
    for name, secs in {"commit_secs": commit_secs, "stop_wait_secs": stop_wait_secs}.items():
        check_finite(name, secs)
    if dead_letters is not None and (not isinstance(dead_letters, str) or dead_letters in names):
        raise BadConfigError(
            f"run_kafka: dead_letters={dead_letters!r} is no topic for dead letters. Letters that are read again would never "
            "end. Pass the name of another topic, or None."
        )
    client = consumer_settings(kafka, group, unread=None if pattern is None else dead_letters)
    url = settings.url(spark)
    if not isinstance(imports, bool):
        raise BadConfigError(f"run_kafka: imports={imports!r} is not a bool. Set it to True or False.")
    imported = KafkaImports(acker, group, names) if imports else None
    check_endless("run_kafka", spark, stop)
    letter_topic = None if dead_letters is None else LetterTopic(kafka, dead_letters)
    run_id = uuid.uuid4().hex
    with ExitStack() as stack:
        lane, lease = hold_free_lane(
            app_of(acker).client, acker.config.app, acker.config.lanes, run_id, last_first=imports
        )
        stack.callback(lease.abandon)
        safety = KafkaProgress(app_of(acker).client, acker.config.app, group)
        records = KafkaRecords(spark, policies, safety, RecordReader(client), letter_topic, imported)
        spout = Spout(
            acker, run_id, lane, settings.retry, payload=records.payloads if dead_letter_bytes else None,
            place=records.places, on_letters=records.written, on_done=records.done, keep_letters=LETTERS, goes_on=True,
            replay=records.load_replays, replays_from=FROM_SOURCE, identify=records.identify,
        )  # fmt: skip
        member = GroupMember(client, names, start, records, commit_secs, records.known_id)
        stack.callback(member.close)
        records.spout, records.member = spout, member
        health = OperatorHealth(
            everything_counts=not stop_if_broken, goes_on=True, max_open=max_spout_pending,
            max_attempts=settings.retry.max_attempts,
        )  # fmt: skip
        tracked = failing_bad_anchors(pipeline) if imports else pipeline
        runner = EmissionRunner(spout, tracked, RECORD, health, url, emit_timeout_secs, shown_id=IDENTITY)

        def emit(emission: Emission) -> None:
            runner.run(emission, records, spark)

        emits = inheritable_thread_target(spark)(emit)
        with quiet_interrupts(spark), SpoutLoop(spout, emits) as loop, runner.cancellation.by_interrupt():
            lease.abandon()  # the loop holds the lane
            _run(loop, spout, records, stop, max_spout_pending, stop_wait_secs, progress)
        if letter_topic is not None:
            letter_topic.close(stop_wait_secs)
        records.secure()
        records.has_ended = True
    return replace(result_of(spout, time.monotonic() - started), skipped=records.skipped)


def _run(
    loop: SpoutLoop,
    spout: Spout,
    records: KafkaRecords,
    stop: threading.Event,
    max_open: int,
    stop_wait_secs: float,
    progress: OnProgress | None,
) -> None:
    end: float | None = None
    look_at = float("-inf")
    while True:
        if stop.is_set():
            if end is None or loop.emission is not None:
                end = time.monotonic() + stop_wait_secs
            elif not spout.pending or time.monotonic() > end:
                return
        room = 0 if end is not None else max(0, max_open - spout.state.left)
        with garbage_kept():
            count = records.read(room, 0.0 if spout.state.left else _WAIT_SECS)
        if count and spout.state.poison_search.is_stuck:
            loop.hurry()  # new messages may show which one is poison
        records.member.commit()
        if time.monotonic() > look_at:
            look_at = time.monotonic() + _FREE_SECS
            Outages(log).wait_for(lambda: spout.take_over_replays(_free_lanes(spout)))
        with garbage_kept():
            loop.step(POLL_MS if spout.state.left and count < _MANY else 0, may_emit=end is None)
        records.secure()
        records.publish()
        records.renew()
        if progress is not None:
            now = progress_of(spout, is_emitting=loop.emission is not None)
            progress(replace(now, skipped=records.skipped))


def _free_lanes(spout: Spout) -> list[int]:
    lanes = range(spout.acker.config.lanes)
    held = holders(app_of(spout.acker).client, spout.acker.config.app, lanes)
    return [lane for lane in lanes if lane not in held]
