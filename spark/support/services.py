"""What the demos need beside Spark: a server and a rotator, and programs that end with all that they have started."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import redis
import typer

from acker_redis.client.client import Client
from acker_redis.errors import AckerError, ServerVersionError
from acker_redis.ops.acl import Role, ServerKind, users
from acker_redis.testing.server import server_or_url

ROOT = Path(__file__).resolve().parents[2]


_BEGAN = time.monotonic()


def step(text: str) -> None:
    """Print what is done next, and how many seconds after the beginning."""
    typer.echo(f"[{time.monotonic() - _BEGAN:5.1f} s] {text}")


class Place:
    """Give programs a server and their logins to it.

    On a server of the demo's own each program is a user of its own, with what `acker-redis acl` prints for it; on
    another, all log in as ACKER_REDIS_URL says.
    """

    def __init__(self, url: str, *, has_users: bool) -> None:
        """Load the functions that let users do without EVAL, where the server is the demo's own."""
        self._url, self._has_users = url, has_users
        self._kind = ServerKind.FUNCTIONS
        if has_users:
            with contextlib.closing(Client(url)) as client:
                try:
                    client.install()
                except ServerVersionError:
                    self._kind = ServerKind.SCRIPTS

    def url_of(self, role: Role, app: str | None = None) -> str:
        """Make a user of this role, and give the server's URL with its login; a second one gets another password."""
        if not self._has_users:
            return self._url
        (user,) = users(app, roles=[role], kind=self._kind)
        with redis.Redis.from_url(self._url) as raw:
            raw.execute_command(*user.as_command.split())
        return self._url.replace("://", f"://{user.login}", 1)


@contextlib.contextmanager
def services(server: str | None, *, quiet: bool) -> Iterator[Place]:
    """Start a server, or take the one ACKER_REDIS_URL names, with a rotator beside it."""
    try:
        url, process = server_or_url(server)
        place = Place(url, has_users=process is not None)
    except AckerError as exc:
        typer.echo(f"error: {exc}", err=True)
        raise typer.Exit(3) from exc
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not quiet:
        step(f"server: {url}" if process is None else f"server: {process.program.name}, started on port {process.port}")
    rotator = subprocess.Popen(
        [sys.executable, "-m", "acker_redis", "rotator", "--all"],
        env={**os.environ, "ACKER_REDIS_URL": place.url_of(Role.ROTATOR)},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield place
    finally:
        rotator.send_signal(signal.SIGTERM)
        rotator.wait(timeout=30)
        if process is not None:
            process.stop()


def start(module: str, *arguments: str, redis_url: str, executor_url: str = "") -> subprocess.Popen[bytes]:
    """Start a Spark program in a process group of its own, so that its JVM can be ended with it.

    A JVM that is interrupted while it starts outlives its driver. URLs go by the environment: passwords don't show in
    the list of processes there.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "ACKER_REDIS_URL": redis_url}
    if executor_url:
        environment["ACKER_EXECUTOR_REDIS_URL"] = executor_url
    return subprocess.Popen([sys.executable, "-m", module, *arguments], process_group=0, env=environment)


def app_among(arguments: Sequence[str], default: str) -> str:
    """Find the app that options of a program name."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--app", default=default)
    return str(parser.parse_known_args(arguments)[0].app)


def wait_for(*jobs: subprocess.Popen[bytes]) -> int:
    """Wait until all have ended; give the first exit status that is not 0. One that fails, and Ctrl-C, end the others."""
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
