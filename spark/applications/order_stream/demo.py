"""Demo for `make stream`: starts a server and a rotator, and runs the stream of orders until Ctrl-C."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from acker_redis.ops.acl import Role
from spark.applications.order_stream.__main__ import main as order_stream
from spark.support.services import app_among, check_arguments, services, start, until_ended


def main(
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Option(
            file_okay=False, help="Folder of the stream; reuse it to resume. Default: one in the temporary folder."
        ),
    ] = None,
    server: Annotated[
        str | None, typer.Option(help="Server program to start, such as redis-server. Default: the embedded Valkey.")
    ] = None,
) -> None:
    """Run the stream with everything it needs. Further options are passed to the stream."""
    here = folder or Path(tempfile.gettempdir()) / "order-stream"
    arguments = ["--folder", str(here), *context.args]
    check_arguments(order_stream, arguments)
    typer.echo(f"folder: {here}{' (resuming)' if here.exists() else ''}")
    with services(server, quiet=False) as place:
        spout = place.url_of(Role.SPOUT, app_among(context.args, "order-stream"))
        job = start("spark.applications.order_stream", *arguments, redis_url=spout)
        status = until_ended(job)
    raise typer.Exit(status)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(main)
    app()
