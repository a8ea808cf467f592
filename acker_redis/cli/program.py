"""The program `acker-redis`, with the commands of the other modules."""

import sys
import warnings
from typing import Annotated

import typer

from acker_redis.cli import dead_letters, help_pages, observe, once, operate, output, rotator, server, topology
from acker_redis.cli.exit_status import DONE, EPILOG, OUTPUT, SERVER, exit_on_error
from acker_redis.version import VERSION

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
