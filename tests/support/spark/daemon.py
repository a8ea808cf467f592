"""Spark's own daemon of Python workers, with imported what each worker would import anew: many tests end theirs.

PySpark comes from where it is installed: of a zip file or jar on its path each worker reads the directory again, and
compiles what it imports.
"""

import gc
import sys

ARCHIVES = (".zip", ".jar")

sys.path[:] = [path for path in sys.path if not path.endswith(ARCHIVES)]
for path in [path for path in sys.path_importer_cache if path.endswith(ARCHIVES)]:
    del sys.path_importer_cache[path]

import pandas  # noqa: E402, F401
import pyarrow.parquet  # noqa: E402, F401
import pytest  # noqa: E402, F401
from pyspark import daemon  # noqa: E402

import acker_redis.spark.worker.arrow_function  # noqa: E402, F401
import tests.support.spark.cases  # noqa: E402
import tests.support.spark.faults  # noqa: E402, F401

if __name__ == "__main__":
    gc.freeze()  # a worker collects after each task, and looks through all of these: a tenth of a second each time
    daemon.manager()
