"""Demo that runs both applications side by side: `python -m spark.applications.direct_acks.demo`."""

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from acker_redis.ops.acl import Role
from spark.applications.direct_acks.orders import APP, items_of
from spark.applications.direct_acks.prices import PRICES
from spark.support.services import Place, services, start, wait_for


def main(
    count: Annotated[int, typer.Option("--orders", min=1, help="Number of orders to emit.")] = 1_000,
    server: Annotated[
        str | None, typer.Option(help="Server program to start, such as redis-server. Default: the embedded Valkey.")
    ] = None,
) -> None:
    """Run both applications with everything they need."""
    with services(server, quiet=False) as place:
        status = run(place, count)
    raise typer.Exit(status)


def run(place: Place, count: int = 1_000) -> int:
    """Run both applications. Return 0 if every order is done or a dead letter, and all known items are priced."""
    with tempfile.TemporaryDirectory(prefix="direct-acks-") as name:
        folder, out = Path(name, "items"), Path(name, "priced")
        spout, executor = (place.url_of(role, APP) for role in (Role.SPOUT, Role.EXECUTOR))
        export = ("export", "--folder", str(folder), "--orders", str(count))
        price = ("price", "--folder", str(folder), "--out", str(out))
        status = wait_for(
            start("spark.applications.direct_acks", *export, redis_url=spout, executor_url=executor),
            start("spark.applications.direct_acks", *price, redis_url=executor),  # it only acks
        )
        if status:
            return status
        lines = [line for path in out.glob("*.jsonl") for line in path.read_text(encoding="utf-8").splitlines()]
    priced = {(row["order"], row["item"]) for row in map(json.loads, lines)}
    wanted = {(order, item) for order in range(count) for _, item, _ in items_of({"order": order}) if item in PRICES}
    typer.echo(f"second application: {len(priced):,} items priced and acked by its executors")
    return 0 if priced == wanted else 1


if __name__ == "__main__":
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(main)
    program()
