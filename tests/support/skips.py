"""Summary of skipped tests at the end of a run: how many, why, and what to install to run them."""

import re
from collections import Counter
from collections.abc import Iterable

_INSTALL = re.compile(r"\((apt-get install|pip install) ([^)]+)\)$")


def summary(reasons: Iterable[str]) -> list[str]:
    """Return lines about the reasons of skipped tests, as pytest reports them."""
    counts = Counter(reason.removeprefix("Skipped: ") for reason in reasons)
    lines = [f"{sum(counts.values())} tests were skipped:"]
    packages: dict[str, dict[str, None]] = {}
    for reason, count in counts.most_common():
        remedy = _INSTALL.search(reason)
        if remedy:
            packages.setdefault(remedy[1], {}).update(dict.fromkeys(remedy[2].split()))
        lines.append(f"  {count:>5}  {reason[: remedy.start()].rstrip() if remedy else reason}")
    lines += [f"to run them: {how} {' '.join(names)}" for how, names in packages.items()]
    return lines
