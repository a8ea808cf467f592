"""Parse the header of a script: its KEYS, ARGV, results and flags. See lua/README.md for the format."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_HEADER = re.compile(r"\A#!lua(?: flags=(?P<flags>\S+))?\n--\[\[\n(?P<text>.*?)\n\]\]\n", re.DOTALL)
_RESULT = re.compile(r"\b([A-Z][A-Z_]+) (\d+)")
_SECTIONS = ("KEYS", "ARGV", "Returns", "Errors")


@dataclass(frozen=True)
class KeySlot:
    """One line of a header's KEYS section."""

    name: str
    type: str
    many: bool
    patterns: tuple[str, ...]


@dataclass(frozen=True)
class Header:
    """Contract of a script.

    Attributes:
        purpose: first paragraph of the header.
        flags: flags of the shebang line.
        keys: KEYS section, in order.
        args: names of ARGV, in order. A last name that ends in `*` takes the rest.
        returns: names of the results, in order.
        codes: result codes named in the header, such as APPLIED 0.
    """

    purpose: str
    flags: tuple[str, ...]
    keys: tuple[KeySlot, ...]
    args: tuple[str, ...]
    returns: tuple[str, ...]
    codes: Mapping[str, int]

    def pick(self, named: Mapping[str, str | Sequence[str]]) -> tuple[str, ...]:
        """Pick the keys of a call by the names in the header."""
        keys: list[str] = []
        for slot in self.keys:
            value = named[slot.name]
            if isinstance(value, str):
                keys.append(value)
            else:
                keys.extend(value)
        return tuple(keys)


def parse(text: str) -> Header | None:
    """Parse the header of a script. Returns None if it has none."""
    header = _HEADER.match(text)
    if not header:
        return None
    sections = _sections(header["text"])
    returns = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in sections.get("Returns", [])]
    return Header(
        purpose=" ".join(line.strip() for line in sections[""]),
        flags=tuple((header["flags"] or "").split(",")) if header["flags"] else (),
        keys=tuple(_key_slot(line) for line in sections.get("KEYS", [])),
        args=tuple(line.split()[0] for line in sections.get("ARGV", [])),
        returns=tuple(line[0] for line in returns),
        codes={code: int(value) for line in returns if len(line) > 1 for code, value in _RESULT.findall(line[1])},
    )


def _sections(text: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {"": []}
    current = ""
    for line in text.splitlines():
        if line in _SECTIONS:
            current = line
            sections[current] = []
        elif line.strip():
            sections[current].append(line)
    return sections


def _key_slot(line: str) -> KeySlot:
    name, kind, *patterns = line.split()
    return KeySlot(name, kind.rstrip("*"), kind.endswith("*"), tuple(patterns))
