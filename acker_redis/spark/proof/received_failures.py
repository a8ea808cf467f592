"""Failures that reach the driver in an accumulator, with their tasks' results."""

import re
import threading
from collections.abc import Collection
from weakref import WeakKeyDictionary

from pyspark import Accumulator, SparkContext

from acker_redis.client.backoff import describes_outage
from acker_redis.spark.runtime.worker_errors import text_of
from acker_redis.spark.worker.failures import Failure, FailuresParam, Reason, reason_of

_accumulators: WeakKeyDictionary[SparkContext, Accumulator[list[Failure]]] = WeakKeyDictionary()
_lock = threading.Lock()

_TASK_ERROR = re.compile(r"most recent failure: Lost task \S+ in stage \S+ \(TID \d+\)(?: \([^)]*\))?: ([^\n]+)")
"""The error of the task that ended a job, in the text of a Java error."""

_TRACEBACK = "Traceback (most recent call last):\n"


def failures_accumulator(context: SparkContext) -> Accumulator[list[Failure]]:
    """Return the accumulator of a Spark application.

    There is only one, because PySpark never drops any.
    """
    with _lock:
        if context not in _accumulators:
            _accumulators[context] = context.accumulator([], FailuresParam())
        return _accumulators[context]


class ReceivedFailures:
    """The failures of one emission.

    If a task ran twice, it sent two failures. The metered rows name one of them.
    """

    def __init__(self, context: SparkContext, emission: str) -> None:
        self._accumulator, self._emission = failures_accumulator(context), emission
        self._by_number: dict[int, Failure] = {}

    def failures(self, operator: str, numbers: Collection[int]) -> list[Failure] | None:
        """Return the failures of an operator with these numbers, or None if any is missing."""
        self._collect()
        by_number = {number: self._by_number[number] for number in numbers if number in self._by_number}
        failures = [failure for failure in by_number.values() if failure.operator == operator]
        return failures if len(failures) == len(numbers) else None

    def forget(self) -> None:
        """Drop all failures of the emission."""
        self._collect()
        self._by_number.clear()

    def _collect(self) -> None:
        """Move the emission's failures out of the accumulator. Another thread may add to it meanwhile."""
        value = self._accumulator.value
        for failure in list(value):
            if failure.operator.startswith(self._emission):
                value.remove(failure)
                self._by_number[failure.number] = failure


def cause_of(exc: BaseException) -> Reason:
    """Return the reason why rows failed together, as one line.

    It is the error in the worker, or the one that ended its task, if the text has either.
    """
    text = text_of(exc)
    if text is None:
        return Reason(type(exc).__name__, is_expected=False)
    _, traceback, last = text.rpartition(_TRACEBACK)
    raised = next((line for line in last.splitlines() if line.strip() and not line.startswith(" ")), None)
    task_error = _TASK_ERROR.search(text)
    line = raised if traceback else task_error and task_error[1].removeprefix("org.apache.spark.SparkException: ")
    return Reason(line, is_expected=describes_outage(line)) if line else reason_of(exc)
