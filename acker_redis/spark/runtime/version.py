"""Which PySpark this works with; what it uses of Spark's inside changes from version to version."""

from acker_redis.errors import SparkVersionError

SUPPORTED = ("4.3",)
"""As in pyproject.toml."""


def check_pyspark() -> None:
    """See whether the PySpark that is installed is supported.

    Raises:
        SparkVersionError: it is not, or there is none.
    """
    wanted = " or ".join(SUPPORTED)
    try:
        from pyspark import __version__ as found
    except ModuleNotFoundError as exc:
        raise SparkVersionError(
            f"acker_redis.spark needs PySpark {wanted}, and {exc.name} is not installed: pip install 'acker-redis[spark]'"
        ) from exc
    if not found.startswith(tuple(f"{one}." for one in SUPPORTED)):
        raise SparkVersionError(
            f"acker_redis.spark needs PySpark {wanted}, and this is {found}: pip install 'pyspark=={SUPPORTED[-1]}.*'"
        )
