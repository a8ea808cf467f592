"""Folders and files as texts that can be compared, however a program names them."""

import os
import posixpath
import re
import uuid
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from acker_redis.spark.runtime.jvm import java_class, java_errors
from acker_redis.spark.runtime.sessions import is_connect

_roots: "WeakKeyDictionary[SparkSession, str]" = WeakKeyDictionary()
"""Session of Spark Connect -> what its server puts in front of absolute paths."""

UNREADABLE: tuple[type[Exception], ...] = (PySparkException, *java_errors())
"""Errors of Spark and its JVM."""

_LOCAL, _SCHEME = re.compile(r"^file:/*"), re.compile(r"[A-Za-z][\w+.-]*:/")


_OF_S3, _PORT_OF_HDFS = re.compile(r"^s3[an]://"), re.compile(r"^(hdfs://[^/:]+):8020(?=/|$)")
"""Other schemes of S3, and the usual port of a name node."""


def plain(path: str) -> str:
    """Return a path without the scheme of local files, without usual ports, and without trailing slashes."""
    path = _LOCAL.sub("/", path)
    path = _OF_S3.sub("s3://", path)
    path = _PORT_OF_HDFS.sub(r"\1", path)
    root = re.match(r"[A-Za-z][\w+.-]*://?", path)
    start = 0 if root is None else root.end()
    return path[:start] + posixpath.normpath(path[start:])


def qualified(session: SparkSession, path: str) -> str:
    """Return a path as Spark understands it: below its working directory, and in its default file system."""
    if is_connect(session):
        return plain(path if _SCHEME.match(path) else _of_server(session, path))
    try:
        hadoop = java_class(session.sparkContext, "org.apache.hadoop.fs.Path")(path)
        configuration = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        system = hadoop.getFileSystem(configuration)
        if str(system.getScheme()) == "viewfs":
            return plain(_behind_view(system, hadoop))
        return plain(str(system.makeQualified(hadoop).toString()))
    except UNREADABLE:  # the writer raises it, too, or its source has paths of its own
        return plain(path)


def _behind_view(system: Any, path: Any) -> str:
    """Return the path that one of ViewFS leads to. It may not exist yet."""
    below: list[str] = []
    while True:
        try:
            return posixpath.join(str(system.resolvePath(path).toString()), *reversed(below))
        except java_errors():
            if path.getParent() is None:
                return str(system.makeQualified(path).toString())
            below.append(str(path.getName()))
            path = path.getParent()


def resolved(path: str) -> str:
    """Return a plain path without symbolic links, as far as it exists on this machine."""
    return os.path.realpath(path) if path.startswith("/") else path


def is_in(path: str, folder: str) -> bool:
    """Return True if a plain path is a folder, or in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def folders_above(path: str) -> Iterator[str]:
    """Yield the folders that a plain path is in.

    >>> list(folders_above("/a/b"))
    ['/', '/a']
    """
    for at, character in enumerate(path):
        if character == "/" and at < len(path) - 1:
            yield path[:at] or "/"


def _of_server(session: SparkSession, path: str) -> str:
    """Ask a server of Spark Connect, whose error for a file that isn't there has the whole path.

    The server logs the error, so it is asked once for all absolute paths.
    """
    is_absolute = path.startswith("/")
    if is_absolute and session in _roots:
        return _roots[session] + path
    missing = uuid.uuid4().hex
    try:
        _ = session.read.format("text").load(f"{path.rstrip('/')}/{missing}").schema
    except PySparkException as exc:
        found = re.search(rf"\s({_SCHEME.pattern}.*)/{missing}", str(exc))
        if found is None:
            return path
        if is_absolute and found[1].endswith(path):
            _roots[session] = found[1].removesuffix(path)
        return found[1]
    return path
