"""What the demos need beside Spark: a server and a rotator, and programs that end with all that they have started."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import typer

from acker_redis.errors import AckerError
from acker_redis.server import server_or_url

ROOT = Path(__file__).resolve().parent.parent


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


def start(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a Spark program in a process group of its own, so that its JVM can be ended with it.

    A JVM that is interrupted while it starts outlives its driver.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments], process_group=0, env={**os.environ, "PYTHONPATH": path}
    )


def wait_for(*jobs: subprocess.Popen[bytes]) -> int:
    """Wait until all have ended; gives the first exit status that is not 0. One that fails, and Ctrl-C, end the others."""
    try:
        while not any(job.poll() for job in jobs) and any(job.poll() is None for job in jobs):
            time.sleep(0.05)
        status = next((job.returncode for job in jobs if job.returncode), 0)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        status = 130
    with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        left = [job for job in jobs if job.poll() is None]
        for job in left:
            job.send_signal(signal.SIGINT)
        for job in left:
            job.wait(timeout=10)
    if status == 130 or any(job.poll() is None for job in jobs):
        for job in jobs:
            kill(job)
    return status


def kill(job: subprocess.Popen[bytes]) -> None:
    """End the program, its JVM and its workers at once (SIGKILL), as a machine that stops would."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()
