"""Spark Connect for tests: a server in a process of its own, and a session that is its client.

A process has either classic sessions or those of Connect. With pytest's option `--connect` they are those of Connect: only the
tests of the fixture `spark` run then.
"""

import gc
import os
from pathlib import Path

from pyspark.sql import SparkSession

from spark.support.connect import Server, command
from tests.support.spark import session


class ConnectSessions:
    """One session for many tests, as `session.Sessions`; another one, of another server, where the last server has ended."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self._folder, self._settings = folder, settings
        self._server: Server | None = None
        self._session: SparkSession | None = None

    @property
    def environment(self) -> dict[str, str]:
        """For programs that are to be clients of the same server."""
        assert self._server is not None
        return {"SPARK_REMOTE": self._server.url}

    def live(self) -> SparkSession:
        """The session that is there, or a new one."""
        if self._server is not None and not self._server.is_running:
            self.stop()
        if self._server is None:
            session.prepare()
            self._server = Server(command(session.MASTER, "tests"), os.environ, self._folder)
            self._server.start(**{**session.settings_in(self._folder), **self._settings})
        if self._session is None:
            self._session = SparkSession.builder.remote(self._server.url).getOrCreate()
        return self._session

    def renew(self) -> None:
        """Have another server for the tests that follow."""
        self.stop()

    def stop(self) -> None:
        """End session and server."""
        if self._session is not None:
            self._session.stop()
            self._session = None
            gc.collect()  # a session that is collected later would end requests of the next one (PySpark 4.0 to 4.2)
        if self._server is not None:
            self._server.stop()
            self._server = None
