"""Demo for `make storm`: starts a server and a rotator, and runs two topologies on Spark."""

from typing import Annotated

import typer

from acker_redis.ops.acl import Role
from spark.applications.sentences.__main__ import main as sentences
from spark.support.services import app_among, check_arguments, services, start, step, until_ended


def main(
    context: typer.Context,
    server: Annotated[
        str | None, typer.Option(help="Server program to start, such as redis-server. Default: the embedded Valkey.")
    ] = None,
) -> None:
    """Run the topologies with everything they need. Further options are passed to them."""
    check_arguments(sentences, context.args)
    quiet = "--json" in context.args
    with services(server, quiet=quiet) as place:
        if not quiet:
            step("Spouts run in the driver, bolts in Spark's workers, and the executors ack. Ctrl-C drains the run.")
        spout = place.url_of(Role.SPOUT, app_among(context.args, "sentences"))
        status = until_ended(start("spark.applications.sentences", *context.args, redis_url=spout))
    raise typer.Exit(status)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(main)
    app()
