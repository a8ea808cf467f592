"""What the texts of a plan and the options of its sources tell of the lineage of rows, in any kind of session."""

import re
from collections.abc import Mapping

from pyspark.sql import SparkSession

_JOINS = re.compile(r"\blist#\d+ \[|\b(?:exists|scalar-subquery)#\d+ \[(?!\])")
"""Subqueries that Spark makes joins of: those after IN, and those that use columns from outside."""

_CLOCK = frozenset(("current_date", "current_timestamp", "current_time", "localtimestamp", "now", "curdate"))
"""Functions of the time at which a job begins."""

_ALONE = "unix_timestamp"
"""A function that does the same without an argument."""

_NOW = re.compile(rf"\b{_ALONE}\s*\(\s*\)", re.IGNORECASE)

_CORRUPT = "spark.sql.columnNameOfCorruptRecord"
"""Setting of a session, and option of a reader of text: the column for lines that can't be parsed."""

_NUMBER = re.compile(r"#(\d+)")

_CALLED = re.compile(r"(\w+)\s*\(")


def called_in(text: str) -> list[str]:
    """Return the names of functions that an expression calls, in small letters."""
    return [name.lower() for name in _CALLED.findall(text)]


def joins(text: str) -> bool:
    """Return True if a node or plan has a join in disguise."""
    return _JOINS.search(text) is not None


def asks_the_clock(text: str) -> bool:
    """Return True if an expression calls a function of the time at which a job begins."""
    return not _CLOCK.isdisjoint(called_in(text)) or _NOW.search(text) is not None


def is_of_the_clock(function: str, *, has_arguments: bool) -> bool:
    """Return True if a function tells the time at which a job begins."""
    return function.lower() in _CLOCK or (function.lower() == _ALONE and not has_arguments)


def drops_rows(options: Mapping[str, str]) -> bool:
    """Return True if a reader with these options may drop other lines or files in a job for other columns."""
    lowered = {name.lower(): value.lower() for name, value in options.items()}
    return "dropmalformed" in lowered.values() or lowered.get("ignorecorruptfiles") == "true"


def skips_files(session: SparkSession) -> bool:
    """Return True if all readers of a session may drop files."""
    return str(session.conf.get("spark.sql.files.ignoreCorruptFiles", "false")).lower() == "true"


def corrupt_column(session: SparkSession, options: Mapping[str, str]) -> str:
    """Return the column for corrupt lines. A line counts as corrupt only in a job that reads what can't be parsed.

    Args:
        session: session that reads.
        options: options of the reader, by their names in lower case.
    """
    own = options.get(_CORRUPT.rpartition(".")[2].lower())
    return str(session.conf.get(_CORRUPT, "_corrupt_record")) if own is None else own


def filters_vary(text: str, corrupt: str) -> bool:
    """Return True if a condition in the text of a plan asks the clock or for corrupt lines, or a column that does.

    Args:
        text: an analyzed plan.
        corrupt: name of the column for corrupt lines.
    """
    conditions = [line for line in text.splitlines() if "Filter " in line]
    if any(asks_the_clock(line) or re.search(rf"\b{re.escape(corrupt)}#", line) for line in conditions):
        return True
    varying: set[str] = set()
    for line in reversed(text.splitlines()):  # from the leaves on
        for part in _parts(line.partition("Project [")[2]):
            *used, defined = _NUMBER.findall(part) or [""]
            if " AS " in part and (asks_the_clock(part) or not varying.isdisjoint(used)):
                varying.add(defined)
    return any(number in varying for line in conditions for number in _NUMBER.findall(line))


def _parts(columns: str) -> list[str]:
    """Split a list at its own commas."""
    parts, depth = [""], 0
    for character in columns:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            break
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts
