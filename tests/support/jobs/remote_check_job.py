"""A client that is told why the workers of a remote server can't use the library: remote_check_job SERVER [PYTHON].

With PYTHON, such as 3.10, it passes for a client with that version. Prints the error.
"""

import sys

from pyspark.sql import SparkSession

from acker_redis import BadConfigError
from acker_redis.spark import ship


def main() -> None:
    server, *python = sys.argv[1:]
    spark = SparkSession.builder.remote(server).getOrCreate()
    if python:
        sys.version_info = (*map(int, python[0].split(".")), 0)  # type: ignore[assignment]
    try:
        ship(spark)
    except BadConfigError as exc:
        sys.stdout.write(f"{exc}\n")
    spark.stop()


if __name__ == "__main__":
    main()
