"""What Spark metered, execution by execution: a QueryExecutionListener in Python, one per JVM session.

`Observation` would report the first action on a frame only, which may have been a `show`. Nobody waits for ever: an
execution of the tracker's own behind another one marks that everything before it was heard of.
"""

import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from acker_redis.errors import AckerError
from acker_redis.spark.proof.metrics import PREFIX
from acker_redis.spark.proof.plans import each
from acker_redis.spark.runtime.jvm import java_class

_CONF = "spark.acker.listener"
_MARK_AFTER_SECS = 1.0
WAIT_SECS = 60.0
"""A bus that lags more than this is given up on."""

_COMMAND = "org.apache.spark.sql.catalyst.plans.logical.Command"
_PASSING = ("Project", "SubqueryAlias")

_KEPT = 1000
"""Executions that nobody asked for yet, such as a user's `show`; older ones are forgotten."""


@dataclass(frozen=True)
class Execution:
    """One execution that ended well.

    Attributes:
        metrics: name of a meter -> its row; ours only.
        written: meters of which a command took the rows, with nothing but projections between.
        query: of Spark's, with its plans.
    """

    metrics: dict[str, tuple[Any, ...]]
    written: frozenset[str]
    query: JavaObject


class Listener:
    """Hears of executions from Spark, in the thread of its listener bus."""

    def __init__(self, context: SparkContext) -> None:
        self._command = java_class(context, "java.lang.Class").forName(_COMMAND)
        self._heard: list[Execution] = []
        self._changed = threading.Condition()

    def onSuccess(self, name: str, execution: JavaObject, nanos: int) -> None:  # noqa: N802, ARG002
        """Take note of an execution with meters of ours."""
        metrics = dict(_metrics(execution))
        if not metrics:
            return
        heard = Execution(metrics, frozenset(_written(execution, self._command)), execution)
        with self._changed:
            self._heard = [*self._heard[-_KEPT:], heard]
            self._changed.notify_all()

    def onFailure(self, name: str, execution: JavaObject, error: JavaObject) -> None:  # noqa: N802
        """What failed proves nothing."""

    class Java:
        """What py4j wants to know."""

        implements = ("org.apache.spark.sql.util.QueryExecutionListener",)

    def find(
        self, wanted: Callable[[Execution], bool], session: SparkSession, *, every: bool = False
    ) -> list[Execution]:
        """The executions that have ended already, waited for as long as the first is not heard of; none if there was none.

        With `every`, as long as another one may still be heard of.

        Raises:
            AckerError: Spark's listener bus doesn't say.
        """

        def found() -> list[Execution]:
            return [heard for heard in self._heard if wanted(heard)]

        with self._changed:
            if not every and self._changed.wait_for(found, _MARK_AFTER_SECS):
                return found()
        marker = f"{PREFIX}marker:{uuid.uuid4().hex}"
        session.range(1).observe(marker, F.count(F.lit(1)).alias("rows")).collect()
        with self._changed:
            is_marked = self._changed.wait_for(lambda: any(marker in heard.metrics for heard in self._heard), WAIT_SECS)
            self._heard = [heard for heard in self._heard if marker not in heard.metrics]
            if not is_marked and not found():
                raise AckerError(
                    f"Spark's listener bus said nothing for {WAIT_SECS:.0f} s: is its queue full, or a listener stuck? Look "
                    "for 'Dropping event from queue' in Spark's log, and for "
                    "spark.scheduler.listenerbus.eventqueue.capacity"
                )
            return found()

    def forget(self, meters: str) -> None:
        """Let go of the executions with meters whose names begin so."""
        with self._changed:
            self._heard = [one for one in self._heard if not any(name.startswith(meters) for name in one.metrics)]


_listeners: dict[str, Listener] = {}
_lock = threading.Lock()


def listener_of(session: SparkSession) -> Listener:
    """The session's listener, which is registered at first use. A cloned session has its parent's, as Spark clones both."""
    with _lock:
        known = session.conf.get(_CONF, "")
        if known in _listeners:
            return _listeners[known]
        gateway: Any = session.sparkContext._gateway  # noqa: SLF001
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        made = Listener(session.sparkContext)
        session._jsparkSession.listenerManager().register(made)  # noqa: SLF001
        name = uuid.uuid4().hex
        session.conf.set(_CONF, name)
        _listeners[name] = made
        return made


def _metrics(execution: JavaObject) -> Iterator[tuple[str, tuple[Any, ...]]]:
    found = execution.observedMetrics().iterator()
    while found.hasNext():
        pair = found.next()
        name = pair._1()  # noqa: SLF001
        if name.startswith(PREFIX):
            row = pair._2()  # noqa: SLF001
            yield name, tuple(_value(row.get(i)) for i in range(row.size()))


def _value(value: Any) -> Any:
    """A set comes as a Scala sequence."""
    if not isinstance(value, JavaObject):
        return value
    return list(each(value))


def _written(execution: JavaObject, command: JavaObject) -> Iterator[str]:
    """Meters of which a command takes the rows."""
    plan = execution.logical()
    if not command.isInstance(plan):
        return
    below = list(each(plan.children()))
    while below:
        plan = below.pop()
        kind = plan.nodeName()
        if kind == "CollectMetrics":
            yield plan.name()
        elif kind in _PASSING:
            below += each(plan.children())
