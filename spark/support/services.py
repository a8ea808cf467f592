"""Services of the demos: a server, a rotator, and programs that end with all their processes."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import redis
import typer

from acker_redis.client.client import Client
from acker_redis.errors import AckerError, ServerVersionError
from acker_redis.ops.acl import Role, ServerKind, users
from acker_redis.testing.server import server_or_url

ROOT = Path(__file__).resolve().parents[2]

ENDS_IN_SECS = 60.0
"""Time that a program has to end gracefully after Ctrl-C."""

_BEGAN = time.monotonic()


def step(text: str) -> None:
    """Print the next step, with the seconds since the start."""
    typer.echo(f"[{time.monotonic() - _BEGAN:5.1f} s] {text}")


class Place:
    """A server, and the logins of programs to it.

    On the demo's own server, each program has its own user, as printed by `acker-redis acl`. On another server, all use the
    login in ACKER_REDIS_URL.
    """

    def __init__(self, url: str, *, has_users: bool) -> None:
        """Install the functions that users without EVAL need, if the server is the demo's own."""
        self._url, self._has_users = url, has_users
        self._kind = ServerKind.FUNCTIONS
        if has_users:
            with contextlib.closing(Client(url)) as client:
                try:
                    client.install()
                except ServerVersionError:
                    self._kind = ServerKind.SCRIPTS

    def url_of(self, role: Role, app: str | None = None) -> str:
        """Create a user for a role. Return the server's URL with its login. A second call sets another password."""
        if not self._has_users:
            return self._url
        (user,) = users(app, roles=[role], kind=self._kind)
        with redis.Redis.from_url(self._url) as raw:
            raw.execute_command(*user.as_command.split())
        return self._url.replace("://", f"://{user.login}", 1)


@contextlib.contextmanager
def services(server: str | None, *, quiet: bool) -> Iterator[Place]:
    """Start a server, or use that of ACKER_REDIS_URL, and start a rotator for it."""
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
    """Start a Spark program in its own process group, so that its JVM can be ended with it.

    A JVM that is interrupted while it starts outlives its driver. URLs are passed in the environment, so the process list
    shows no passwords.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "ACKER_REDIS_URL": redis_url}
    if executor_url:
        environment["ACKER_EXECUTOR_REDIS_URL"] = executor_url
    return subprocess.Popen([sys.executable, "-m", module, *arguments], process_group=0, env=environment)


def check_arguments(program: Callable[..., object], arguments: Sequence[str]) -> None:
    """Refuse wrong options of a program before anything is started for it, and print its help if that is wanted."""
    app = typer.Typer(add_completion=False)
    app.command()(program)
    name = f"python -m {program.__module__.removesuffix('.__main__')}"
    typer.main.get_command(app).make_context(name, list(arguments))


def app_among(arguments: Sequence[str], default: str) -> str:
    """Return the app named in the options of a program."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--app", default=default)
    return str(parser.parse_known_args(arguments)[0].app)


def wait_for(*jobs: subprocess.Popen[bytes]) -> int:
    """Wait for all jobs. Return the first exit status other than 0. A failed job or Ctrl-C ends the others."""
    try:
        while not any(job.poll() for job in jobs) and any(job.poll() is None for job in jobs):
            time.sleep(0.05)
        status = next((job.returncode for job in jobs if job.returncode), 0)
    except KeyboardInterrupt:
        typer.echo("Interrupted.", err=True)
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


def until_ended(job: subprocess.Popen[bytes]) -> int:
    """Wait for a program. Ctrl-C ends it gracefully, and a second Ctrl-C at once."""
    try:
        while job.poll() is None:
            time.sleep(0.05)
    except KeyboardInterrupt:
        typer.echo("Stopping. Press Ctrl-C again to stop at once.", err=True)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            job.send_signal(signal.SIGINT)
            job.wait(timeout=ENDS_IN_SECS)
        if job.poll() is None:
            return 130
    finally:
        kill(job)  # a JVM that is interrupted while it starts outlives its driver
    return job.returncode


def kill(job: subprocess.Popen[bytes]) -> None:
    """Kill the program, its JVM and its workers (SIGKILL), as a machine failure would."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()
