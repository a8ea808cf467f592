"""Version of this library."""

import re

VERSION = "0.1.0"


def numbers_of(version: str) -> tuple[int, ...]:
    """Parse the numbers of a version, for comparison: `0.10.2` is (0, 10, 2). Empty if it has none."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
