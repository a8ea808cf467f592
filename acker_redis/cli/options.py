"""Options that commands share: server, apps, and filters."""

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
from acker_redis.store.dead_letter import REASONS, DeadLetterFilter

DEFAULT_URL = "redis://127.0.0.1:6379/0"

Url = Annotated[
    str,
    typer.Option(
        "--redis",
        envvar="ACKER_REDIS_URL",
        help="redis://[[user]:password@]host[:port][/db]. A password given here is visible in the list of processes.",
    ),
]
UrlFile = Annotated[
    Path | None,
    typer.Option(
        "--redis-file",
        envvar="ACKER_REDIS_URL_FILE",
        help="File with the URL, such as a mounted secret. Overrides ACKER_REDIS_URL.",
    ),
]
OneApp = Annotated[str, typer.Option("--app", envvar="ACKER_APP", help="Name of the app.")]
Messages = Annotated[list[int] | None, typer.Option("--id", help="Select only this message id. Repeat for several.")]
Run = Annotated[str | None, typer.Option("--run", help="Select only this run id.")]
Reason = Annotated[
    str | None, typer.Option("--reason", help="Select only this reason: failed, timeout, lost or corrupt.")
]
Component = Annotated[str | None, typer.Option("--component", help="Select only this last component.")]
Text = Annotated[
    str | None, typer.Option("--text", help="Select only letters with this text in the detail, ignoring case.")
]


def _time(text: str) -> datetime:
    """Read a time. One with a zone becomes one of this machine.

    Raises:
        BadParameter: it is none.
    """
    try:
        time = datetime.fromisoformat(text)
        return time if time.tzinfo is None else time.astimezone().replace(tzinfo=None)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time. Use one such as 2026-01-31T20:00:00, or a date.") from None


Since = Annotated[
    datetime | None,
    typer.Option(
        "--since",
        parser=_time,
        metavar="TIME",
        help="Select only letters written then or later, in this machine's time, such as 2026-01-31T20:00:00.",
    ),
]
Until = Annotated[
    datetime | None, typer.Option("--until", parser=_time, metavar="TIME", help="Select only letters written before.")
]
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
    """Return the filter that these options describe.

    Raises:
        BadConfigError: if they select nothing.
    """
    if reason is not None and reason not in REASONS:
        raise BadConfigError(
            f"--reason {reason!r} is unknown, so no letter has it. Use one of {', '.join(REASONS)}. To search the text of a "
            "failure, use --text."
        )
    if since is not None and until is not None and since >= until:
        raise BadConfigError(
            f"--since {since} is not before --until {until}. Use an earlier --since or a later --until."
        )
    ids = frozenset(messages) if messages else None
    return DeadLetterFilter(ids, run_id, reason, component, text, since, until)


def server_url(context: typer.Context, url: str, file: Path | None) -> str:
    """Return the URL to use: from the command line, else the environment, where the file precedes the URL.

    Raises:
        BadConfigError: if the command line has both, or if the file holds no URL.
    """
    if is_given(context, "redis"):
        if is_given(context, "redis_file"):
            raise BadConfigError("--redis and --redis-file exclude each other. Pass one of them.")
        if _has_password(url):
            line(
                "warning: The password in --redis is visible in the list of processes. Use ACKER_REDIS_URL or --redis-file.",
                err=True,
            )
        return url
    if file is None:
        return url
    try:
        content = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise BadConfigError(
            f"The URL file {file} can't be read ({exc}). Use a text file that holds the server's URL."
        ) from exc
    if not content or len(content.split()) > 1:
        raise BadConfigError(
            f"The URL file {file} holds {len(content.split())} words. Use a file that holds only the server's URL."
        )
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
    """Return the names in any number of options, separated by commas or blanks. Empty means all apps.

    The command line precedes the environment: --all there means all apps, whatever the environment names.

    Raises:
        BadParameter: if --all and --app contradict each other, or an option is empty.
        BadConfigError: if a name is not valid for an app.
    """
    if every:
        if is_given(context, "app_name"):
            raise typer.BadParameter("--app and --all exclude each other. Pass one of them.")
        return []
    names = [name for text in given for name in re.split(r"[,\s]+", text) if name]
    if given and not names:
        raise typer.BadParameter("--app (or ACKER_APPS) is empty. Name an app, or omit the option for all apps.")
    for name in names:
        check_app_name(name)
    return names


def is_given(context: typer.Context, parameter: str) -> bool:
    """Return True if an option was passed on the command line."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def _has_password(url: str) -> bool:
    rest, _, query = url.partition("?")
    login, at, _ = rest.partition("://")[2].rpartition("@")
    return bool(at and login.partition(":")[2]) or "password" in parse_qs(query)


def confirmed(question: str) -> bool:
    """Ask at the terminal. Return True if the answer is yes."""
    try:
        return typer.confirm(question)
    except typer.Abort:
        return False
