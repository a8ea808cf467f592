"""The only place where Lua is read: scripts with their headers, and reports, with their includes resolved.

A call is built from the names in a script's header, so Python and Lua can't disagree unnoticed.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeAlias

from acker_redis.client import script_header
from acker_redis.client.script_header import Header
from acker_redis.errors import ScriptFailedError
from acker_redis.version import VERSION

NAMES = (
    "init", "ack", "fail", "reset_timeout", "rotate", "expire", "sweep", "open", "configure", "component",
    "name_component", "hold_lane", "confirm", "claim_bin", "close_turn", "settle", "open_state", "load_state",
    "read_state", "write_state", "commit_state", "fold_state", "close_state", "end_state", "check_state", "empty_state",
    "forget_state", "expire_letters", "store_letters",
)  # fmt: skip

REPORTS = ("dashboard", "pending", "latency", "root", "dead_letters", "exporter")
"""Reports for people on call. They only read."""

SCRIPTS_FOLDER, REPORTS_FOLDER = "scripts/", "reports/"
"""Folders of the files of `NAMES` and `REPORTS`, inside lua/."""

Argument: TypeAlias = bytes | str | int | float
"""Argument of a script or command."""

Command: TypeAlias = tuple[Argument, ...]
"""Plain command: its name and its arguments."""

_INCLUDE = re.compile(r'^--- @include "([a-z0-9_/]+)"\n', re.MULTILINE)


@dataclass(frozen=True)
class Script(Header):
    """One script with the contract in its header.

    Attributes:
        name: file name without `.lua`.
        source: text with includes resolved, shebang line first.
    """

    name: str
    source: str

    def text_for(self, *, shebang: bool) -> bytes:
        """Return the text to load. Without shebang support (Redis 6.2, fakeredis) a first write replaces `allow-oom`.

        Above maxmemory, Redis 6.2 refuses a command that needs memory, unless the script wrote before. Removing a field
        that never exists is such a write and needs no memory.
        """
        if shebang:
            return self.source.encode()
        _, _, body = self.source.partition("\n")
        if "allow-oom" in self.flags:
            body = "redis.call('HDEL', KEYS[1], '')\n" + body if self.keys[0].type == "HASH" else body
        return body.encode()

    def call(self, named: Mapping[str, str | Sequence[str]], *args: Argument) -> "Call":
        """Make a call of this script. The names in the header pick its keys."""
        return Call(self, self.pick(named), args)


@dataclass(frozen=True)
class Call:
    """A script with its KEYS and ARGV, ready to be sent."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[Argument, ...]


def sha1(text: bytes) -> str:
    """Compute the name by which a server knows a loaded script."""
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()


@cache
def load(name: str) -> Script:
    """Load one script of `NAMES`.

    Raises:
        ScriptFailedError: the file is missing from the installation, or its header is malformed.
    """
    path = script_path(name)
    text = _read(path)
    header = script_header.parse(text)
    if header is None:
        raise ScriptFailedError(f"lua/{path} has no header. Write one as lua/README.md describes.")
    return Script(**vars(header), name=name, source=_resolve(text, seen=(path,), included=set()))


@cache
def report(name: str) -> str:
    """Load the text of one of `REPORTS`, for EVAL without keys.

    Raises:
        ScriptFailedError: a file is missing from the installation.
    """
    path = report_path(name)
    return f"-- {name} of acker-redis {VERSION}\n{_resolve(_read(path), seen=(path,), included=set())}"


def script_path(name: str) -> str:
    """Return the path of a script inside lua/."""
    return f"{SCRIPTS_FOLDER}{name}.lua"


def report_path(name: str) -> str:
    """Return the path of a report inside lua/."""
    return f"{REPORTS_FOLDER}{name}.lua"


def root() -> Traversable:
    """Find the folder of the Lua files: inside the installed package, or next to it in a checkout. Works from a zip."""
    inside = files("acker_redis").joinpath("lua")
    return inside if inside.is_dir() else Path(__file__).resolve().parents[2] / "lua"


def library_files() -> dict[str, bytes]:
    """Read the files of the library, code and scripts, by their paths in a folder or zip that Python can import."""
    return {**_files_in(files("acker_redis"), "acker_redis"), **_files_in(root(), "acker_redis/lua")}


def _files_in(folder: Traversable, name: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for item in folder.iterdir():
        if item.is_dir():
            found |= _files_in(item, f"{name}/{item.name}")
        elif item.name.endswith((".py", ".lua", ".typed")):
            found[f"{name}/{item.name}"] = item.read_bytes()
    return found


def _read(path: str) -> str:
    node = root()
    for part in path.split("/"):
        node = node.joinpath(part)
    try:
        return node.read_text(encoding="utf-8")
    except OSError as exc:
        raise ScriptFailedError(f"lua/{path} is missing from this installation. Install acker_redis again.") from exc


def _resolve(text: str, seen: tuple[str, ...], included: set[str]) -> str:
    def replace(match: re.Match[str]) -> str:
        path = f"{match[1]}.lua"
        if path in seen:
            raise ScriptFailedError(
                f"Circular include in lua/ ({' -> '.join((*seen, path))}). Remove one of these includes."
            )
        if path in included:
            return ""
        included.add(path)
        return _resolve(_read(path), (*seen, path), included)

    return _INCLUDE.sub(replace, text)
