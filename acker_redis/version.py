"""The library's own version."""

import re

VERSION = "0.1.0"


def numbers_of(version: str) -> tuple[int, ...]:
    """The numbers of a version, to be compared: `0.10.2` is (0, 10, 2). Empty: it has none."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
