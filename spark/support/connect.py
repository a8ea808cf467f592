"""A server of Spark Connect as a process, from the pyspark wheel. Its clients are other processes, or this one."""

import os
import pwd
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyspark

from acker_redis.testing import wait_until
from acker_redis.testing.server import free_port

START_SECS = 120.0
"""The machine may be busy."""

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


def command(master: str, name: str, package: Path | None = None) -> list[str]:
    """Return the command that starts a server with this environment's PySpark, or with that in another folder."""
    program = (package or Path(pyspark.__path__[0])) / "bin" / "spark-submit"
    return [str(program), "--master", master, "--name", name, "--class", _CLASS]


class Server:
    """A server of Spark Connect.

    Attributes:
        url: URL for clients.
        folder: its working directory, which also gets the log.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], folder: Path, user: str | None = None) -> None:
        """Configure the server. `start` starts it.

        Args:
            command: program that starts a server in the foreground, without settings.
            env: its environment.
            folder: working directory.
            user: the server's user. None: that of this process.
        """
        self._command, self._env, self.folder, self._user = command, env, folder, user
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    @property
    def is_running(self) -> bool:
        """Return True while the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None:
            raise RuntimeError("The server is not running. Call start() first.")
        return self._process.pid

    def log(self) -> str:
        """Return the end of what the server printed."""
        return (self.folder / "connect.log").read_text(errors="replace")[-4000:]

    def start(self, **settings: str) -> None:
        """Start the server, and wait until its port answers.

        Raises:
            RuntimeError: it ended.
        """
        port = free_port()
        self.url = f"sc://127.0.0.1:{port}"
        given = {
            **settings,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
        }
        with (self.folder / "connect.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*self._command, *(word for item in given.items() for word in ("--conf", "=".join(item)))],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env, cwd=self.folder, start_new_session=True,
                user=self._user, group=None if self._user is None else pwd.getpwnam(self._user).pw_gid,
                extra_groups=None if self._user is None else [],
            )  # fmt: skip
        wait_until(lambda: not self.is_running or _answers(port), "the server of Spark Connect answers", START_SECS)
        if not self.is_running:
            raise RuntimeError(f"Spark Connect did not start: {self.log()}")

    def stop(self) -> None:
        """End the server, and its Python workers."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        _kill_group(process.pid)
        process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
