"""Two Spark applications: run `python -m spark.applications.direct_acks export`, and `price` next to it."""

import json
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pyspark.errors import PySparkException
from rich.console import Console

from acker_redis import Acker, AckerError
from spark.applications.direct_acks import orders, prices
from spark.support.session import quiet_session

Folder = Annotated[Path, typer.Option(file_okay=False, help="Folder that `export` writes and `price` reads.")]
Redis = Annotated[str, typer.Option(envvar="ACKER_REDIS_URL", help="Redis URL.")]
App = Annotated[str, typer.Option(help="Name of the acker's app, the same for both.")]
Master = Annotated[str, typer.Option(help="Spark master, with task retries as in local[2,4].")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
LOCAL = "redis://127.0.0.1:6379/0"

program = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=__doc__)


@program.command()
def export(
    folder: Folder,
    redis: Redis = LOCAL,
    app: App = orders.APP,
    master: Master = "local[1,4]",
    count: Annotated[int, typer.Option("--orders", min=1, help="Number of orders to emit.")] = 1_000,
    executor_redis: Annotated[
        str | None, typer.Option(envvar="ACKER_EXECUTOR_REDIS_URL", help="URL of the same server for executors.")
    ] = None,
    message_timeout_secs: Annotated[float, typer.Option(min=0.5, help="Message timeout.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Export the items of orders, and wait until all are acked. Exit 0 if every order has an outcome."""
    try:
        with (
            Acker.connect(redis, app=app, message_timeout_secs=message_timeout_secs) as acker,
            quiet_session(master, "orders") as spark,
        ):
            result = orders.run(spark, acker, executor_redis, count, folder.resolve())
            pending = acker.stats().pending
    except (AckerError, OSError, PySparkException) as exc:
        raise _print_error(exc) from exc
    counts, reasons = result.counts, sorted({str(letter.detail) for letter in result.dead_letters.values()})
    if as_json:
        print(json.dumps({**asdict(counts), "pending": pending, "reasons": reasons}))
    else:
        print(
            f"first application: {counts.acked:,} of {count:,} orders done, once the second had acked their last item"
        )
        print(f"                   {counts.dead_lettered:,} dead letters: {', '.join(reasons) or 'none'}")
    raise typer.Exit(0 if counts.acked + counts.dead_lettered == count and not pending else 1)


@program.command()
def price(
    folder: Folder,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for priced items.")],
    redis: Redis = LOCAL,
    app: App = orders.APP,
    master: Master = "local[1,4]",
) -> None:
    """Price and ack the items that `export` writes, until `export` ends."""
    try:
        with quiet_session(master, "prices") as spark:
            prices.run(spark, redis, app, folder.resolve(), out.resolve(), partial(time.sleep, 0.1))
    except (AckerError, OSError, PySparkException) as exc:
        raise _print_error(exc) from exc


def _print_error(exc: Exception) -> typer.Exit:
    Console(stderr=True).print(f"[red]error:[/red] {exc}", highlight=False, soft_wrap=True)
    return typer.Exit(3)


if __name__ == "__main__":
    program()
