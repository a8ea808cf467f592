"""Lua files as libraries of functions, for servers that support them (Redis 7 and newer, Valkey)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from acker_redis.client import scripts
from acker_redis.version import VERSION

REPORTS_LIBRARY = "acker_reports"
REPORTS_VERSION_FUNCTION = "acker_reports_version"
"""Function that returns the version of acker_redis that loaded the reports."""

REPORT_FLAGS = ("no-writes", "allow-cross-slot-keys", "allow-stale")
"""Flags that let a report run by FCALL_RO, above maxmemory and on a replica without its primary, for any app of a node."""

_DIGEST_CHARS = 12


@dataclass(frozen=True)
class Library:
    """Library of functions.

    Attributes:
        name: name of the library.
        functions: name of a script or report -> name of its function.
        text: source for FUNCTION LOAD.
    """

    name: str
    functions: Mapping[str, str]
    text: str


@cache
def library() -> Library:
    """Build the library of scripts. Names contain a digest of the text, so that each version calls its own."""
    digest = scripts.sha1("".join(scripts.load(name).source for name in scripts.NAMES).encode())[:_DIGEST_CHARS]
    functions = {name: f"acker_{name}_{digest}" for name in scripts.NAMES}
    parts = []
    for name, function in functions.items():
        script = scripts.load(name)
        _, _, body = script.source.partition("\n")
        parts.append(_registered(function, script.flags, body))
    return _assembled(f"acker_{digest}", functions, parts)


@cache
def reports() -> Library:
    """Build the library of reports. Names are the same in every version, because people type them."""
    functions = {name: f"acker_{name}" for name in scripts.REPORTS}
    parts = [_registered(function, REPORT_FLAGS, scripts.report(name)) for name, function in functions.items()]
    parts.append(_registered(REPORTS_VERSION_FUNCTION, REPORT_FLAGS, f"return '{VERSION}'\n"))
    return _assembled(REPORTS_LIBRARY, functions, parts)


def _registered(function: str, flags: Iterable[str], body: str) -> str:
    """Write the registration of a function: a script's text, with KEYS and ARGV as parameters."""
    listed = ", ".join(f"'{flag}'" for flag in flags)
    return (
        f"redis.register_function{{function_name = '{function}', flags = {{{listed}}}, "
        f"callback = function(KEYS, ARGV)\n{body}end}}\n"
    )


def _assembled(name: str, functions: Mapping[str, str], parts: Iterable[str]) -> Library:
    return Library(name, functions, f"#!lua name={name}\n{''.join(parts)}")
