"""Everything the command line writes goes through here.

Reasons, components, run ids and payloads hold data of programs. Written raw, an escape sequence in them could rewrite a
terminal, and a line break could forge a line of a log.
"""

import json
import logging
import os
import select
import sys
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from typing import TextIO

import typer

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that are not shown but act: control characters, formats (such as text direction), line breaks."""

_STDERR = 2
_LOG_READER_MS = 1000
"""How long the reader of a log may take to make room for a line."""


class OutputError(Exception):
    """The output can't be written. `quiet`: its reader went away, which is no error to print."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(f"the output can't be written ({cause.strerror}): nothing after this was done")
        self.quiet = isinstance(cause, BrokenPipeError)


def printable(text: str) -> str:
    r"""Escape all that acts on a terminal, as `\x1b`; the text takes one line."""
    if text.isprintable():  # the quick way for nearly all
        return text
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _HIDDEN else char for char in text
    )


def line(*texts: str, err: bool = False) -> None:
    """Write lines for people, each text as one, in one go.

    Raises:
        OutputError: standard output can't be written to. For standard error it does not matter.
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
    """Write names and values for people, one pair a line, and other lines after them."""
    width = max(map(len, values))
    line(*(f"{name:<{width}}  {'-' if value is None else value}" for name, value in values.items()), *after)


def json_line(values: Mapping[str, object]) -> None:
    """Write one JSON object for programs: one line, ASCII only."""
    line(json.dumps(values))


class LogFormatter(logging.Formatter):
    """Log records that take one line each, whatever text they have."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line."""
        return printable(super().format(record))


class _Stderr(logging.Handler):
    """Writes each line to standard error at once, and drops it where that is full.

    A stream keeps what it could not write, and Python fails once more with it when the program ends (status 120). And
    it waits for the reader of a full pipe for ever.
    """

    def __init__(self) -> None:
        super().__init__()
        self._wait_ms = _LOG_READER_MS

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or part of a long one: so much goes into a pipe that has room for anything."""
        text = (self.format(record) + "\n").encode(errors="backslashreplace")
        look = select.poll()
        look.register(_STDERR, select.POLLOUT)
        if not look.poll(self._wait_ms):
            self._wait_ms = 0  # a reader that is gone for good keeps the program waiting once
            return
        self._wait_ms = _LOG_READER_MS
        with suppress(OSError):
            os.write(_STDERR, text if len(text) <= select.PIPE_BUF else text[: select.PIPE_BUF - 1] + b"\n")


def log_to_stderr() -> None:
    """Log from now on; a log that can't be written stops nothing."""
    handler = logging.NullHandler() if sys.stderr is None else _Stderr()
    handler.setFormatter(LogFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def unwritable(cause: OSError) -> OutputError:
    """Discard the rest of standard output."""
    _discard(sys.stdout)
    return OutputError(cause)


def _discard(stream: TextIO) -> None:
    """Discard a stream's buffer, which would fail once more when the program ends."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
