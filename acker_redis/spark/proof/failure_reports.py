"""The reports of failed rows, as they reach the driver: with the results of the tasks that made them, in an accumulator."""

import re
import threading
from collections.abc import Iterable
from weakref import WeakKeyDictionary

from pyspark import Accumulator, SparkContext

from acker_redis.client.backoff import tells_of_outage
from acker_redis.spark.runtime.worker_errors import text_of
from acker_redis.spark.worker.failures import Reason, Report, Reports, reason_of

_accumulators: WeakKeyDictionary[SparkContext, Accumulator[list[Report]]] = WeakKeyDictionary()
_lock = threading.Lock()

_OF_TASK = re.compile(r"most recent failure: Lost task \S+ in stage \S+ \(TID \d+\)(?: \([^)]*\))?: ([^\n]+)")
"""What ended the task that ended a job, in the text of Java's error."""

_TRACEBACK = "Traceback (most recent call last):\n"


def accumulator_of(context: SparkContext) -> Accumulator[list[Report]]:
    """The one of a Spark application: PySpark keeps each for good, so that there is no more than one."""
    with _lock:
        if context not in _accumulators:
            _accumulators[context] = context.accumulator([], Reports())
        return _accumulators[context]


class Received:
    """Reports of one emission. A task that ran twice sent two, of which the metered rows name one."""

    def __init__(self, context: SparkContext, emission: str) -> None:
        self._accumulator, self._emission = accumulator_of(context), emission
        self._of: dict[int, Report] = {}

    def find(self, operator: str, numbers: Iterable[int]) -> list[Report] | None:
        """The reports of an operator with these numbers; None if one is missing."""
        self._collect()
        found = [self._of.get(number) for number in numbers]
        reports = [report for report in found if report is not None and report.operator == operator]
        return reports if len(reports) == len(found) else None

    def forget(self) -> None:
        """Let go of all reports of the emission."""
        self._collect()
        self._of.clear()

    def _collect(self) -> None:
        """Take the emission's reports out of the accumulator, whose value is added to in another thread."""
        value = self._accumulator.value
        for report in list(value):
            if report.operator.startswith(self._emission):
                value.remove(report)
                self._of[report.number] = report


def cause_of(exc: BaseException) -> Reason:
    """Why rows failed together: what was raised in the worker, or ended its task, in a line, where that is in the text."""
    text = text_of(exc)
    if text is None:
        return Reason(type(exc).__name__, is_expected=False)
    _, found, last = text.rpartition(_TRACEBACK)
    raised = next((line for line in last.splitlines() if line.strip() and not line.startswith(" ")), None)
    of_task = _OF_TASK.search(text)
    line = raised if found else of_task and of_task[1].removeprefix("org.apache.spark.SparkException: ")
    return Reason(line, is_expected=tells_of_outage(line)) if line else reason_of(exc)
