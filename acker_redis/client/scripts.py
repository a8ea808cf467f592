"""The only place where Lua is loaded: reads `lua/`, resolves includes, reads the header contracts.

A header names the script's KEYS (name, type, pattern; `*` behind a type: a group of keys), ARGV and results. Calls are
built from it by name, so a Python call can't disagree with its script unnoticed.
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

from acker_redis.errors import ScriptFailedError

NAMES = (
    "init", "ack", "fail", "reset_timeout", "rotate", "expire", "sweep", "open", "configure", "stage", "name_stage", "confirm",
)  # fmt: skip

REPORTS = ("dashboard", "stuck", "slow", "root", "dead", "exporter")
"""Pages for redis-cli, each one file. They are built from `lua/reports/` by `make lua`; people change those."""

Argument: TypeAlias = bytes | str | int | float
"""What a script or command takes."""

Command: TypeAlias = tuple[Argument, ...]
"""A plain command: its name and its arguments."""

_DIGEST_CHARS = 12

_INCLUDE = re.compile(r'^--- @include "([a-z0-9_/]+)"\n', re.MULTILINE)
_HEADER = re.compile(r"\A#!lua(?: flags=(?P<flags>\S+))?\n--\[\[\n(?P<text>.*?)\n\]\]\n", re.DOTALL)
_RESULT = re.compile(r"\b([A-Z][A-Z_]+) (\d+)")


@dataclass(frozen=True)
class KeySlot:
    """One line of a header's KEYS part."""

    name: str
    type: str
    many: bool
    patterns: tuple[str, ...]


@dataclass(frozen=True)
class Script:
    """One script and what its header promises.

    Attributes:
        name: file name without `.lua`.
        purpose: first paragraph of the header.
        flags: flags of the shebang line.
        keys: the KEYS part, in order.
        args: names of ARGV, in order; a last one that ends in `*` takes the rest.
        returns: names of the results, in order.
        codes: result codes named in the header, such as APPLIED 0.
        source: text with includes resolved, shebang line first.
    """

    name: str
    purpose: str
    flags: tuple[str, ...]
    keys: tuple[KeySlot, ...]
    args: tuple[str, ...]
    returns: tuple[str, ...]
    codes: Mapping[str, int]
    source: str

    def text_for(self, *, shebang: bool) -> bytes:
        """The text to load. Without shebang support (Redis 6.2, fakeredis), flags have to be had another way.

        Redis 6.2 refuses a command that needs memory above maxmemory unless the script wrote before; removing a field
        that never exists is a write that needs none, and stands in for `allow-oom`.
        """
        if shebang:
            return self.source.encode()
        _, _, body = self.source.partition("\n")
        if "allow-oom" in self.flags:
            body = "redis.call('HDEL', KEYS[1], '')\n" + body if self.keys[0].type == "HASH" else body
        return body.encode()

    def call(self, named: Mapping[str, str | Sequence[str]], *args: Argument) -> "Call":
        """A call of this script with these keys, picked by the names of the header."""
        return Call(self, self.pick(named), args)

    def pick(self, named: Mapping[str, str | Sequence[str]]) -> tuple[str, ...]:
        """The keys of a call, by the names of the header."""
        keys: list[str] = []
        for slot in self.keys:
            value = named[slot.name]
            if isinstance(value, str):
                keys.append(value)
            else:
                keys.extend(value)
        return tuple(keys)


@dataclass(frozen=True)
class Library:
    """All scripts as one library of functions, for servers that have them (Redis 7 and newer, Valkey).

    Attributes:
        name: `acker_` and a digest of the text, so that clients of several versions find each its own.
        functions: script name -> function name.
        text: for FUNCTION LOAD.
    """

    name: str
    functions: Mapping[str, str]
    text: str


@dataclass(frozen=True)
class Call:
    """A script with its KEYS and ARGV, ready to be sent."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[Argument, ...]


def sha1(text: bytes) -> str:
    """The name a server gives a loaded script."""
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()


@cache
def load(name: str) -> Script:
    """Load one script of `NAMES`.

    Raises:
        ScriptFailedError: the file is missing from the installation, or its header is malformed.
    """
    text = _read(f"scripts/{name}.lua")
    header = _HEADER.match(text)
    if not header:
        raise ScriptFailedError(f"lua/{name}.lua has no header; see lua/README.md for its form")
    sections = _sections(header["text"])
    purpose = " ".join(line.strip() for line in sections[""])
    returns = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in sections.get("Returns", [])]
    codes = {code: int(value) for line in returns if len(line) > 1 for code, value in _RESULT.findall(line[1])}
    return Script(
        name=name,
        purpose=purpose,
        flags=tuple((header["flags"] or "").split(",")) if header["flags"] else (),
        keys=tuple(_key_slot(line) for line in sections.get("KEYS", [])),
        args=tuple(line.split()[0] for line in sections.get("ARGV", [])),
        returns=tuple(line[0] for line in returns),
        codes=codes,
        source=_resolve(text, seen=(f"{name}.lua",), included=set()),
    )


@cache
def library() -> Library:
    """The scripts as functions. Each is the script's own text, with KEYS and ARGV as parameters."""
    digest = sha1("".join(load(name).source for name in NAMES).encode())[:_DIGEST_CHARS]
    functions = {name: f"acker_{name}_{digest}" for name in NAMES}
    parts = [f"#!lua name=acker_{digest}\n"]
    for name in NAMES:
        script = load(name)
        _, _, body = script.source.partition("\n")
        flags = ", ".join(f"'{flag}'" for flag in script.flags)
        parts.append(
            f"redis.register_function{{function_name = '{functions[name]}', flags = {{{flags}}}, "
            f"callback = function(KEYS, ARGV)\n{body}end}}\n"
        )
    return Library(f"acker_{digest}", functions, "".join(parts))


def report(name: str) -> str:
    """The text of one of `REPORTS`, for EVAL without keys.

    Raises:
        ScriptFailedError: the file is missing from the installation.
    """
    return _read(f"scripts/{name}.lua")


def built_report(name: str) -> str:
    """The same, from its source in `lua/reports/`."""
    source = f"reports/{name}.lua"
    return f"-- Built from lua/{source} by `make lua`: change that file.\n{_resolve(_read(source), (source,), set())}"


def root() -> Traversable:
    """The folder of the Lua files: inside the installed package, or beside it in a checkout. Works from a zip."""
    inside = files("acker_redis").joinpath("lua")
    return inside if inside.is_dir() else Path(__file__).resolve().parents[2] / "lua"


def _read(path: str) -> str:
    node = root()
    for part in path.split("/"):
        node = node.joinpath(part)
    try:
        return node.read_text(encoding="utf-8")
    except OSError as exc:
        raise ScriptFailedError(f"lua/{path} is missing from this installation: install acker_redis again") from exc


def _resolve(text: str, seen: tuple[str, ...], included: set[str]) -> str:
    def replace(match: re.Match[str]) -> str:
        path = f"{match[1]}.lua"
        if path in seen:
            raise ScriptFailedError(f"circular include in lua/: {' -> '.join((*seen, path))}")
        if path in included:
            return ""
        included.add(path)
        return _resolve(_read(path), (*seen, path), included)

    return _INCLUDE.sub(replace, text)


def _sections(text: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {"": []}
    current = ""
    for line in text.splitlines():
        if line and not line.startswith(" ") and line in ("KEYS", "ARGV", "Returns", "Errors"):
            current = line
            sections[current] = []
        elif line.strip():
            sections[current].append(line)
    return sections


def _key_slot(line: str) -> KeySlot:
    name, kind, *patterns = line.split()
    return KeySlot(name, kind.rstrip("*"), kind.endswith("*"), tuple(patterns))
