"""The program `acker-redis`: its commands `delete-app` and `install`, and those of the other modules."""

import sys
import warnings
from typing import Annotated

import typer

from acker_redis.cli import dead_letters, help_pages, inspect, observe, once, operate, output, rotator, server, topology
from acker_redis.cli.exit_status import DONE, EPILOG, OUTPUT, SERVER, UNHEALTHY, exit_on_error
from acker_redis.cli.options import DEFAULT_URL, OneApp, Url, UrlFile, confirmed, connected
from acker_redis.errors import AppNotFoundError
from acker_redis.ops import delete_app
from acker_redis.version import VERSION

QUESTION = "Delete all of this?"

app = typer.Typer(
    cls=help_pages.Group,
    no_args_is_help=True,
    rich_markup_mode=None,  # help texts hold brackets, as in [/db]
    pretty_exceptions_enable=False,
    help="Storm's acker on Redis: run the rotator, inspect and operate apps.",
    epilog=EPILOG,
)

app.command()(rotator.rotator)
app.command()(server.server)
app.command()(inspect.stats)
app.command()(inspect.inspect)
app.command(name="apps")(inspect.list_apps)
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(observe.app)
app.add_typer(operate.app)
app.add_typer(once.app, name="once")
app.add_typer(topology.app, name="topology")


def _version(wanted: bool) -> None:
    if wanted:
        with exit_on_error():
            output.line(f"acker-redis {VERSION}")
        raise typer.Exit(DONE)


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Storm's acker on Redis: run the rotator, inspect and operate apps."""


@app.command(name="delete-app")
def delete(
    context: typer.Context,
    app_name: OneApp,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
) -> None:
    """Delete all keys of an app, and no other keys. Stop its programs first. Running ones get LedgerLostError."""
    with exit_on_error(), connected(context, redis, redis_file) as client:
        holdings = delete_app.preview(client, app_name)
        output.line(f"{app_name} on {client.address}: {holdings.text}")
        if not yes and not confirmed(QUESTION):
            output.line("Nothing was deleted.", err=True)
            raise typer.Exit(UNHEALTHY)
        deleted = delete_app.delete(client, holdings)
        output.line(f"{deleted} keys deleted")
        try:
            back = delete_app.preview(client, app_name)
        except AppNotFoundError:
            return
        output.line(
            f"error: {len(back.keys)} keys came back, because a program of the app still runs. Stop its programs, and delete "
            "the app again.",
            err=True,
        )
        raise typer.Exit(UNHEALTHY)


@app.command()
def install(context: typer.Context, redis: Url = DEFAULT_URL, redis_file: UrlFile = None) -> None:
    """Load scripts and reports as functions (Redis 7, Valkey), so that no user needs EVAL. Repeat after an upgrade."""
    with exit_on_error(), connected(context, redis, redis_file) as client:
        installed = client.install()
        output.line(f"library {installed.library} is loaded: users need +fcall, but not +eval or +evalsha")
        for address, version in installed.newer_reports.items():
            output.line(f"{address} keeps its reports: version {version} is newer than {VERSION}")
        output.line("reports are loaded: try redis-cli --raw FCALL_RO acker_dashboard 0")


def main() -> None:
    """Run the `acker-redis` program."""
    warnings.showwarning = lambda message, *_, **__: output.line(f"warning: {message}", err=True)
    try:
        app()
    except OSError as exc:
        if output.is_of_output(exc):  # help and usage errors are written by typer
            output.line(f"error: {output.unwritable(exc)}", err=True)
            sys.exit(OUTPUT)
        output.line(
            f"error: A file or a service can't be used ({type(exc).__name__}: {exc}). The command ended and is not done. Look "
            "at the output above, and check that the file or the service, such as Spark's JVM, is still there.",
            err=True,
        )
        sys.exit(SERVER)
