"""Evidence of which operators work in a run, to tell a bad message from a broken operator.

`row.order` in place of `row["order"]` fails every message. So an undeclared exception counts as an attempt only once its
operator has processed a row of another message. If many messages fail in an operator that has processed none, the operator
is broken.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from acker_redis.errors import AckerError, OperatorBrokenError
from acker_redis.model.arrays import Int64Array
from acker_redis.spark.proof.metrics import Processed
from acker_redis.spark.worker.failures import Failure
from acker_redis.spout.in_flight import Emission, Mask

MANY_FAILED = 20
"""Failed messages after which an operator that has processed none is considered broken."""


class Verdict(NamedTuple):
    """Which failures of an emission count.

    Attributes:
        exempt: roots whose failure doesn't count as an attempt.
        broken: error to raise; None: the pipeline may be correct.
    """

    exempt: Int64Array
    broken: AckerError | None = None


class OperatorEvidence:
    """Track which operators of a run have processed messages, and which have only failed."""

    def __init__(self, *, everything_counts: bool, goes_on: bool = False, max_open: int | None = None) -> None:
        """Start without evidence.

        Args:
            everything_counts: whether every failure counts, because the user chose so or the source has few messages.
            goes_on: whether more messages may arrive at any time, as from a stream.
            max_open: limit on open messages, and so on the messages that can fail before others arrive.
        """
        self._everything_counts, self._goes_on, self._max_open = everything_counts, goes_on, max_open
        self._parked: set[int] = set()
        self._max_failed = MANY_FAILED if max_open is None else max(1, min(MANY_FAILED, max_open))
        self._processed_by: dict[str, set[int]] = {}  # with one message: only that; with none or two: any
        self._failed: dict[str, set[int]] = {}

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
        self, emission: Emission, failed: Sequence[Failure], processed: Mapping[str, Processed], *, is_last: bool
    ) -> Verdict:
        """Decide which failures of an emission count.

        Args:
            emission: emission that was run.
            failed: failures in it.
            processed: rows that each operator has processed without failing.
            is_last: whether every message of the source has been emitted.
        """
        none = np.array([], np.int64)
        if self._everything_counts:
            return Verdict(none)
        by_root = MessagesByRoot(emission)
        for operator, rows in processed.items():
            self._note(operator, set(by_root.messages_of(np.array(sorted(rows.roots), np.int64)).tolist()))
        counted, doubtful = [none], [none]
        for failure in failed:
            for reason, packed in failure.reasons.items():
                roots = np.frombuffer(packed, np.int64)
                is_doubtful = np.zeros(len(roots), np.bool_)
                messages = by_root.messages_of(roots)
                if not reason.is_expected:
                    is_doubtful = self._is_doubtful(failure.component, messages)
                    fresh = set(messages[is_doubtful].tolist()) - self._parked
                    self._failed.setdefault(failure.component, set()).update(fresh)
                    if is_doubtful.any() and self._is_broken(failure.component):
                        return Verdict(
                            emission.roots,
                            _broken(failure.component, len(self._failed[failure.component]), reason.text),
                        )
                    is_doubtful &= self._goes_on or not is_last
                counted.append(roots[~is_doubtful])
                doubtful.append(roots[is_doubtful])
        return Verdict(np.setdiff1d(np.concatenate(doubtful), np.concatenate(counted)))

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

    def _is_broken(self, operator: str) -> bool:
        return operator not in self._processed_by and len(self._failed[operator]) >= self._max_failed


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


def _broken(operator: str, count: int, text: str) -> OperatorBrokenError:
    return OperatorBrokenError(
        f"{count} messages failed in {operator!r}, which has not processed any message ({text}). The operator is probably "
        "broken, so nothing was dead-lettered. Fix it and run again. If the messages are really bad, set "
        "stop_if_all_fail=False."
    )
