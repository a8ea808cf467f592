"""Tracked DataFrames for PySpark. Needs pyspark, pandas and pyarrow; nothing else of the library does."""

from acker_redis.spark.environment import JavaNotFoundError, prepare_environment
from acker_redis.spark.files import read_files
from acker_redis.spark.operators import Emitted
from acker_redis.spark.redis_stream import run_stream
from acker_redis.spark.rows import Collector
from acker_redis.spark.run import each_batch, run_tracked
from acker_redis.spark.tracked import Tracker, Written

__all__ = [
    "Collector",
    "Emitted",
    "JavaNotFoundError",
    "Tracker",
    "Written",
    "each_batch",
    "prepare_environment",
    "read_files",
    "run_stream",
    "run_tracked",
]
