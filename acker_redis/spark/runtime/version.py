"""Check the version of PySpark.

The Spark internals used here change between versions.
"""

from acker_redis.errors import SparkVersionError

SUPPORTED = ("4.3",)
"""The same as in pyproject.toml."""


def check_pyspark() -> None:
    """Check that PySpark is installed in a supported version.

    Raises:
        SparkVersionError: it is missing, or of another version.
    """
    wanted = " or ".join(SUPPORTED)
    try:
        from pyspark import __version__ as installed
    except ModuleNotFoundError as exc:
        raise SparkVersionError(
            f"{exc.name} is not installed. acker_redis.spark needs PySpark {wanted}. Run `pip install 'acker-redis[spark]'`."
        ) from exc
    if not installed.startswith(tuple(f"{version}." for version in SUPPORTED)):
        raise SparkVersionError(
            f"PySpark {installed} is installed, but acker_redis.spark needs PySpark {wanted}. "
            f"Run `pip install 'pyspark=={SUPPORTED[-1]}.*'`."
        )
