"""`make demo`: a private server, a rotator beside it, and the word count on Spark between them."""

import contextlib
import os
import signal
import subprocess
import sys
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
    try:
        url, process = server_or_url(server)
    except AckerError as exc:
        typer.echo(f"error: {exc}", err=True)
        raise typer.Exit(3) from exc
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    quiet = "--json" in arguments
    if not quiet:
        typer.echo(
            f"server: {url}" if process is None else f"server: {process.program.name}, started on port {process.port}"
        )
    rotator = subprocess.Popen(
        [sys.executable, "-m", "acker_redis", "rotator", "--redis", url, "--all"],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    # A process group of its own: a JVM that is interrupted while it starts outlives its driver, and is ended with the group.
    job = subprocess.Popen([sys.executable, str(HERE / "word_count.py"), "--redis", url, *arguments], process_group=0)
    try:
        status = job.wait()
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        status = 130
        job.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            job.wait(timeout=10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    finally:
        rotator.send_signal(signal.SIGTERM)
        rotator.wait(timeout=30)
        if process is not None:
            process.stop()
    raise typer.Exit(status)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(main)
    app()
