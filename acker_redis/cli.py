"""The command line: `acker-redis rotator`, `stats`, `inspect`, `dead-letters`, `apps`.

Exit status: 0 well, 1 unhealthy or not found, 2 wrong usage, 3 the server can't be used.
"""

import json
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated

import typer

from acker_redis import rotator as rotation_process
from acker_redis.acker import Acker
from acker_redis.apps import apps, stored_config
from acker_redis.client import Client
from acker_redis.dead_letters import DeadLetters
from acker_redis.errors import AckerError, BadConfigError, BadIdError
from acker_redis.health import OF_THE_APP
from acker_redis.health import check as check_health

UNHEALTHY, USAGE, SERVER = 1, 2, 3

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,  # help texts hold brackets, as in [/db]
    add_completion=False,
    help="Storm's acker on Redis: run the rotator, look at ledgers.",
    epilog="Exit status: 0 well, 1 unhealthy or not found, 2 wrong usage, 3 the server can't be used.",
)

Url = Annotated[
    str, typer.Option("--redis", envvar="ACKER_REDIS_URL", help="redis://[[user]:password@]host[:port][/db]")
]
OneApp = Annotated[str, typer.Option("--app", envvar="ACKER_APP", help="Name of the app.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
_DEFAULT_URL = "redis://127.0.0.1:6379/0"


@app.command()
def rotator(
    redis: Url = _DEFAULT_URL,
    app_names: Annotated[
        list[str] | None, typer.Option("--app", envvar="ACKER_APPS", help="App to rotate; may be given several times.")
    ] = None,
    all_apps: Annotated[bool, typer.Option("--all", help="Rotate every app found on the server.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Don't rotate: say whether the apps are rotated in time, and exit 0 or 1.")
    ] = False,
) -> None:
    """Tick and drain until SIGTERM or Ctrl-C. Any number of copies may run."""
    names = app_names or []
    if bool(names) == all_apps:
        raise typer.BadParameter("name apps with --app NAME, or give --all for every app on the server")
    if check:
        with _errors():
            found = check_health(redis, names)
        for health in found:
            typer.echo(f"{health.app}: {health.text}")
        if not found:
            typer.echo("no apps on this server")
        raise typer.Exit(0 if all(health.healthy for health in found) else UNHEALTHY)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    process = rotation_process.Rotator(redis, names)
    rotation_process.log.info("rotator started for %s", ", ".join(names) or "all apps")
    try:
        with _errors():
            process.run(stop)
    finally:
        process.close()
    rotation_process.log.info("rotator stopped")


@app.command()
def stats(app_name: OneApp, redis: Url = _DEFAULT_URL, as_json: AsJson = False) -> None:
    """Print an app's counters."""
    with _errors(), Acker.attach(redis, app_name) as acker:
        values = acker.stats()._asdict()
    _print(values, as_json)


@app.command()
def inspect(
    root: Annotated[
        str,
        typer.Argument(
            help="Root id: decimal, or 16 hex digits as in the fail stream (put 0x before all-decimal ones)."
        ),
    ],
    app_name: OneApp,
    redis: Url = _DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Print what the ledger holds of one root; put -- before a negative id."""
    with _errors(), Acker.attach(redis, app_name) as acker:
        record = acker.inspect(_parse_root(root))
    if record is None:
        typer.echo(f"root {root} is not in the ledger: never seen here, or settled, or expired", err=True)
        raise typer.Exit(UNHEALTHY)
    _print(record._asdict(), as_json)


@app.command(name="dead-letters")
def dead_letters(
    app_name: OneApp,
    redis: Url = _DEFAULT_URL,
    count: Annotated[int, typer.Option("--count", min=1, help="At most so many, the oldest first.")] = 100,
    delete: Annotated[bool, typer.Option("--delete", help="Delete those that were printed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print messages that were given up after their last attempt; with --json one object per line."""
    with _errors(), closing(Client(redis)) as client:
        stored_config(client, app_name)
        stream = DeadLetters(client, app_name)  # in none of the shards, so it is there if some of them are not
        letters = stream.read(count)
        for letter in letters:
            payload = letter.payload.decode(errors="replace") if letter.payload is not None else None
            _print(letter._replace(payload=None)._asdict() | {"payload": payload}, as_json)
            if not as_json:
                typer.echo("")
        if delete:
            stream.delete(letter.entry_id for letter in letters)
        left = stream.count()
    typer.echo(f"{len(letters)} printed{' and deleted' if delete else ''}, {left} in the stream", err=True)


@app.command(name="apps")
def list_apps(redis: Url = _DEFAULT_URL) -> None:
    """List the apps on a server."""
    with _errors():
        client = Client(redis)
        try:
            for name in apps(client):
                typer.echo(name)
        finally:
            client.close()


def main() -> None:
    """Entry point of the `acker-redis` program."""
    app()


def _parse_root(text: str) -> int:
    try:
        hexadecimal = text.startswith("0x") or (len(text) == 16 and not text.lstrip("-").isdecimal())
        return int(text, 16 if hexadecimal else 10)
    except ValueError as exc:
        raise BadIdError(f"root {text!r}: give a decimal 64-bit integer, or 16 hex digits") from exc


def _print(values: dict[str, object], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(values))
        return
    width = max(map(len, values))
    for name, value in values.items():
        typer.echo(f"{name:<{width}}  {'-' if value is None else value}")


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (BadConfigError, BadIdError) as exc:
        typer.echo(f"error: {exc}", err=True)
        raise typer.Exit(USAGE) from exc
    except OF_THE_APP as exc:
        typer.echo(f"error: {exc}", err=True)
        raise typer.Exit(UNHEALTHY) from exc
    except AckerError as exc:
        typer.echo(f"error: {exc}", err=True)
        raise typer.Exit(SERVER) from exc
