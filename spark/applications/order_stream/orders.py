"""The source: orders at a steady rate, as files of JSON lines. Which of them are poison follows from their numbers."""

import json
import random
import threading
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

TICK_SECS = 0.5
POISON = 100
"""One order in so many is poison."""

KINDS = ("malformed", "hasty", "hopeless")
"""No number in it, which no attempt changes; good only after HASTY_SECS; failing at every attempt."""

HASTY_SECS = 3.0

_ITEMS = ("apple", "bread", "cheese", "dates", "eggs")


def kind_of(number: int) -> str:
    """Tell what is wrong with an order; empty for a good one."""
    return KINDS[number // POISON % len(KINDS)] if number % POISON == POISON // 2 else ""


def must_be_dead_letter(number: int) -> bool:
    """Return True if an order has to end as a dead letter."""
    return kind_of(number) in ("malformed", "hopeless")


class Orders:
    """Writes a file every half second, whole or not at all; goes on counting where the files that are there end.

    Attributes:
        folder: of the files, each named by the number of its first order and how many it has.
    """

    def __init__(self, folder: Path, per_sec: float) -> None:
        """Find the files that are there; nothing is written before `start`."""
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
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; the file under way is finished."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def ages_secs(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Compute how long ago orders were written."""
        firsts, times = np.array(self._firsts), np.array(self._times)
        ages: npt.NDArray[np.float64] = time.time() - times[np.searchsorted(firsts, numbers, side="right") - 1]
        return ages

    def write(self, count: int) -> None:
        """Write a file of so many orders."""
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
