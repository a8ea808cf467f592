"""The failures of failed rows, as they reach the driver: with the results of the tasks that made them, in an accumulator."""

import re
import threading
from collections.abc import Iterable
from weakref import WeakKeyDictionary

from pyspark import Accumulator, SparkContext

from acker_redis.client.backoff import describes_outage
from acker_redis.spark.runtime.worker_errors import text_of
from acker_redis.spark.worker.failures import Failure, FailuresParam, Reason, reason_of

_accumulators: WeakKeyDictionary[SparkContext, Accumulator[list[Failure]]] = WeakKeyDictionary()
_lock = threading.Lock()

_OF_SPOUT_ID = re.compile(r"most recent failure: Lost task \S+ in stage \S+ \(TID \d+\)(?: \([^)]*\))?: ([^\n]+)")
"""What ended the task that ended a job, in the text of Java's error."""

_TRACEBACK = "Traceback (most recent call last):\n"


def accumulator_of(context: SparkContext) -> Accumulator[list[Failure]]:
    """The one of a Spark application: PySpark keeps each for good, so that there is no more than one."""
    with _lock:
        if context not in _accumulators:
            _accumulators[context] = context.accumulator([], FailuresParam())
        return _accumulators[context]


class ReceivedFailures:
    """Reports of one emission. A task that ran twice sent two, of which the metered rows name one."""

    def __init__(self, context: SparkContext, emission: str) -> None:
        self._accumulator, self._emission = accumulator_of(context), emission
        self._of: dict[int, Failure] = {}

    def find(self, operator: str, numbers: Iterable[int]) -> list[Failure] | None:
        """The failures of an operator with these numbers; None if one is missing."""
        self._collect()
        found = [self._of.get(number) for number in numbers]
        failures = [failure for failure in found if failure is not None and failure.operator == operator]
        return failures if len(failures) == len(found) else None

    def forget(self) -> None:
        """Let go of all failures of the emission."""
        self._collect()
        self._of.clear()

    def _collect(self) -> None:
        """Take the emission's reports out of the accumulator, whose value is added to in another thread."""
        value = self._accumulator.value
        for failure in list(value):
            if failure.operator.startswith(self._emission):
                value.remove(failure)
                self._of[failure.number] = failure


def cause_of(exc: BaseException) -> Reason:
    """Why rows failed together: what was raised in the worker, or ended its task, in a line, where that is in the text."""
    text = text_of(exc)
    if text is None:
        return Reason(type(exc).__name__, is_expected=False)
    _, found, last = text.rpartition(_TRACEBACK)
    raised = next((line for line in last.splitlines() if line.strip() and not line.startswith(" ")), None)
    of_spout_id = _OF_SPOUT_ID.search(text)
    line = raised if found else of_spout_id and of_spout_id[1].removeprefix("org.apache.spark.SparkException: ")
    return Reason(line, is_expected=describes_outage(line)) if line else reason_of(exc)
