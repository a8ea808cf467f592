"""Marks that an emission puts on its roots while it runs. The spout applies them before outcomes."""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from acker_redis.errors import AckerError
from acker_redis.model.arrays import Int64Array
from acker_redis.spout.in_flight import Emission


@dataclass(frozen=True)
class RootMark:
    """Mark on roots. `held_until` (`time.monotonic`) applies to roots that are held."""

    kind: Literal["exempt", "non_retryable", "held"]
    roots: Int64Array
    held_until: float = float("-inf")


@dataclass(frozen=True)
class PoisonMark:
    """Mark on an emission whose job failed: search it for poison messages. `at` is the time, as `time.monotonic`."""

    emission: Emission
    by_outage: bool
    waits_for: str | None = None
    error: str = ""
    at: float = float("-inf")


@dataclass(frozen=True)
class OutageMark:
    """Mark on roots that fail because something was unreachable."""

    roots: Int64Array
    operator: str


@dataclass(frozen=True)
class FailureMark:
    """Reason for which rows of these roots failed in the emission of this number, and the component that failed them."""

    number: int
    roots: Int64Array
    reason: str
    component: str | None


@dataclass(frozen=True)
class PassedMark:
    """Rows that got through an operator in an emission: those of one message, or of several (None)."""

    operator: str
    number: int
    message: int | None


@dataclass(frozen=True)
class AsideMark:
    """Mark on roots that fail in an operator that is probably broken. `error` is the error of a run that ends for it."""

    operator: str
    roots: Int64Array
    error: AckerError


@dataclass(frozen=True)
class BackMark:
    """An operator that works after all, so that messages that were set aside for it are emitted again."""

    operator: str


Mark: TypeAlias = RootMark | PoisonMark | OutageMark | FailureMark | PassedMark | AsideMark | BackMark


class Marks:
    """Marks of a spout. Any thread may add marks, as `emit` does.

    Add a mark before you fail its roots. Otherwise their outcomes may be applied first. Roots that aren't in flight are
    ignored.
    """

    def __init__(self) -> None:
        """Start without marks."""
        self._marks: deque[Mark] = deque()

    def collect(self) -> Iterator[Mark]:
        """Yield and remove all marks, in order. Only the spout calls this.

        >>> spout.marks.exempt(np.array([7]))
        >>> [mark.kind for mark in spout.marks.collect()]
        ['exempt']
        """
        while self._marks:
            yield self._marks.popleft()

    def exempt(self, roots: Int64Array) -> None:
        """Exempt these roots: if they fail, time out or get lost, their messages count no attempt.

        Use it for work that was interrupted.

        >>> spout.add(np.array([7, 8]))
        >>> spout.marks.exempt(spout.next_emission().roots)
        """
        self._marks.append(RootMark("exempt", roots))

    def non_retryable(self, roots: Int64Array) -> None:
        """Dead-letter the messages of these roots if they fail or time out, whatever `retry` says.

        >>> spout.add(np.array([7, 8]))
        >>> roots = spout.next_emission().roots
        >>> spout.marks.non_retryable(roots[:1])
        """
        self._marks.append(RootMark("non_retryable", roots))

    def outage(self, roots: Int64Array, operator: str) -> None:
        """Count no attempt if these roots fail, because something was unreachable. See `RetryPolicy.outage_secs`.

        Args:
            roots: the roots.
            operator: operator or sink in which their rows failed.

        >>> spout.add(np.array([7, 8]))
        >>> spout.marks.outage(spout.next_emission().roots[:1], "geocode")
        """
        self._marks.append(OutageMark(roots, operator))

    def failed(self, number: int, roots: Int64Array, *, reason: str, component: str | None) -> None:
        """Note for which reason roots are about to fail. It replaces a timeout that comes first because the server hung.

        Args:
            number: number of their emission.
            roots: the roots.
            reason: text of the fail.
            component: component in which their rows failed.

        >>> spout.add(np.array([7, 8]))
        >>> emission = spout.next_emission()
        >>> spout.marks.failed(emission.number, emission.roots[:1], reason="no such customer", component="parse")
        """
        self._marks.append(FailureMark(number, roots, reason, component))

    def passed(self, operator: str, number: int, message: int | None) -> None:
        """Note that an operator or sink has processed rows in an emission, so that there is no outage.

        Args:
            operator: its name.
            number: number of the emission.
            message: message of all these rows; None: they are of several messages.

        >>> spout.marks.passed("geocode", 0, None)
        """
        self._marks.append(PassedMark(operator, number, message))

    def set_aside(self, roots: Int64Array, operator: str, error: AckerError) -> None:
        """Set the messages of these roots aside if they fail, because an operator is probably broken.

        They count no attempt, and aren't emitted again before `bring_back`. When only such messages are left, the run ends
        with the error.

        Args:
            roots: the roots.
            operator: operator in which their rows failed.
            error: error that ends the run.

        >>> spout.add(np.array([7, 8]))
        >>> spout.marks.set_aside(spout.next_emission().roots[:1], "geocode", AckerError("'geocode' is broken."))
        """
        self._marks.append(AsideMark(operator, roots, error))

    def bring_back(self, operator: str) -> None:
        """Emit messages again that were set aside for an operator, because it works after all.

        >>> spout.marks.bring_back("geocode")
        """
        self._marks.append(BackMark(operator))

    def search_for_poison(
        self, emission: Emission, *, by_outage: bool = False, waits_for: str | None = None, error: str = ""
    ) -> None:
        """Search an emission for the message that made its job fail.

        The messages are replayed in parts, between other emissions. Parts that fail are split again, until each message
        that fails its emission is alone. Only then does the failure count as an attempt. Later attempts of that message are
        alone, too.

        If several messages fail alone while no other emission succeeds, none of them is to blame. The run ends with the
        error. A spout that `goes_on` keeps them until another emission has succeeded.

        Args:
            emission: emission that `emit` received.
            by_outage: True if the error means that something is unreachable. No failure counts then while nothing succeeds.
            waits_for: sink whose job failed so, if that is no attempt either (`RetryPolicy.outage_secs`).
            error: how it failed, for people.

        >>> spout.add(np.array([7, 8]))
        >>> spout.marks.search_for_poison(spout.next_emission())
        """
        self._marks.append(PoisonMark(emission, by_outage, waits_for, error, time.monotonic()))

    def hold(self, roots: Int64Array, delay_secs: float = 0.0) -> None:
        """Repeat the work on these roots later, in one emission with all other messages, though it is done.

        If they fail, no attempt counts. Their messages are replayed once no other message waits or is in flight, after
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
