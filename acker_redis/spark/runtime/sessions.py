"""The two kinds of Spark sessions."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from acker_redis.errors import BadConfigError
from acker_redis.spark.runtime.jvm import java_static

_versions: "WeakKeyDictionary[SparkSession, str]" = WeakKeyDictionary()
_keys: "WeakKeyDictionary[SparkSession, str]" = WeakKeyDictionary()

_steadied: Counter[str] = Counter()
"""Key of a session -> blocks of `steady_splits` that are under way in it, and share a setting."""

_steadying = threading.Lock()

_SPLITS, _LEAVES = "spark.sql.files.minPartitionNum", "spark.sql.leafNodeDefaultParallelism"
"""Settings of the number of parts into which Spark splits files. The first one wins."""


def is_connect(session: SparkSession) -> bool:
    """Return True for a session of Spark Connect, which has no JVM in this process."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def version_of(session: SparkSession) -> str:
    """Return the version of Spark that runs a session: over Spark Connect, that of its server."""
    if session not in _versions:
        _versions[session] = session.version
    return _versions[session]


def key_of(session: SparkSession) -> str:
    """Return the id of a session, which all Python objects for the session share."""
    if session not in _keys:
        _keys[session] = session.session_id if is_connect(session) else _uuid(session)  # type: ignore[attr-defined]
    return _keys[session]


def in_session(frame: DataFrame, session: SparkSession) -> DataFrame:
    """Return a frame with a known object for its session, if it is the same session.

    PySpark makes another object for each micro-batch of a classic session. What was asked about the known one need not be
    asked again.
    """
    if is_connect(session) or _uuid(frame.sparkSession) != key_of(session):
        return frame
    kind: Any = type(frame)
    same: DataFrame = kind(frame._jdf, session)  # noqa: SLF001
    return same


def _uuid(session: SparkSession) -> str:
    return str(session._jsparkSession.sessionUUID())  # noqa: SLF001


def parallelism(session: SparkSession) -> int:
    """Return how many tasks use the cluster well: its cores. Spark Connect doesn't name them, so those of a shuffle there."""
    if is_connect(session):
        return int(session.conf.get("spark.sql.shuffle.partitions") or 1)
    return int(session.sparkContext.defaultParallelism)


@contextmanager
def steady_splits(session: SparkSession) -> Iterator[None]:
    """Keep the number of parts into which Spark splits small files. It follows the cores that there are when it plans a job.

    So rows that are numbered in the order of the parts keep their numbers while executors come and go.
    """
    if is_connect(session):
        yield
        return
    key = key_of(session)
    with _steadying:
        is_ours = key in _steadied or session.conf.get(_SPLITS, None) is None
        if is_ours and not _steadied[key]:
            parts = session.conf.get(_LEAVES, None) or str(session.sparkContext.defaultParallelism)
            session.conf.set(_SPLITS, parts)
        if is_ours:
            _steadied[key] += 1
    try:
        yield
    finally:
        with _steadying:
            if is_ours:
                _steadied[key] -= 1
            if is_ours and not _steadied[key]:
                del _steadied[key]
                session.conf.unset(_SPLITS)


def set_required(session: SparkSession, key: str, value: str) -> None:
    """Set a setting without which Spark may lose counts.

    Raises:
        BadConfigError: the session doesn't let it be set. Nothing was emitted.
    """
    try:
        session.conf.set(key, value)
        refusal = None if session.conf.get(key, "") == value else "it kept its value"
    except PySparkException as exc:
        refusal = str(exc).partition("\n")[0]
    if refusal is not None:
        raise BadConfigError(
            f"The session refused {key}={value} ({refusal}). Without it, Spark may lose the counts that prove which rows were "
            "written, so nothing was emitted. Set it where the cluster or the server is configured, or use another kind of "
            "compute."
        )


def activate(session: SparkSession) -> None:
    """Make a session the active one of this thread. A classic session looks there for Python data sources."""
    if is_connect(session):
        session._set_default_and_active_session(session)  # type: ignore[attr-defined]  # noqa: SLF001  # 4.0 doesn't inherit it
    else:
        java = session._jsparkSession  # noqa: SLF001
        java_static(session.sparkContext, "org.apache.spark.sql.classic.SparkSession", "setActiveSession")(java)
