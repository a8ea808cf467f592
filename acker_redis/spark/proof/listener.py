"""Collect Spark's metrics per execution.

Each JVM session has one QueryExecutionListener in Python. `Observation` would report only the first action on a frame, which
may have been a `show`. Every wait ends: the tracker runs a marker execution, and once it is reported, Spark has reported
everything before it.
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
"""How long a listener bus may lag before it counts as stuck."""

_COMMAND = "org.apache.spark.sql.catalyst.plans.logical.Command"
_PASSING = ("Project", "SubqueryAlias")

_KEPT = 1000
"""Number of executions kept that no proof has requested, such as a user's `show`. Older ones are dropped."""


@dataclass(frozen=True)
class Execution:
    """One successful execution.

    Attributes:
        metrics: name of one of the tracker's meters -> its row.
        written: meters whose rows a command consumed, with nothing but projections in between.
        query: Spark's QueryExecution, with its plans.
    """

    metrics: dict[str, tuple[Any, ...]]
    written: frozenset[str]
    query: JavaObject


class Listener:
    """Collector of Spark's executions, called in the thread of the listener bus."""

    def __init__(self, context: SparkContext) -> None:
        self._command = java_class(context, "java.lang.Class").forName(_COMMAND)
        self._executions: list[Execution] = []
        self._changed = threading.Condition()

    def onSuccess(self, name: str, execution: JavaObject, nanos: int) -> None:  # noqa: N802, ARG002
        """Keep an execution that has some of the tracker's meters."""
        metrics = dict(_metrics(execution))
        if not metrics:
            return
        kept = Execution(metrics, frozenset(_written(execution, self._command)), execution)
        with self._changed:
            self._executions = [*self._executions[-_KEPT:], kept]
            self._changed.notify_all()

    def onFailure(self, name: str, execution: JavaObject, error: JavaObject) -> None:  # noqa: N802
        """Ignore a failed execution, because it proves nothing."""

    class Java:
        """The interface that py4j implements by this class."""

        implements = ("org.apache.spark.sql.util.QueryExecutionListener",)

    def executions(
        self, has_meter: Callable[[Execution], bool], session: SparkSession, *, every: bool = False
    ) -> list[Execution]:
        """Return the executions that `has_meter` selects.

        Wait until Spark reports the first. The list is empty if there was none. `every` waits until Spark can't report
        another one.

        Raises:
            AckerError: Spark's listener bus reports nothing.
        """

        def reported() -> list[Execution]:
            return [execution for execution in self._executions if has_meter(execution)]

        with self._changed:
            if not every and self._changed.wait_for(reported, _MARK_AFTER_SECS):
                return reported()
        marker = f"{PREFIX}marker:{uuid.uuid4().hex}"
        session.range(1).observe(marker, F.count(F.lit(1)).alias("rows")).collect()
        with self._changed:
            is_marked = self._changed.wait_for(
                lambda: any(marker in execution.metrics for execution in self._executions), WAIT_SECS
            )
            self._executions = [execution for execution in self._executions if marker not in execution.metrics]
            if not is_marked and not reported():
                raise AckerError(
                    f"Spark's listener bus reported nothing for {WAIT_SECS:.0f} s. Its queue may be full, or a listener may "
                    "be stuck. Search Spark's log for 'Dropping event from queue', and raise "
                    "spark.scheduler.listenerbus.eventqueue.capacity if you find it."
                )
            return reported()

    def forget(self, meters: str) -> None:
        """Drop the executions with meters whose names begin with `meters`."""
        with self._changed:
            self._executions = [
                execution
                for execution in self._executions
                if not any(name.startswith(meters) for name in execution.metrics)
            ]


_listeners: dict[str, Listener] = {}
_lock = threading.Lock()


def listener_of(session: SparkSession) -> Listener:
    """Return the session's listener, which is registered on first use.

    A cloned session shares its parent's listener, because Spark clones both.
    """
    with _lock:
        known = session.conf.get(_CONF, "")
        if known in _listeners:
            return _listeners[known]
        gateway: Any = session.sparkContext._gateway  # noqa: SLF001
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        listener = Listener(session.sparkContext)
        session._jsparkSession.listenerManager().register(listener)  # noqa: SLF001
        name = uuid.uuid4().hex
        session.conf.set(_CONF, name)
        _listeners[name] = listener
        return listener


def _metrics(execution: JavaObject) -> Iterator[tuple[str, tuple[Any, ...]]]:
    pairs = execution.observedMetrics().iterator()
    while pairs.hasNext():
        pair = pairs.next()
        name = pair._1()  # noqa: SLF001
        if name.startswith(PREFIX):
            row = pair._2()  # noqa: SLF001
            yield name, tuple(_value(row.get(i)) for i in range(row.size()))


def _value(value: Any) -> Any:
    """Convert a set, which arrives as a Scala sequence, to a list."""
    if not isinstance(value, JavaObject):
        return value
    return list(each(value))


def _written(execution: JavaObject, command: JavaObject) -> Iterator[str]:
    """Yield the meters whose rows a command consumes."""
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
