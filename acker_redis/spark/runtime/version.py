"""Check the version of PySpark; the internals of Spark that are used here change between versions."""

from acker_redis.errors import SparkVersionError

SUPPORTED = ("4.3",)
"""As in pyproject.toml."""


def check_pyspark() -> None:
    """Refuse a PySpark that is not supported.

    Raises:
        SparkVersionError: it is not, or there is none.
    """
    wanted = " or ".join(SUPPORTED)
    try:
        from pyspark import __version__ as installed
    except ModuleNotFoundError as exc:
        raise SparkVersionError(
            f"acker_redis.spark needs PySpark {wanted}, and {exc.name} is not installed: pip install 'acker-redis[spark]'"
        ) from exc
    if not installed.startswith(tuple(f"{version}." for version in SUPPORTED)):
        raise SparkVersionError(
            f"acker_redis.spark needs PySpark {wanted}, and this is {installed}: pip install 'pyspark=={SUPPORTED[-1]}.*'"
        )
