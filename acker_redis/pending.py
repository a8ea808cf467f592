"""What a spout has in flight. No I/O."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from acker_redis import ids

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Emission:
    """Messages emitted together.

    Attributes:
        number: counts the emissions of this spout; part of the fence tokens of everything made from them.
        message_ids: 64-bit ids the source knows its messages by.
        attempts: 0 for a first emission, per message.
        roots: root of each, as `root_ids` derives it.
    """

    number: int
    message_ids: Int64Array
    attempts: Int64Array
    roots: Int64Array


@dataclass
class InFlight:
    """An emission, by root.

    Attributes:
        excused: it was broken off by an outage, so roots that got lost or time out don't count against their messages.
    """

    emission: Emission
    order: npt.NDArray[np.intp]
    sorted_roots: Int64Array
    open: npt.NDArray[np.bool_]
    excused: bool = False

    def find(self, roots: Int64Array) -> Int64Array:
        """For each root the row that is open for it, -1 for none."""
        place = np.minimum(np.searchsorted(self.sorted_roots, roots), len(self.sorted_roots) - 1)
        return np.where((self.sorted_roots[place] == roots) & self.open[place], place, -1)

    def message(self, row: int) -> tuple[int, int]:
        """The message and attempt of a row."""
        index = self.order[row]
        return int(self.emission.message_ids[index]), int(self.emission.attempts[index])


def root_ids(app: str, run: str, message_ids: Int64Array, attempts: Int64Array) -> Int64Array:
    """Roots of emissions: derived from (app, run, message, attempt), so executors and spout agree without talking."""
    seed = ids.derive(app, run)
    return ids.derive_many(seed, message_ids.view(np.uint64), attempts.view(np.uint64)).view(np.int64)
