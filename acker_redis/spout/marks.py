"""Marks that an emission leaves on its roots while it is under way; the spout takes them before outcomes."""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from acker_redis.model.arrays import Int64Array
from acker_redis.spout.in_flight import Emission


@dataclass(frozen=True)
class RootMark:
    """A mark on roots; `held_until` (`time.monotonic`) is for those that are held."""

    kind: Literal["exempt", "non_retryable", "held"]
    roots: Int64Array
    held_until: float = float("-inf")


@dataclass(frozen=True)
class PoisonMark:
    """A mark on an emission whose job failed: search it for poison messages."""

    emission: Emission
    by_outage: bool


Mark: TypeAlias = RootMark | PoisonMark


class Marks:
    """Marks of a spout. Any thread may add a mark, as `emit` does, before it fails the roots; else outcomes may come first.

    Roots that are not in flight are left out.
    """

    def __init__(self) -> None:
        """Start without marks."""
        self._marks: deque[Mark] = deque()

    def collect(self) -> Iterator[Mark]:
        """Take all marks, in their order; the spout does.

        >>> spout.marks.exempt(np.array([7]))
        >>> [mark.kind for mark in spout.marks.collect()]
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
        """Emit no message again whose root is among these and fails or times out: it is a dead letter, whatever `retry` says.

        >>> spout.add(np.array([7, 8]))
        >>> roots = spout.next_emission().roots
        >>> spout.marks.non_retryable(roots[:1])
        """
        self._marks.append(RootMark("non_retryable", roots))

    def search_for_poison(self, emission: Emission, *, by_outage: bool = False) -> None:
        """Find out which message of an emission is to blame for its failed job.

        The messages are emitted again in parts, and parts that fail in smaller parts, between other emissions, until each
        message that fails its emission is alone. Only then the failure counts as an attempt, and later attempts of the
        message are alone, too. If several messages fail alone while no other emission succeeds, none of them is to blame, and
        the run ends with the error; a spout that `goes_on` keeps them until another emission has succeeded.

        Args:
            emission: as it was given to `emit`.
            by_outage: whether the error says that something can't be reached. Then no failure counts while nothing succeeds.

        >>> spout.add(np.array([7, 8]))
        >>> spout.marks.search_for_poison(spout.next_emission())
        """
        self._marks.append(PoisonMark(emission, by_outage))

    def hold(self, roots: Int64Array, delay_secs: float = 0.0) -> None:
        """Do the work on these roots again, in one emission with all other messages, though it is done.

        Their failing doesn't count as an attempt. Their messages are emitted again once no other waits or is in flight, after
        `delay_secs` at the earliest.

        >>> spout.add(np.array([7, 8]))
        >>> roots = spout.next_emission().roots
        >>> spout.marks.hold(roots)
        >>> acker.init_many(roots, np.ones_like(roots), spout_id=0).applied, acker.fail_many(roots).applied
        (2, 2)
        >>> spout.poll(), spout.counts.released
        (2, 2)
        """
        self._marks.append(RootMark("held", roots, time.monotonic() + delay_secs))
