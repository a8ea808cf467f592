"""Which frames Spark keeps the rows of, so that a test sees when one isn't released."""

from pyspark.sql import SparkSession

from acker_redis.spark.runtime.sessions import is_connect


def stored_rdds(spark: SparkSession) -> frozenset[int]:
    """Return ids of the RDDs that Spark keeps rows of. Spark Connect tells nobody, so there are none.

    Compare with `<=`: frames of earlier tests are released when they are collected, which is at any time.
    """
    if is_connect(spark):
        return frozenset()
    return frozenset(int(number) for number in spark.sparkContext._jsc.getPersistentRDDs())
