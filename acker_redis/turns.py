"""Whose turn it is in a rotator, where an operator gave apps a share of its calls."""

from collections.abc import Mapping, Sequence


class Turns:
    """Turns of apps; one with a share below 1 waits after its turn, until the others that are due have had their part.

    After a turn of n calls an app with share F lets n (1 - F) / F calls of others pass. Where only such apps are due, none has
    to wait, and nothing is owed any more.
    """

    def __init__(self) -> None:
        """No app has a share, so all are equal."""
        self._shares: Mapping[str, float] = {}
        self._owed: dict[str, float] = {}

    def share(self, shares: Mapping[str, float]) -> None:
        """From now on these apps have these shares, and the others none."""
        self._shares = shares
        self._owed = {name: owed for name, owed in self._owed.items() if name in shares}

    def next(self, due: Sequence[str]) -> list[str]:
        """Of the apps that are due, those whose turn it is; all of them, where each would have to wait."""
        free = [name for name in due if self._owed.get(name, 0.0) <= 0]
        if free:
            return free
        self._owed.clear()
        return list(due)

    def took(self, name: str, calls: int, due: Sequence[str]) -> None:
        """An app took so many calls, while these were due: its own turn costs it, and pays for the others that wait."""
        for other in due:
            if other != name and other in self._owed:
                self._owed[other] -= calls
        share = self._shares.get(name, 1.0)
        if share < 1:
            self._owed[name] = calls * (1 - share) / share
