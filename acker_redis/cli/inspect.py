"""The commands that inspect ledgers: `stats`, `inspect`, `apps`."""

from typing import Annotated

import typer

from acker_redis.acker import Acker
from acker_redis.cli import output
from acker_redis.cli.exit_status import DONE, UNHEALTHY, exit_on_error, status_of
from acker_redis.cli.options import DEFAULT_URL, AsJson, OneApp, Url, UrlFile, connected, is_given
from acker_redis.errors import BadIdError
from acker_redis.model import ids
from acker_redis.ops.rotation_check import OF_THE_APP
from acker_redis.store.apps import apps, stored_config


def stats(
    context: typer.Context,
    app_name: Annotated[str | None, typer.Option("--app", envvar="ACKER_APP", help="Name of the app.")] = None,
    all_apps: Annotated[bool, typer.Option("--all", help="Print every app on the server.")] = False,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the counters of one app or of all apps."""
    if (all_apps and is_given(context, "app_name")) or not (all_apps or app_name):
        raise typer.BadParameter("Pass either --app NAME for one app, or --all for every app on the server.")
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


def inspect(
    context: typer.Context,
    root: Annotated[
        str,
        typer.Argument(
            help="Root id: decimal, or 16 hex digits as in the fail stream (with 0x if all of them are decimal)."
        ),
    ],
    app_name: OneApp,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the ledger's data of one root. Put -- before a negative id."""
    with exit_on_error():
        number = _parse_root(root)
        with connected(context, redis, redis_file) as client:
            held = Acker(client, stored_config(client, app_name), create=False).inspect(number)
        if held is None:
            output.line(
                f"Root {root} is not in the ledger. It was never seen here, or it settled or expired.", err=True
            )
            raise typer.Exit(UNHEALTHY)
        if as_json:
            output.json_line(held._asdict())
        else:
            output.fields(held._asdict())


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


def _parse_root(text: str) -> int:
    try:
        hexadecimal = text.startswith("0x") or (len(text) == 16 and not text.lstrip("-").isdecimal())
        number = int(text, 16 if hexadecimal else 10)
    except ValueError as exc:
        raise BadIdError(f"Root {text!r} is invalid. Use a decimal 64-bit integer, or 16 hex digits.") from exc
    ids.to_uint64(number, "root")
    return number
