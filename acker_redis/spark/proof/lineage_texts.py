"""What the texts of a plan and the options of its sources tell of the lineage of rows, in any kind of session."""

import re
from collections.abc import Mapping

from pyspark.sql import SparkSession

_JOINS = re.compile(r"\blist#\d+ \[|\b(?:exists|scalar-subquery)#\d+ \[(?!\])")
"""Subqueries that Spark makes joins of: those after IN, and those that use columns from outside."""

_CLOCK = frozenset(("current_date", "current_timestamp", "current_time", "localtimestamp", "now", "curdate"))
"""Functions of the time at which a job begins."""

_CALLED = re.compile(r"(\w+)\s*\(")


def called_in(text: str) -> list[str]:
    """Return the names of functions that an expression calls, in small letters."""
    return [name.lower() for name in _CALLED.findall(text)]


def joins(text: str) -> bool:
    """Return True if a node or plan has a join in disguise."""
    return _JOINS.search(text) is not None


def asks_the_clock(text: str) -> bool:
    """Return True if an expression calls a function of the time at which a job begins."""
    return not _CLOCK.isdisjoint(called_in(text))


def is_of_the_clock(function: str) -> bool:
    """Return True if a function tells the time at which a job begins."""
    return function.lower() in _CLOCK


def drops_rows(options: Mapping[str, str]) -> bool:
    """Return True if a reader with these options may drop other lines or files in a job for other columns."""
    lowered = {name.lower(): value.lower() for name, value in options.items()}
    return "dropmalformed" in lowered.values() or lowered.get("ignorecorruptfiles") == "true"


def skips_files(session: SparkSession) -> bool:
    """Return True if all readers of a session may drop files."""
    return str(session.conf.get("spark.sql.files.ignoreCorruptFiles", "false")).lower() == "true"
