"""What a run of the tests says at its end of those it skipped: how many, why, and what to install to run them."""

import re
from collections import Counter
from collections.abc import Iterable

_INSTALL = re.compile(r"\((apt-get install|pip install) ([^)]+)\)$")


def said(reasons: Iterable[str]) -> list[str]:
    """Lines about the reasons of skipped tests, as pytest reports them."""
    counts = Counter(reason.removeprefix("Skipped: ") for reason in reasons)
    lines = [f"{sum(counts.values())} tests were skipped:"]
    packages: dict[str, dict[str, None]] = {}
    for reason, count in counts.most_common():
        found = _INSTALL.search(reason)
        if found:
            packages.setdefault(found[1], {}).update(dict.fromkeys(found[2].split()))
        lines.append(f"  {count:>5}  {reason[: found.start()].rstrip() if found else reason}")
    lines += [f"to run them: {how} {' '.join(names)}" for how, names in packages.items()]
    return lines
