"""The commands of its own: `rotator`, `stats`, `inspect`, `apps`, `evict`, `install`; and those of the other modules."""

import importlib.metadata
import signal
import sys
import threading
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated

import typer

from acker_redis.acker import Acker
from acker_redis.cli import acl, dead_letters, help_pages, observe, operate, output
from acker_redis.cli.exit_status import DONE, EPILOG, OUTPUT, UNHEALTHY, exit_on_error, status_of
from acker_redis.cli.options import (
    DEFAULT_URL,
    AsJson,
    OneApp,
    Url,
    UrlFile,
    app_names,
    confirmed,
    connected,
    is_given,
    server_url,
)
from acker_redis.errors import AppNotFoundError, BadConfigError, BadIdError
from acker_redis.model import ids
from acker_redis.ops import delete_app
from acker_redis.ops import rotator as rotation_process
from acker_redis.ops.rotation_check import OF_THE_APP, check
from acker_redis.store.apps import apps, stored_config
from acker_redis.version import VERSION

QUESTION = "Delete all of this?"

app = typer.Typer(
    cls=help_pages.Group,
    no_args_is_help=True,
    rich_markup_mode=None,  # help texts hold brackets, as in [/db]
    pretty_exceptions_enable=False,
    help="Storm's acker on Redis: run the rotator, look at ledgers.",
    epilog=EPILOG,
)

app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(observe.app)
app.add_typer(operate.app)
app.add_typer(acl.app)


def _version(wanted: bool) -> None:
    if wanted:
        with exit_on_error():
            output.line(f"acker-redis {importlib.metadata.version('acker-redis')}")
        raise typer.Exit(DONE)


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Storm's acker on Redis: run the rotator, look at ledgers."""


@app.command()
def rotator(
    context: typer.Context,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    app_name: Annotated[
        list[str] | None,
        typer.Option("--app", envvar="ACKER_APPS", help="App to rotate; several times, or with commas, for several."),
    ] = None,
    all_apps: Annotated[
        bool, typer.Option("--all", help="Rotate every app found on the server; so it is where no app is named.")
    ] = False,
    check_only: Annotated[
        bool, typer.Option("--check", help="Don't rotate: say whether the apps are rotated in time, and exit 0 or 1.")
    ] = False,
    metrics: Annotated[
        int | None, typer.Option("--metrics", min=0, max=65535, help="Serve metrics for Prometheus on this port.")
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="Address to serve metrics on; 0.0.0.0 for all of this machine's.")
    ] = "127.0.0.1",
) -> None:
    """Tick and drain until SIGTERM or Ctrl-C. Any number of copies may run."""
    if check_only and metrics is not None:
        raise typer.BadParameter("--check ends at once: give --metrics to a rotator that runs")
    with exit_on_error():
        names = app_names(context, app_name or [], all_apps)
        url = server_url(context, redis, redis_file)
        if check_only:
            raise typer.Exit(_check(url, names))
        _rotate(url, names, _metrics(url, names, metrics_host, metrics))


def _metrics(url: str, names: list[str], host: str, port: int | None) -> AbstractContextManager[object]:
    if port is None:
        return nullcontext()
    try:
        from acker_redis.ops.metrics import MetricsServer
    except ImportError as exc:
        raise BadConfigError("metrics need prometheus-client: pip install 'acker-redis[metrics]'") from exc
    return MetricsServer(url, names, host, port)


def _check(url: str, names: list[str]) -> int:
    found = check(url, names)
    for health in found:
        output.line(f"{health.app}: {health.text}")
    if not found:
        output.line("no apps on this server")
    return DONE if all(health.healthy for health in found) else UNHEALTHY


def _rotate(url: str, names: list[str], metrics: AbstractContextManager[object]) -> None:
    output.log_to_stderr()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    process = rotation_process.Rotator(url, names)
    rotation_process.log.info("rotator started for %s", ", ".join(names) or "all apps")
    try:
        with metrics:
            process.run(stop)
    finally:
        process.close()
    rotation_process.log.info("rotator stopped")


@app.command()
def stats(
    context: typer.Context,
    app_name: Annotated[str | None, typer.Option("--app", envvar="ACKER_APP", help="Name of the app.")] = None,
    all_apps: Annotated[bool, typer.Option("--all", help="Every app on the server.")] = False,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    as_json: AsJson = False,
) -> None:
    """Print an app's counters, or those of all apps."""
    if (all_apps and is_given(context, "app_name")) or not (all_apps or app_name):
        raise typer.BadParameter("name the app with --app NAME, or give --all for every app on the server")
    status = DONE
    with exit_on_error(), connected(context, redis, redis_file) as client:
        names = apps(client) if all_apps else [str(app_name)]
        for number, name in enumerate(names):
            try:
                counters = Acker(client, stored_config(client, name), create=False).stats()
            except OF_THE_APP as exc:
                output.line(f"error: {exc}", err=True)
                status = status_of(exc)
                continue
            values = {"app": name, **counters._asdict()}
            if as_json:
                output.json_line(values)
            else:
                if number:
                    output.line("")
                output.fields(values)
        if not names:
            output.line("no apps on this server", err=True)
    raise typer.Exit(status)


@app.command()
def inspect(
    context: typer.Context,
    root: Annotated[
        str,
        typer.Argument(
            help="Root id: decimal, or 16 hex digits as in the fail stream (put 0x before all-decimal ones)."
        ),
    ],
    app_name: OneApp,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    as_json: AsJson = False,
) -> None:
    """Print what the ledger holds of one root; put -- before a negative id."""
    with exit_on_error():
        number = _parse_root(root)
        with connected(context, redis, redis_file) as client:
            record = Acker(client, stored_config(client, app_name), create=False).inspect(number)
        if record is None:
            output.line(f"root {root} is not in the ledger: never seen here, or settled, or expired", err=True)
            raise typer.Exit(UNHEALTHY)
        if as_json:
            output.json_line(record._asdict())
        else:
            output.fields(record._asdict())


@app.command(name="apps")
def list_apps(
    context: typer.Context, redis: Url = DEFAULT_URL, redis_file: UrlFile = None, as_json: AsJson = False
) -> None:
    """List the apps on a server."""
    with exit_on_error(), connected(context, redis, redis_file) as client:
        for name in apps(client):
            if as_json:
                output.json_line({"app": name})
            else:
                output.line(name)


@app.command(name="evict")
def evict_app(
    context: typer.Context,
    app_name: OneApp,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Delete every key of an app, and of no other. Stop its programs first: those that run get LedgerLostError."""
    with exit_on_error(), connected(context, redis, redis_file) as client:
        found = delete_app.survey(client, app_name)
        output.line(f"{app_name} on {client.address}: {found.text}")
        if not yes and not confirmed(QUESTION):
            output.line("nothing was deleted", err=True)
            raise typer.Exit(UNHEALTHY)
        deleted = delete_app.evict(client, found)
        output.line(f"{deleted} keys deleted")
        try:
            back = delete_app.survey(client, app_name)
        except AppNotFoundError:
            return
        output.line(f"error: {len(back.keys)} keys came back: stop the app's programs, and evict it again", err=True)
        raise typer.Exit(UNHEALTHY)


@app.command()
def install(context: typer.Context, redis: Url = DEFAULT_URL, redis_file: UrlFile = None) -> None:
    """Load scripts and reports as functions (Redis 7, Valkey), so that nobody needs EVAL; again after an upgrade."""
    with exit_on_error(), connected(context, redis, redis_file) as client:
        installed = client.install()
        output.line(f"library {installed.library} is loaded: users need +fcall, and neither +eval nor +evalsha")
        for address, version in installed.newer_reports.items():
            output.line(f"{address} keeps its reports, which are newer: of {version}; these are of {VERSION}")
        output.line("reports are loaded, for people on call: redis-cli --raw FCALL_RO acker_dashboard 0")


def main() -> None:
    """Entry point of the `acker-redis` program."""
    warnings.showwarning = lambda message, *_, **__: output.line(f"warning: {message}", err=True)
    try:
        app()
    except OSError as exc:  # help and usage errors are written by typer
        output.line(f"error: {output.unwritable(exc)}", err=True)
        sys.exit(OUTPUT)


def _parse_root(text: str) -> int:
    try:
        hexadecimal = text.startswith("0x") or (len(text) == 16 and not text.lstrip("-").isdecimal())
        number = int(text, 16 if hexadecimal else 10)
    except ValueError as exc:
        raise BadIdError(f"root {text!r}: give a decimal 64-bit integer, or 16 hex digits") from exc
    ids.to_uint64(number, "root")
    return number
