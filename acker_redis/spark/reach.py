"""Whether executors reach the acker by the URL they are given: looked at before anything is emitted.

They would find out by themselves, each after all of its retries, and again at every attempt of a task.
"""

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from acker_redis.acker import Acker, generation_at
from acker_redis.config import AckerConfig
from acker_redis.errors import AckerError, BadConfigError

_reached: set[tuple[str, AckerConfig]] = set()


def check_url(session: SparkSession, url: str, acker: Acker) -> None:
    """An executor, which is this process where Spark runs in it, asks for the app by the URL; once per URL and app.

    Raises:
        BadConfigError: the URL is malformed, or leads nowhere, or to a server or database without this app.
        ConnectionLostError: the acker itself is not reached any more.
    """
    if (url, acker.config) in _reached:
        return
    local = _runs_here(session)
    where = "Spark's workers" if local else "the executors"
    if local:
        (found,) = _ask(url, acker.config, iter(()))
    else:
        asked = session.range(1, numPartitions=1).mapInArrow(partial(_ask, url, acker.config), _REPLY).toArrow()
        found = asked.to_batches()[0]
    generation, refusal = (column.to_pylist()[0] for column in found.columns)
    same = acker.holds(generation)
    if refusal is not None:
        raise BadConfigError(f"url: {where} can't use it: {refusal}. Give the server as {where} reach it")
    if not same:
        raise BadConfigError(
            f"url leads {where} to another server or database than `acker`: app {acker.config.app!r} is not the same there. "
            "Give both the same one, though perhaps under another address"
        )
    _reached.add((url, acker.config))


_REPLY = "generation binary, refusal string"


def _ask(url: str, config: AckerConfig, _: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What is found by the URL. An error is an answer, too: Spark would try a task that raises again and again."""
    generation, refusal = None, None
    try:
        generation = generation_at(url, config)
    except AckerError as exc:
        refusal = str(exc)
    names = ["generation", "refusal"]
    yield pa.RecordBatch.from_arrays([pa.array([generation], pa.binary()), pa.array([refusal], pa.string())], names)


def _runs_here(session: SparkSession) -> bool:
    """Whether the workers run on this machine, in this application's own process: `local[...]`."""
    if getattr(session, "_jsparkSession", None) is None:  # Spark Connect
        return False
    master = str(session.sparkContext.master)
    return master.startswith("local") and not master.startswith("local-cluster")
