"""Tracked DataFrames for PySpark.

This package requires pyspark, pandas and pyarrow. No other part of the library does. Each package below imports only from
those before it:

    protocol    columns, shares and encodings shared by the driver and the Python workers
    runtime     Spark and its JVM: versions, jobs, worker errors
    worker      code that runs in Python workers
    proof       the expected sum of a frame's shares, Spark's counts, and explanations for a difference
    sources     messages from files and dead letters
    operators   functions from frames to frames that preserve the sum of shares
    sinks       proven actions, and when and how they may write
    tracker     the operators and sinks that a pipeline uses
    emission    one emission: its messages, its roots in the ledger, the run of the pipeline
    runs        entry points: run_tracked, run_exported, run_redis_stream, run_kafka, check_pipeline
    streaming   entry points for streams: TrackedBatches, its query, and its parked messages
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from acker_redis.errors import FencedError, LogLostError
from acker_redis.spark.runtime.version import check_pyspark

if TYPE_CHECKING:
    from acker_redis.spark.emission.messages import with_message_id
    from acker_redis.spark.emission.pipeline_run import Pipeline
    from acker_redis.spark.runs.check_pipeline import PipelineCheck, check_pipeline
    from acker_redis.spark.runs.dataframe import run_tracked
    from acker_redis.spark.runs.exported import run_exported
    from acker_redis.spark.runs.kafka import run_kafka
    from acker_redis.spark.runs.once import Once
    from acker_redis.spark.runs.options import MessageIds, ReplayFrom
    from acker_redis.spark.runs.redis_stream import run_redis_stream
    from acker_redis.spark.runs.run_result import Progress, RunResult
    from acker_redis.spark.runtime.environment import JavaNotFoundError, prepare_environment
    from acker_redis.spark.runtime.shipping import ship
    from acker_redis.spark.sources.dead_letters import read_dead_letters
    from acker_redis.spark.sources.files import read_files
    from acker_redis.spark.streaming.stream_status import StreamStatus
    from acker_redis.spark.streaming.tracked_batches import TrackedBatches
    from acker_redis.spark.tracker import Tracker
    from acker_redis.spark.worker.arrow_function import FlatMapOutput
    from acker_redis.spark.worker.postgres import postgres
    from acker_redis.spark.worker.row_function import Collector

__all__ = [
    "Collector",
    "FencedError",
    "FlatMapOutput",
    "JavaNotFoundError",
    "LogLostError",
    "MessageIds",
    "Once",
    "Pipeline",
    "PipelineCheck",
    "Progress",
    "ReplayFrom",
    "RunResult",
    "StreamStatus",
    "TrackedBatches",
    "Tracker",
    "check_pipeline",
    "postgres",
    "prepare_environment",
    "read_dead_letters",
    "read_files",
    "run_exported",
    "run_kafka",
    "run_redis_stream",
    "run_tracked",
    "ship",
    "with_message_id",
]

_MODULES = {
    "Collector": "worker.row_function",
    "FlatMapOutput": "worker.arrow_function",
    "JavaNotFoundError": "runtime.environment",
    "MessageIds": "runs.options",
    "Once": "runs.once",
    "Pipeline": "emission.pipeline_run",
    "PipelineCheck": "runs.check_pipeline",
    "Progress": "runs.run_result",
    "ReplayFrom": "runs.options",
    "RunResult": "runs.run_result",
    "StreamStatus": "streaming.stream_status",
    "TrackedBatches": "streaming.tracked_batches",
    "Tracker": "tracker",
    "check_pipeline": "runs.check_pipeline",
    "postgres": "worker.postgres",
    "prepare_environment": "runtime.environment",
    "read_dead_letters": "sources.dead_letters",
    "read_files": "sources.files",
    "run_exported": "runs.exported",
    "run_kafka": "runs.kafka",
    "run_redis_stream": "runs.redis_stream",
    "run_tracked": "runs.dataframe",
    "ship": "runtime.shipping",
    "with_message_id": "emission.messages",
}

check_pyspark()


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that workers skip the driver's modules."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
