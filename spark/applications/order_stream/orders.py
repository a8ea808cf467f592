"""Source of orders: files of JSON lines at a steady rate. An order's number determines whether it is poison."""

import json
import random
import threading
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

TICK_SECS = 0.5
POISON = 100
"""One order in this many is poison."""

KINDS = ("malformed", "hasty", "hopeless")
"""Kinds of poison: a price that is no number; good only after HASTY_SECS; failing at every attempt."""

HASTY_SECS = 3.0

_ITEMS = ("apple", "bread", "cheese", "dates", "eggs")


def kind_of(number: int) -> str:
    """Return the kind of poison of an order; empty for a good one."""
    return KINDS[number // POISON % len(KINDS)] if number % POISON == POISON // 2 else ""


def must_be_dead_letter(number: int) -> bool:
    """Return True if an order must become a dead letter."""
    return kind_of(number) in ("malformed", "hopeless")


class Orders:
    """Write a complete file of orders every half second, numbered after those in existing files.

    Attributes:
        folder: folder of the files. A file is named after the number of its first order and its count of orders.
    """

    def __init__(self, folder: Path, per_sec: float) -> None:
        """Read the existing files. `start` begins to write."""
        self.folder = folder / "orders"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._draft = folder / "orders.draft"
        self._per_sec = per_sec
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orders", daemon=True)
        written = sorted((_span(path), path.stat().st_mtime) for path in self.folder.glob("*.json"))
        self._firsts = [first for (first, _), _ in written]
        self._times = [at for _, at in written]
        self.made = sum(written[-1][0]) if written else 0

    def start(self) -> None:
        """Start writing."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current file."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def ages_secs(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Compute the ages of orders, in seconds."""
        firsts, times = np.array(self._firsts), np.array(self._times)
        ages: npt.NDArray[np.float64] = time.time() - times[np.searchsorted(firsts, numbers, side="right") - 1]
        return ages

    def write(self, count: int) -> None:
        """Write a file of `count` orders."""
        draw, now = random.Random(self.made), time.time()
        lines = [json.dumps(_order(number, now, draw)) for number in range(self.made, self.made + count)]
        self._draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self._firsts.append(self.made)  # known before it can be read
        self._times.append(now)
        self._draft.rename(self.folder / f"{self.made:012}-{count}.json")
        self.made += count

    def _run(self) -> None:
        due = 0.0
        while not self._stop.wait(TICK_SECS):
            due += self._per_sec * TICK_SECS
            if due >= 1:
                self.write(int(due))
                due -= int(due)


def _order(number: int, now: float, draw: random.Random) -> dict[str, object]:
    price: object = f"{draw.randrange(100, 10_000) / 100:.2f}"
    if kind_of(number) == "malformed":
        price = "a fortune"
    return {"id": number, "item": draw.choice(_ITEMS), "price": price, "made_ms": int(now * 1000)}


def _span(path: Path) -> tuple[int, int]:
    first, _, count = path.stem.partition("-")
    return int(first), int(count)
