"""The command `acker-redis server`."""

import signal
import socket
import threading
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from acker_redis.cli import output
from acker_redis.cli.exit_status import exit_on_error
from acker_redis.client.client import Client
from acker_redis.errors import BadConfigError
from acker_redis.testing.server import Server, find_program


def server(
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of 127.0.0.1 to listen on. 0 means a free one.")
    ] = 6379,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", file_okay=False, help="Folder that keeps the data. Default: none, the data is lost."),
    ] = None,
) -> None:
    """Run the Valkey of the extra `demo` until SIGTERM or Ctrl-C, for first steps and tests.

    It listens on this machine only, without a password, and has the scripts and reports as functions.
    """
    with exit_on_error():
        _check_free(port)
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        options = () if folder is None else ("--appendonly", "yes")
        with Server(find_program(), *options, folder=folder, port=port or None) as started:
            with closing(Client(started.url)) as client:
                client.install()
            output.line(f"server started, end it with Ctrl-C url={started.url}")
            stop.wait()


def _check_free(port: int) -> None:
    """Check that no server listens at a port. It would be taken for the one that is started here.

    Raises:
        BadConfigError: the port is in use.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as exc:
            raise BadConfigError(
                f"Port {port} of 127.0.0.1 can't be used ({exc}). Use the server that listens there, or another --port."
            ) from exc
