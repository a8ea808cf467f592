"""Spark's own daemon of Python workers, with imported what each worker would import anew: many tests end theirs."""

from pyspark import daemon

import tests.spark.cases
import tests.spark.faults  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
