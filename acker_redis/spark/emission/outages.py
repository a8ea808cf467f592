"""Failures by an outage, which count no attempt, and rows that got through, which show that there is none."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from redis.retry import Retry

from acker_redis.model.arrays import Int64Array
from acker_redis.outages import Backoff, is_outage
from acker_redis.spark.emission.operator_health import MessagesByRoot, roots_in
from acker_redis.spark.proof.blame import line_of, outage_of
from acker_redis.spark.proof.meters import Processed
from acker_redis.spark.worker.failures import Failure
from acker_redis.spout.emission_marks import Marks
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.outage_table import ANY_OPERATOR
from acker_redis.spout.retry import RetryPolicy

log = logging.getLogger("acker_redis.spark")

_T = TypeVar("_T")

PAUSE_SECS, _LONGEST_PAUSE_SECS = 0.5, 30.0
"""First and longest pause between two reads of a source that can't be reached."""


def patiently(call: Callable[[], _T], outage_secs: float, what: str = "source of messages") -> _T:
    """Call a function that reads or writes. While that can't be reached, call it again after growing pauses.

    Args:
        call: the function.
        outage_secs: time after which the error of an outage is raised, in seconds.
        what: what it reads or writes, for the log.

    Raises:
        Exception: what the function raised, unless it was an outage within that time.
    """
    began = time.monotonic()

    def may_read_again(error: Exception) -> bool:
        waits = outage_of(error) is not None or is_outage(error)
        if waits := waits and time.monotonic() - began < outage_secs:
            log.warning("unreachable, will try again what=%s error=%s", what, line_of(error))
        return waits

    pauses = Backoff(base=PAUSE_SECS, cap=_LONGEST_PAUSE_SECS)
    retry: Retry = Retry(pauses, -1, supported_errors=(Exception,))
    return retry.call_with_retry(call, lambda error: None, is_retryable=may_read_again)


def without_outages(failed: Sequence[Failure], retry: RetryPolicy) -> list[Failure]:
    """Return the failures that count: those that are no outage, or that the retry policy names or doesn't wait for."""
    counted = []
    for failure in failed:
        reasons = {
            reason: packed
            for reason, packed in failure.reasons.items()
            if not (reason.is_outage and retry.waits_for(reason.text))
        }
        if reasons or not failure.reasons:
            counted.append(replace(failure, reasons=reasons))
    return counted


def mark_outages(
    marks: Marks,
    emission: Emission,
    failed: Sequence[Failure],
    counted: Sequence[Failure],
    processed: Mapping[str, Processed],
) -> None:
    """Mark the roots that failed by outages alone, and note which operators and sinks have processed rows.

    Args:
        marks: marks of the spout.
        emission: emission that was run.
        failed: all failures in it.
        counted: those that are no outage, as `without_outages` returns them.
        processed: rows that each operator has processed without failing.
    """
    of_others = roots_in(packed for failure in counted for packed in failure.reasons.values())
    kept = {(failure.component, reason) for failure in counted for reason in failure.reasons}
    by_outage: dict[str, Int64Array] = {}
    for failure in failed:
        packed = (of for reason, of in failure.reasons.items() if (failure.component, reason) not in kept)
        roots = np.setdiff1d(roots_in(packed), of_others)
        if len(roots):
            before = by_outage.get(failure.component, roots)
            by_outage[failure.component] = np.union1d(before, roots)
    _note_processed(marks, emission, processed, by_outage)
    marked = np.array([], np.int64)
    for component, roots in by_outage.items():
        marks.outage(np.setdiff1d(roots, marked), component)
        marked = np.union1d(marked, roots)


def _note_processed(
    marks: Marks, emission: Emission, processed: Mapping[str, Processed], by_outage: Mapping[str, Int64Array]
) -> None:
    by_root = MessagesByRoot(emission)
    count = len(emission.message_ids)
    several = False
    single: int | None = None
    for operator, rows in processed.items():
        messages = np.unique(by_root.messages_of(np.array(sorted(rows.roots), np.int64))).tolist()
        if not messages and count == 1:
            messages = emission.message_ids.tolist()
        if not messages and len(by_outage.get(operator, ())) >= count:
            continue  # these rows are of messages that failed there, too, and it isn't known of which
        message = messages[0] if len(messages) == 1 else None
        marks.passed(operator, emission.number, message)
        several, single = several or message is None, message
    if several or single is not None:
        marks.passed(ANY_OPERATOR, emission.number, None if several else single)
