"""Exit statuses, the same for every command."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from acker_redis.cli.output import OutputError, line
from acker_redis.errors import (
    AckerError,
    BadConfigError,
    BadIdError,
    FencedError,
    FilesNotMovedError,
    InexactPipelineError,
    InvalidTopologyError,
    JobFailedError,
    OperatorBrokenError,
    PipelineError,
    StateLostError,
    TurnOverError,
    UnprovenEmissionError,
)
from acker_redis.ops.rotation_check import OF_THE_APP

DONE, UNHEALTHY, USAGE, SERVER, OUTPUT = range(5)

MEANINGS = {
    DONE: "done. With --check: healthy",
    UNHEALTHY: "no such app or root, unhealthy (not rotated in time, data lost or damaged, an app is sick), or not done (not "
    "confirmed, something is left, a topology failed)",
    USAGE: "wrong usage: invalid option, URL, app name, root or topology",
    SERVER: "server or file system unusable: unreachable, or it refused the login or a permission",
    OUTPUT: "output not written: the disk is full, or the reader closed it",
}

_WRONG = (BadConfigError, BadIdError, InvalidTopologyError, PipelineError)
_FAILED = (
    *OF_THE_APP, JobFailedError, InexactPipelineError, UnprovenEmissionError, OperatorBrokenError, StateLostError,
    TurnOverError, FencedError, FilesNotMovedError,
)  # fmt: skip

_EPILOG_WIDTH = 70


def _epilog() -> str:
    """Return a row per status. The first line keeps typer from rewrapping the rows."""
    rows = [
        textwrap.fill(meaning, _EPILOG_WIDTH, initial_indent=f"  {status}  ", subsequent_indent=" " * 5)
        for status, meaning in MEANINGS.items()
    ]
    return "\n".join(["\b", "Exit status of every command:", *rows])


EPILOG = _epilog()
"""The end of `acker-redis --help`."""


def status_of(error: AckerError) -> int:
    """Return the exit status for an error."""
    if isinstance(error, _FAILED):
        return UNHEALTHY
    return USAGE if isinstance(error, _WRONG) else SERVER


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print an error and exit with its status."""
    try:
        yield
    except AckerError as exc:
        line(f"error: {exc}", err=True)
        raise typer.Exit(status_of(exc)) from exc
    except OutputError as exc:
        if not exc.quiet:
            line(f"error: {exc}", err=True)
        raise typer.Exit(OUTPUT) from exc
