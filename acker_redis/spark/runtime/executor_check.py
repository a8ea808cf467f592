"""Check that executors reach the acker by their URL, before anything is emitted.

Without the check, each executor would fail only after all of its retries, and again at every attempt of a task.
"""

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from acker_redis import errors
from acker_redis.acker import Acker, app_of
from acker_redis.errors import AckerError, BadConfigError, ServerUnavailableError
from acker_redis.ledger.shards import generation_at
from acker_redis.model.config import AckerConfig
from acker_redis.spark.runtime.sessions import is_connect

_checked: set[tuple[str, AckerConfig]] = set()


def check_url(spark: SparkSession, url: str | None, acker: Acker) -> str:
    """Return the URL after a check that an executor finds the app by it.

    One executor is asked, once per URL. In local mode, the check runs in this process.

    Raises:
        BadConfigError: there is no URL, because a fake server exists in this process only; or the URL is malformed, or
            rejected, or leads to a server or database without this app.
        ServerUnavailableError: there was no answer for as long as an outage is waited out; or the acker itself can't be
            reached any more.
    """
    if url is None:
        raise BadConfigError("The acker has no URL that executors could reach it by. Connect it to a server.")
    if (url, acker.config) in _checked:
        return url
    local = _runs_here(spark)
    where = "Spark's workers" if local else "the executors"
    if local:
        (reply,) = _reply_to(url, acker.config, iter(()))
    else:
        replies = spark.range(1, numPartitions=1).mapInArrow(partial(_reply_to, url, acker.config), _REPLY).toArrow()
        reply = replies.to_batches()[0]
    generation, error, text = (column.to_pylist()[0] for column in reply.columns)
    if error is not None:
        kind: type[AckerError] = getattr(errors, error)
        if issubclass(kind, ServerUnavailableError):
            raise kind(
                f"The server is unavailable to {where}. If they reach it by another address, pass that as executor_url. "
                f"The error was: {text}"
            )
        raise BadConfigError(
            f"executor_url doesn't work for {where}. Pass the address by which they reach the server. "
            f"The error was: {text}"
        )
    if not app_of(acker).shards.holds(generation):
        raise BadConfigError(
            f"executor_url leads {where} to another server or database than acker: app {acker.config.app!r} is a different "
            "one there. Point both at the same server and database, if need be by different addresses."
        )
    _checked.add((url, acker.config))
    return url


_REPLY = "generation binary, error string, text string"


def _reply_to(url: str, config: AckerConfig, _: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the generation that the URL leads to, or the error.

    The error is returned, because Spark would retry a task that raises.
    """
    generation, error, text = None, None, None
    try:
        generation = generation_at(url, config)
    except AckerError as exc:
        error, text = type(exc).__name__, str(exc)
    columns = [pa.array([generation], pa.binary()), pa.array([error], pa.string()), pa.array([text], pa.string())]
    yield pa.RecordBatch.from_arrays(columns, ["generation", "error", "text"])


def _runs_here(spark: SparkSession) -> bool:
    """Return True if the workers run on this machine, started by this process: `local[...]`."""
    if is_connect(spark):
        return False
    master = str(spark.sparkContext.master)
    return master.startswith("local") and not master.startswith("local-cluster")
