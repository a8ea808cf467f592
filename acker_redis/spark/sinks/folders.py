"""Folders and files as texts that can be compared, however a program names them."""

import os
import posixpath
import re
import uuid

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from acker_redis.spark.runtime.jvm import java_class, java_errors
from acker_redis.spark.runtime.sessions import is_connect

_LOCAL, _SCHEME = re.compile(r"^file:/*"), re.compile(r"[A-Za-z][\w+.-]*:/")


def plain(path: str) -> str:
    """Return a path without the scheme of local files, and without trailing slashes."""
    path = _LOCAL.sub("/", path)
    root = re.match(r"[A-Za-z][\w+.-]*://?", path)
    start = 0 if root is None else root.end()
    return path[:start] + posixpath.normpath(path[start:])


def qualified(session: SparkSession, path: str) -> str:
    """Return a path as Spark understands it: below its working directory, and in its default file system."""
    if is_connect(session):
        return plain(path if _SCHEME.match(path) else _of_server(session, path))
    hadoop = java_class(session.sparkContext, "org.apache.hadoop.fs.Path")(path)
    try:
        configuration = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        return plain(str(hadoop.getFileSystem(configuration).makeQualified(hadoop).toString()))
    except java_errors():  # the writer raises it, too
        return plain(path)


def resolved(path: str) -> str:
    """Return a plain path without symbolic links, as far as it exists on this machine."""
    return os.path.realpath(path) if path.startswith("/") else path


def overlap(folder: str, other: str) -> bool:
    """Return True if two plain paths are the same, or one is in the other."""
    return _contains(folder, other) or _contains(other, folder)


def _contains(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _of_server(session: SparkSession, path: str) -> str:
    """Ask a server of Spark Connect, whose error for a file that isn't there has the whole path."""
    missing = uuid.uuid4().hex
    try:
        _ = session.read.format("text").load(f"{path.rstrip('/')}/{missing}").schema
    except PySparkException as exc:
        found = re.search(rf"\s({_SCHEME.pattern}.*)/{missing}", str(exc))
        return path if found is None else found[1]
    return path
