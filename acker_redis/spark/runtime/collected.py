"""How much the tasks of a job may send to the driver."""

import re

from pyspark.sql import SparkSession

from acker_redis.spark.runtime.sessions import is_connect

_RESPONSE_BYTES = 128 << 20
"""Largest response of Spark Connect. All metrics of a request are in one."""

_PART = 4
"""One part is for the failures of one operator. The others are for other operators of the same stage, and for rows."""

_PARTITIONS = {
    "spark.sql.shuffle.partitions": "200",
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "1",
    "spark.sql.files.minPartitionNum": "1",
    "spark.default.parallelism": "1",
}
"""Settings that make partitions -> their defaults."""

_SIZE = re.compile(r"(\d+)([bkmgtp]?)b?", re.IGNORECASE)
_DEFAULT_BYTES = 1 << 30


def collected_bytes_per_task(session: SparkSession) -> int:
    """Return how many bytes the failures of one operator may take in one task.

    If every task of a stage collects so much, a job stays below `spark.driver.maxResultSize`, which would end it.
    """
    limit = _bytes(session.conf.get("spark.driver.maxResultSize", "1g") or "1g") or _DEFAULT_BYTES
    if is_connect(session):
        limit = min(limit, _RESPONSE_BYTES)
    partitions = max(int(session.conf.get(key, default) or 1) for key, default in _PARTITIONS.items())
    return limit // _PART // partitions


def _bytes(size: str) -> int:
    """Read a size such as `1g` or `512m`; 0, also for no limit, if it is none."""
    found = _SIZE.fullmatch(size.strip())
    return int(found[1]) << 10 * "bkmgtp".index(found[2].lower() or "b") if found else 0
