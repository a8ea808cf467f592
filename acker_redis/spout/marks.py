"""Notes that an emission leaves about its roots while it is under way, for the spout, which takes them before outcomes."""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from acker_redis.model.arrays import Int64Array
from acker_redis.spout.in_flight import Emission


@dataclass(frozen=True)
class RootMark:
    """What is noted about roots; `held_until` (`time.monotonic`) is of those that are held."""

    kind: Literal["exempt", "non_retryable", "held"]
    roots: Int64Array
    held_until: float = float("-inf")


@dataclass(frozen=True)
class PoisonMark:
    """An emission whose job failed, in which poison messages are to be searched for."""

    emission: Emission
    by_outage: bool


Mark: TypeAlias = RootMark | PoisonMark


class Marks:
    """Marks of one spout. Any thread may add one, as `emit` does, before it fails the roots; else their outcomes may be first.

    Roots that are not in flight are left out.
    """

    def __init__(self) -> None:
        """Nothing is noted yet."""
        self._marks: deque[Mark] = deque()

    def take(self) -> Iterator[Mark]:
        """Take all marks, in their order; the spout does.

        >>> spout.marks.exempt(np.array([7]))
        >>> [mark.kind for mark in spout.marks.take()]
        ['exempt']
        """
        while self._marks:
            yield self._marks.popleft()

    def exempt(self, roots: Int64Array) -> None:
        """Don't count it as an attempt of their messages if these roots fail, time out or get lost: the work was broken off.

        >>> spout.add(np.array([7, 8]))
        >>> spout.marks.exempt(spout.next_emission().roots)
        """
        self._marks.append(RootMark("exempt", roots))

    def non_retryable(self, roots: Int64Array) -> None:
        """Emit no message again whose root among these fails or times out: it is a dead letter then, whatever `retry` says.

        >>> spout.add(np.array([7, 8]))
        >>> roots = spout.next_emission().roots
        >>> spout.marks.non_retryable(roots[:1])
        """
        self._marks.append(RootMark("non_retryable", roots))

    def search_for_poison(self, emission: Emission, *, by_outage: bool = False) -> None:
        """Find out which message of an emission is to blame, whose job failed.

        They are emitted again in parts, and parts that fail in parts of them, between other emissions, until each message
        that fails its emission is alone. Only then it counts as an attempt, and later ones are alone, too. If several
        messages fail theirs alone while nothing else succeeds, none of them is to blame, and the run ends with the error; a
        spout that `goes_on` keeps them until something else has succeeded.

        Args:
            emission: as it was given to `emit`.
            by_outage: whether the error says that something can't be reached. Then nothing counts while nothing succeeds.

        >>> spout.add(np.array([7, 8]))
        >>> spout.marks.search_for_poison(spout.next_emission())
        """
        self._marks.append(PoisonMark(emission, by_outage))

    def hold(self, roots: Int64Array, delay_secs: float = 0.0) -> None:
        """Do the work on these roots again, together with that on all other messages, though it is done.

        That they fail doesn't count as an attempt. Their messages are emitted again once no other waits or is in flight, all
        in one emission, after `delay_secs` at the earliest.

        >>> spout.add(np.array([7, 8]))
        >>> roots = spout.next_emission().roots
        >>> spout.marks.hold(roots)
        >>> acker.init_many(roots, np.ones_like(roots), spout_id=0).applied, acker.fail_many(roots).applied
        (2, 2)
        >>> spout.poll(), spout.counts.released
        (2, 2)
        """
        self._marks.append(RootMark("held", roots, time.monotonic() + delay_secs))
