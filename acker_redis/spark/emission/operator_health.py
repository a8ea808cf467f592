"""Judge which operators work in a run, to tell a bad message from a broken operator.

`row.order` in place of `row["order"]` fails every message. So an undeclared exception counts as an attempt only once its
operator has processed a row of another message. If many messages fail in an operator that has processed none, the operator
is broken. If sinks have got rows through all the same, only a branch of the pipeline is broken. Then a run sets the messages
of that branch aside, and completes the others before it ends.

In a stream, an operator may get so few messages that neither happens. After an hour, its bad messages are set aside, too.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from acker_redis.errors import AckerError, OperatorBrokenError
from acker_redis.model.arrays import Int64Array
from acker_redis.spark.emission.corrupt_records import READ_FILES
from acker_redis.spark.proof.meters import Processed
from acker_redis.spark.worker.failures import Failure, Reason
from acker_redis.spout.in_flight import Emission, Mask

MANY_FAILED = 20
"""Failed messages after which an operator that has processed none is considered broken."""

SET_ASIDE_SECS = 3600.0
"""Time for which a stream tries messages again that failed in an operator that has processed no other."""


class BrokenBranch(NamedTuple):
    """An operator for which messages are set aside, because it is probably broken, or because a stream tried them enough.

    Attributes:
        operator: its name.
        roots: roots to set aside.
        error: error to raise at the end of a run. A stream shows it.
    """

    operator: str
    roots: Int64Array
    error: AckerError


class _Tries(NamedTuple):
    """Attempts of a message that don't count: their number, and the time of the first, as `time.monotonic`."""

    number: int
    since: float


class Verdict(NamedTuple):
    """Which failures of an emission count.

    Attributes:
        exempt: roots whose failure doesn't count as an attempt.
        broken: error to raise; None: the pipeline may be correct.
        branches: operators whose messages are set aside.
        working: operators that were one of these, and have processed a message now.
    """

    exempt: Int64Array
    broken: AckerError | None = None
    branches: Sequence[BrokenBranch] = ()
    working: Sequence[str] = ()


class OperatorHealth:
    """Track which operators of a run have processed messages, and which have only failed."""

    def __init__(
        self,
        *,
        everything_counts: bool,
        goes_on: bool = False,
        max_open: int | None = None,
        completes_others: bool = False,
        max_attempts: int | None = None,
    ) -> None:
        """Start without evidence.

        Args:
            everything_counts: whether every failure counts, because the user chose so or the source has few messages.
            goes_on: whether more messages may arrive at any time, as from a stream.
            max_open: limit on open messages, and so on the messages that can fail before others arrive.
            completes_others: whether a run with a broken operator completes other messages first, if a sink has got rows.
            max_attempts: number of attempts after which, and after `SET_ASIDE_SECS`, a message is set aside that failed in
                an operator that has processed no other. None: it is tried for good.
        """
        self._everything_counts, self._goes_on, self._max_open = everything_counts, goes_on, max_open
        self._parked: set[int] = set()
        self._max_failed = MANY_FAILED if max_open is None else max(1, min(MANY_FAILED, max_open))
        self._processed_by: dict[str, set[int]] = {}  # with one message: only that; with none or two: any
        self._failed: dict[str, set[int]] = {}
        self._completes_others, self._has_written = completes_others, False
        self._branches: set[str] = set()
        self._max_attempts = max_attempts
        self._tries: dict[str, dict[int, _Tries]] = {}
        self._aside: dict[str, set[int]] = {}

    def expect(self, messages: int) -> None:
        """Set the number of messages of the source. Each failure counts if there are few."""
        self._everything_counts |= messages < MANY_FAILED

    def add_parked(self, message_ids: Sequence[int]) -> None:
        """Add messages that an earlier start has parked.

        They are the bad ones of many, and go out before others. So they don't show that an operator is broken, unless they
        leave no room for others.
        """
        if self._max_open is None or len(message_ids) < self._max_open:
            self._parked.update(message_ids)

    def judge(
        self,
        emission: Emission,
        failed: Sequence[Failure],
        processed: Mapping[str, Processed],
        *,
        is_last: bool,
        has_written: bool = False,
    ) -> Verdict:
        """Decide which failures of an emission count.

        Args:
            emission: emission that was run.
            failed: failures in it.
            processed: rows that each operator has processed without failing.
            is_last: whether every message of the source has been emitted.
            has_written: whether a sink has got rows in this emission.
        """
        none = np.array([], np.int64)
        if self._everything_counts:
            return Verdict(none)
        self._has_written |= has_written
        by_root = MessagesByRoot(emission)
        for operator, rows in processed.items():
            self._note(operator, set(by_root.messages_of(np.array(sorted(rows.roots), np.int64)).tolist()))
        working = sorted((self._branches & self._processed_by.keys()) | self._cleared())
        self._branches.difference_update(working)
        branches = list[BrokenBranch]()
        counted, doubtful, reasons = [none], dict[str, list[Int64Array]](), dict[str, Reason]()
        for failure in failed:
            counted.append(roots_in(packed for reason, packed in failure.reasons.items() if reason.is_expected))
            unexpected = {reason: packed for reason, packed in failure.reasons.items() if not reason.is_expected}
            if unexpected:
                roots = roots_in(unexpected.values())
                messages = by_root.messages_of(roots)
                is_doubtful = self._is_doubtful(failure.component, messages)
                fresh = set(messages[is_doubtful].tolist()) - self._parked
                self._failed.setdefault(failure.component, set()).update(fresh)
                reasons.setdefault(failure.component, next(iter(unexpected)))
                doubtful.setdefault(failure.component, []).append(roots[is_doubtful])
                branches += self._tried(failure.component, roots[is_doubtful], messages[is_doubtful], reasons)
                counted.append(roots[~is_doubtful])
        broken = [
            operator for operator, parts in doubtful.items() if any(map(len, parts)) and self._is_broken(operator)
        ]
        errors = {
            operator: _broken(operator, len(self._failed[operator]), reasons[operator], is_branch=self._is_branch)
            for operator in broken
        }
        if broken and not self._is_branch:
            return Verdict(emission.roots, errors[broken[0]], working=working)
        self._branches.update(broken)
        if is_last and not self._goes_on:
            for operator in doubtful.keys() - set(broken):
                counted += doubtful.pop(operator)
        is_counted = np.concatenate(counted)
        exempt = {operator: np.setdiff1d(np.concatenate(parts), is_counted) for operator, parts in doubtful.items()}
        branches += [BrokenBranch(operator, exempt[operator], errors[operator]) for operator in broken]
        return Verdict(np.unique(np.concatenate([none, *exempt.values()])), None, branches, working)

    @property
    def _is_branch(self) -> bool:
        """True if a broken operator is only in one of several branches, so that a run completes other messages first."""
        return self._completes_others and self._has_written

    def _note(self, operator: str, messages: set[int]) -> None:
        known = self._processed_by.get(operator)
        if known is None:
            self._processed_by[operator] = messages
        elif len(known) == 1:
            self._processed_by[operator] = known | messages if messages else set()
        self._failed.pop(operator, None)

    def _is_doubtful(self, operator: str, messages: Int64Array) -> Mask:
        known = self._processed_by.get(operator)
        if known is None:
            return np.ones(len(messages), np.bool_)
        return np.isin(messages, list(known)) if len(known) == 1 else np.zeros(len(messages), np.bool_)

    def _tried(
        self, operator: str, roots: Int64Array, messages: Int64Array, reasons: Mapping[str, Reason]
    ) -> Iterator[BrokenBranch]:
        """Note attempts that don't count, and yield the messages of them that are set aside now."""
        if self._max_attempts is None or not len(messages):
            return
        now, tries = time.monotonic(), self._tries.setdefault(operator, {})
        aside = self._aside.setdefault(operator, set())
        for message in dict.fromkeys(messages.tolist()):
            earlier = tries.get(message, _Tries(0, now))
            tries[message] = _Tries(earlier.number + 1, earlier.since)
            is_enough = tries[message].number >= self._max_attempts and now - earlier.since >= SET_ASIDE_SECS
            if is_enough and len(aside) < self._max_failed - 1:
                aside.add(message)
        if len(roots := roots[np.isin(messages, list(aside))]):
            yield BrokenBranch(operator, roots, AckerError(reasons[operator].text))

    def _cleared(self) -> set[str]:
        """Forget the attempts of operators that have processed another message. Return those with messages set aside."""
        cleared = {
            operator
            for operator in self._tries.keys() & self._processed_by.keys()
            if not self._is_doubtful(operator, np.array(list(self._tries[operator]), np.int64)).all()
        }
        for operator in cleared:
            del self._tries[operator]
        return {operator for operator in cleared if self._aside.pop(operator)}

    def _is_broken(self, operator: str) -> bool:
        return operator not in self._processed_by and len(self._failed[operator]) >= self._max_failed


def with_retries(failed: Sequence[Failure], doubtful: Int64Array) -> list[Failure]:
    """Return the failures with a retry for unreadable records that may be good ones of a wrong schema.

    Args:
        failed: failures of an emission.
        doubtful: roots whose failure doesn't count (`Verdict.exempt`).
    """

    def of(reason: Reason, packed: bytes) -> Reason:
        is_final = reason.retry or reason.is_expected or not np.isin(np.frombuffer(packed, np.int64), doubtful).any()
        return reason if is_final else reason._replace(retry=True)

    if not len(doubtful):
        return list(failed)
    return [
        replace(failure, reasons={of(reason, packed): packed for reason, packed in failure.reasons.items()})
        for failure in failed
    ]


class MessagesByRoot:
    """Look up the messages of one emission by root."""

    def __init__(self, emission: Emission) -> None:
        order = np.argsort(emission.roots)
        self._roots, self._messages = emission.roots[order], emission.message_ids[order]

    def messages_of(self, roots: Int64Array) -> Int64Array:
        """Return the messages of `roots`, which must belong to this emission."""
        places = np.searchsorted(self._roots, roots)
        places[places == len(self._roots)] = 0
        return self._messages[places] if len(self._roots) else roots[:0]


def roots_in(packed: Iterable[bytes]) -> Int64Array:
    """Return the distinct roots of failures, in order. See `Failure.reasons`."""
    return np.unique(np.concatenate([np.array([], np.int64), *(np.frombuffer(roots, np.int64) for roots in packed)]))


def _broken(operator: str, count: int, reason: Reason, *, is_branch: bool) -> OperatorBrokenError:
    done = "nothing was dead-lettered for it, and the run completed other messages first" if is_branch else (
        "nothing was dead-lettered"
    )  # fmt: skip
    if operator == READ_FILES and not reason.retry:
        return OperatorBrokenError(
            f"{count} records of {operator} can't be read, and no record could be. Its schema is probably wrong, or the "
            f"files aren't UTF-8, so {done}. Correct the schema or convert the files, and run again. If the records are "
            f"really bad, set stop_if_broken=False. One of them: {reason.text}"
        )
    return OperatorBrokenError(
        f"{count} messages failed in {operator!r}, which has not processed any message ({reason.text}). The operator is "
        f"probably broken, so {done}. Fix it and run again. If the messages are really bad, set stop_if_broken=False."
    )
