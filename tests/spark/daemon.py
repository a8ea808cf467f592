"""Spark's own daemon of Python workers, with imported what each worker would import anew: many tests end theirs."""

import pandas  # noqa: F401
import pyarrow.parquet  # noqa: F401
from pyspark import daemon

import acker_redis.spark.worker.bolt  # noqa: F401
import tests.spark.cases
import tests.spark.faults  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
