"""Output of the command line, with control characters escaped.

Reasons, components, run ids and payloads contain data of programs. Unescaped, an escape sequence in them could rewrite the
terminal, and a line break could forge a log line.
"""

import json
import logging
import os
import select
import sys
import traceback
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from typing import TextIO

import typer

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of invisible characters with an effect: controls, formats (such as text direction), line breaks."""

_WRITERS = frozenset({"typer", "click", "rich"})
"""Packages that write for the commands, beside this module."""

_STDERR = 2
_LOG_READER_MS = 1000
"""Longest wait for the reader of a log to make room for a line."""


class OutputError(Exception):
    """The output can't be written. `quiet` is True if its reader closed it, which is no error to print."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(f"The output can't be written ({cause.strerror}). Nothing after this was done.")
        self.quiet = isinstance(cause, BrokenPipeError)


def printable(text: str) -> str:
    r"""Escape characters that affect a terminal, as `\x1b`. The result fits on one line."""
    if text.isprintable():  # the fast path for nearly all texts
        return text
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _HIDDEN else char for char in text
    )


def line(*texts: str, err: bool = False) -> None:
    """Write lines for people, one per text, in one call.

    Raises:
        OutputError: if standard output can't be written to. Errors of standard error are ignored.
    """
    encoding = (sys.stderr if err else sys.stdout).encoding or "utf-8"
    together = "\n".join(map(printable, texts))
    try:
        typer.echo(together.encode(encoding, "backslashreplace").decode(encoding), err=err)
    except OSError as exc:
        if not err:
            raise unwritable(exc) from exc
        _discard(sys.stderr)


def fields(values: Mapping[str, object], *after: str) -> None:
    """Write names and values for people, one pair per line, followed by other lines."""
    width = max(map(len, values))
    line(*(f"{name:<{width}}  {'-' if value is None else value}" for name, value in values.items()), *after)


def json_line(values: Mapping[str, object]) -> None:
    """Write a JSON object for programs, as one line of ASCII."""
    line(json.dumps(values))


class LogFormatter(logging.Formatter):
    """Formatter that writes each log record as one line, whatever its text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line."""
        return printable(super().format(record))


class _Stderr(logging.Handler):
    """Write each line to standard error at once, or drop it if standard error is full.

    A stream would keep unwritten lines, and Python would fail with them when the program ends (status 120). It would also
    wait forever for the reader of a full pipe.
    """

    def __init__(self) -> None:
        super().__init__()
        self._wait_ms = _LOG_READER_MS

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or the part of a long one that fits into a pipe with any room."""
        text = (self.format(record) + "\n").encode(errors="backslashreplace")
        look = select.poll()
        look.register(_STDERR, select.POLLOUT)
        if not look.poll(self._wait_ms):
            self._wait_ms = 0  # wait only once for a reader that never returns
            return
        self._wait_ms = _LOG_READER_MS
        with suppress(OSError):
            os.write(_STDERR, text if len(text) <= select.PIPE_BUF else text[: select.PIPE_BUF - 1] + b"\n")


def log_to_stderr() -> None:
    """Log to standard error from now on. A log that can't be written stops nothing."""
    handler = logging.NullHandler() if sys.stderr is None else _Stderr()
    handler.setFormatter(LogFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def is_of_output(error: OSError) -> bool:
    """Return True if typer, or a package below it, raised an error. They write help, questions and bars, and nothing else."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and frames[-1][0].f_globals.get("__name__", "").partition(".")[0] in _WRITERS


def unwritable(cause: OSError) -> OutputError:
    """Discard the rest of standard output, and return the error to raise."""
    _discard(sys.stdout)
    return OutputError(cause)


def _discard(stream: TextIO) -> None:
    """Discard a stream's buffer, which would fail again when the program ends."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
