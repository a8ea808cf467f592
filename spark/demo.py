"""`make demo`: a private server, a rotator beside it, and two Spark programs between them."""

from typing import Annotated

import typer

from acker_redis.acl import Role
from spark.direct_acks import demo as direct_acks
from spark.services import app_among, services, start, wait_for


def main(
    context: typer.Context,
    server: Annotated[
        str | None, typer.Option(help="Server program to start, such as redis-server; default: the embedded Valkey.")
    ] = None,
) -> None:
    """Run the word count, then the direct acks. Further options are the word count's own: see --help-word-count."""
    arguments = ["--help" if argument == "--help-word-count" else argument for argument in context.args]
    quiet = "--json" in arguments
    with services(server, quiet=quiet) as place:
        app = app_among(arguments, "word-count")
        status = wait_for(start("spark.word_count", *arguments, redis_url=place.url_of(Role.SPOUT, app)))
        if not status and not quiet and "--help" not in arguments:
            status = direct_acks.run(place)
    raise typer.Exit(status)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(main)
    app()
