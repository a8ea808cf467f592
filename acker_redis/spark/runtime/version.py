"""Check the version of PySpark, or of pyspark-client, which has the same modules without a JVM.

The Spark internals used here change between versions.
"""

from acker_redis.errors import SparkVersionError
from acker_redis.extras import install_hint

SUPPORTED = ("4.0", "4.1", "4.2", "4.3")
RANGE = ">=4.0,<4.4"
"""The same for pip, as in pyproject.toml."""


def check_pyspark() -> None:
    """Check that PySpark is installed in a supported version.

    Raises:
        SparkVersionError: it is missing, or of another version.
    """
    wanted = f"PySpark {SUPPORTED[0]} to {SUPPORTED[-1]}"
    try:
        from pyspark import __version__ as installed
    except ModuleNotFoundError as exc:
        raise SparkVersionError(
            f"{exc.name} is not installed. acker_redis.spark needs {wanted}. {install_hint('spark')} A client of Spark "
            "Connect needs the extra `connect` instead."
        ) from exc
    if installed.startswith(tuple(f"{version}." for version in SUPPORTED)):
        return
    is_older = int(installed.partition(".")[0]) < int(SUPPORTED[0].partition(".")[0])
    why = "Older ones lack Python data sources and DataFrame.toArrow" if is_older else "No other one was tried"
    raise SparkVersionError(
        f"PySpark {installed} is installed, but acker_redis.spark needs {wanted}. {why}. "
        f"Run `pip install 'pyspark{RANGE}'`."
    )
