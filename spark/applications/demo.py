"""Demo for `make demo`: starts a server and a rotator, and runs the word count and the direct acks."""

from typing import Annotated

import typer

from acker_redis.ops.acl import Role
from spark.applications.direct_acks import demo as direct_acks
from spark.applications.word_count.__main__ import main as word_count
from spark.support.services import app_among, check_arguments, services, start, step, wait_for

EXPLAINED = """
What just happened: every line was one root in the server. Its words were derived from it, shuffled and written. The sink
proved that every word had arrived, and the line was acked, with two updates per line and none per word. Lines that failed
on purpose were emitted again, so the counts are exact. In the second part, no driver knew when an order was done: executors
of another application acked its items, and the last ack completed the order.
Next, read README.md to write your own pipeline, or try `make stream` (poison orders and killed workers) or `make stack`.
"""


def main(
    context: typer.Context,
    server: Annotated[
        str | None, typer.Option(help="Server program to start, such as redis-server. Default: the embedded Valkey.")
    ] = None,
) -> None:
    """Run the word count, then the direct acks. Further options are passed to the word count: see --help-word-count."""
    arguments = ["--help" if argument == "--help-word-count" else argument for argument in context.args]
    check_arguments(word_count, arguments)
    quiet = "--json" in arguments
    with services(server, quiet=quiet) as place:
        app = app_among(arguments, "word-count")
        if not quiet:
            step("First program: the word count on Spark. Its workers start, then a live line of counters appears.")
        status = wait_for(start("spark.applications.word_count", *arguments, redis_url=place.url_of(Role.SPOUT, app)))
        if not status and not quiet:
            step("Second and third program: one exports orders, and the executors of the other ack them.")
            status = direct_acks.run(place)
            if not status:
                step("Done.")
                typer.echo(EXPLAINED)
    raise typer.Exit(status)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(main)
    app()
