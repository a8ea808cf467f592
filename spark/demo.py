"""`make demo`: a private server, a rotator beside it, and the word count on Spark between them."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from acker_redis.errors import AckerError
from acker_redis.server import server_or_url

HERE = Path(__file__).resolve().parent


def main(
    context: typer.Context,
    server: Annotated[
        str | None, typer.Option(help="Server program to start, such as redis-server; default: the embedded Valkey.")
    ] = None,
) -> None:
    """Run the word count with everything it needs. Further options are word_count.py's own: see --help-word-count."""
    arguments = ["--help" if argument == "--help-word-count" else argument for argument in context.args]
    with services(server, quiet="--json" in arguments) as url:
        status = wait_for(start(str(HERE / "word_count.py"), "--redis", url, *arguments))
    raise typer.Exit(status)


@contextlib.contextmanager
def services(server: str | None, *, quiet: bool) -> Iterator[str]:
    """A server, or the one ACKER_REDIS_URL names, with a rotator beside it; gives its URL."""
    try:
        url, process = server_or_url(server)
    except AckerError as exc:
        typer.echo(f"error: {exc}", err=True)
        raise typer.Exit(3) from exc
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not quiet:
        typer.echo(
            f"server: {url}" if process is None else f"server: {process.program.name}, started on port {process.port}"
        )
    rotator = subprocess.Popen(
        [sys.executable, "-m", "acker_redis", "rotator", "--redis", url, "--all"],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield url
    finally:
        rotator.send_signal(signal.SIGTERM)
        rotator.wait(timeout=30)
        if process is not None:
            process.stop()


def start(*arguments: str) -> subprocess.Popen[bytes]:
    """Start a Spark program in a process group of its own, so that its JVM can be ended with it.

    A JVM that is interrupted while it starts outlives its driver.
    """
    return subprocess.Popen([sys.executable, *arguments], process_group=0)


def wait_for(job: subprocess.Popen[bytes]) -> int:
    """The program's exit status; Ctrl-C ends it with all that it started."""
    try:
        return job.wait()
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        job.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            job.wait(timeout=10)
        kill(job)
        return 130


def kill(job: subprocess.Popen[bytes]) -> None:
    """End the program, its JVM and its workers at once (SIGKILL), as a machine that stops would."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(main)
    app()
