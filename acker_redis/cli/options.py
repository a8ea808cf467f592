"""Options that several commands share: which server, which apps."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qs

import typer

from acker_redis.cli.output import line
from acker_redis.client.client import Client
from acker_redis.errors import BadConfigError
from acker_redis.model.config import check_app_name
from acker_redis.store.dead_letter import DeadLetterFilter

DEFAULT_URL = "redis://127.0.0.1:6379/0"

Url = Annotated[
    str,
    typer.Option(
        "--redis",
        envvar="ACKER_REDIS_URL",
        help="redis://[[user]:password@]host[:port][/db]. A password given here shows in the list of processes.",
    ),
]
UrlFile = Annotated[
    Path | None,
    typer.Option(
        "--redis-file",
        envvar="ACKER_REDIS_URL_FILE",
        help="File that holds the URL, as secrets are mounted; goes before ACKER_REDIS_URL.",
    ),
]
OneApp = Annotated[str, typer.Option("--app", envvar="ACKER_APP", help="Name of the app.")]
Messages = Annotated[
    list[int] | None, typer.Option("--id", help="Only of these message ids; several times for several.")
]
Run = Annotated[str | None, typer.Option("--run", help="Only of this run id.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Only of this reason: failed, timeout or lost.")]
Component = Annotated[str | None, typer.Option("--component", help="Only with this last component.")]
Text = Annotated[
    str | None, typer.Option("--text", help="Only with this text in the detail, large or small letters alike.")
]
Since = Annotated[
    datetime | None, typer.Option("--since", help="Only those written then or later, in this machine's time.")
]
Until = Annotated[datetime | None, typer.Option("--until", help="Only those written before.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs, one object per line.")]


def letter_filter(
    messages: Sequence[int] | None,
    run_id: str | None,
    reason: str | None,
    component: str | None,
    text: str | None,
    since: datetime | None,
    until: datetime | None,
) -> DeadLetterFilter:
    """Make the filter of these options.

    Raises:
        BadConfigError: they select nothing.
    """
    if since is not None and until is not None and since >= until:
        raise BadConfigError(f"--since {since} is not before --until {until}")
    ids = frozenset(messages) if messages else None
    return DeadLetterFilter(ids, run_id, reason, component, text, since, until)


def server_url(context: typer.Context, url: str, file: Path | None) -> str:
    """Return the URL to use: the command line goes before the environment, and there the file before the URL.

    Raises:
        BadConfigError: the command line gives both, or the file holds no URL.
    """
    if is_given(context, "redis"):
        if is_given(context, "redis_file"):
            raise BadConfigError("give the server with --redis or with --redis-file, not with both")
        if _has_password(url):
            line(
                "warning: the password in --redis shows in the list of processes: use ACKER_REDIS_URL, or --redis-file",
                err=True,
            )
        return url
    if file is None:
        return url
    try:
        content = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise BadConfigError(f"{file} can't be read ({exc}): it has to hold the server's URL") from exc
    if not content or len(content.split()) > 1:
        raise BadConfigError(f"{file} has to hold the server's URL, and nothing else")
    return content


@contextmanager
def connected(context: typer.Context, url: str, file: Path | None) -> Iterator[Client]:
    """Connect to the server that the options name."""
    client = Client(server_url(context, url, file))
    try:
        yield client
    finally:
        client.close()


def app_names(context: typer.Context, given: Sequence[str], every: bool) -> list[str]:
    """Return the apps named, in any number of options, separated by commas or blanks; empty: all of the server's.

    The command line goes before the environment: --all there means all, whatever the environment names.

    Raises:
        BadParameter: --all and --app contradict each other, or an option is empty.
        BadConfigError: a name can't be an app's.
    """
    if every:
        if is_given(context, "app_name"):
            raise typer.BadParameter("name apps with --app NAME, or give --all for every app on the server, not both")
        return []
    names = [name for text in given for name in re.split(r"[,\s]+", text) if name]
    if given and not names:
        raise typer.BadParameter("--app (or ACKER_APPS) is empty: name an app, or leave it out for all of them")
    for name in names:
        check_app_name(name)
    return names


def is_given(context: typer.Context, parameter: str) -> bool:
    """Whether an option stands on the command line."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def _has_password(url: str) -> bool:
    rest, _, query = url.partition("?")
    login, at, _ = rest.partition("://")[2].rpartition("@")
    return bool(at and login.partition(":")[2]) or "password" in parse_qs(query)


def confirmed(question: str) -> bool:
    """Ask at the terminal; returns whether the answer is yes."""
    try:
        return typer.confirm(question)
    except typer.Abort:
        return False
