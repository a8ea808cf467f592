"""Collect metrics from the JVM of a classic session.

Each JVM session has one QueryExecutionListener in Python. `Observation` would report only the first action on a frame, which
may have been a `show`. Every wait ends: the tracker runs a marker execution, and once it is reported, Spark has reported
everything before it.
"""

import threading
import uuid
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from acker_redis.errors import AckerError
from acker_redis.spark.proof import meters
from acker_redis.spark.proof.executions import Execution, HasMeter
from acker_redis.spark.proof.meters import PREFIX
from acker_redis.spark.proof.plans import METER, each
from acker_redis.spark.runtime.jvm import java_class

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark import SparkContext

_CONF = "spark.acker.listener"
_MARK_AFTER_SECS = 1.0
WAIT_SECS = 60.0
"""How long a listener bus may lag before it counts as stuck."""

_COMMAND = "org.apache.spark.sql.catalyst.plans.logical.Command"
_PASSING = ("Project", "SubqueryAlias", "DeserializeToObject", "Repartition")
"""Nodes that keep each row. The last two are JDBC's."""

_DELTA, _JDBC = "deltaTransactionalWrite", "foreachPartition"
"""Executions that write inside of a command, which itself has no metrics. `sinks/source_checks.py` refuses other sources."""

_KEPT = 1000
"""Number of executions kept that no proof has requested, such as a user's `show`. Older ones are dropped."""


class Listener:
    """Collector of Spark's executions, called in the thread of the listener bus."""

    def __init__(self, context: "SparkContext") -> None:
        self._command = java_class(context, "java.lang.Class").forName(_COMMAND)
        self._executions: list[Execution] = []
        self._meters: set[str] = set()
        self._changed = threading.Condition()

    def expect(self, meter: str) -> None:
        """Note the name of a meter, before an execution has it."""
        with self._changed:
            self._meters.add(meter)

    def onSuccess(self, name: str, execution: "JavaObject", nanos: int) -> None:  # noqa: N802, ARG002
        """Keep an execution that has some of the tracker's meters."""
        text = execution.observedMetrics().toString()
        with self._changed:
            names = list(self._meters)
        metered = dict(meters.in_text(text, names))
        if not metered:
            return
        kept = Execution(metered, frozenset(_written(name, execution, self._command) & metered.keys()), execution)
        with self._changed:
            self._executions = [*self._executions[-_KEPT:], kept]
            self._changed.notify_all()

    def onFailure(self, name: str, execution: "JavaObject", error: "JavaObject") -> None:  # noqa: N802
        """Ignore a failed execution, because it proves nothing."""

    class Java:
        """The interface that py4j implements by this class."""

        implements = ("org.apache.spark.sql.util.QueryExecutionListener",)

    def find(self, has_meter: HasMeter, session: SparkSession, *, every: bool = False) -> list[Execution]:
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
        self.expect(marker)
        meters.mark(session.range(1).toDF("id"), marker).collect()
        with self._changed:
            is_marked = self._changed.wait_for(
                lambda: any(marker in execution.metrics for execution in self._executions), WAIT_SECS
            )
            self._executions = [execution for execution in self._executions if marker not in execution.metrics]
            self._meters.discard(marker)
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
            self._meters = {name for name in self._meters if not name.startswith(meters)}
            self._executions = [
                execution
                for execution in self._executions
                if not any(name.startswith(meters) for name in execution.metrics)
            ]


_listeners: dict[str, Listener] = {}
_of_session: "WeakKeyDictionary[SparkSession, Listener]" = WeakKeyDictionary()
_lock = threading.Lock()


def listener_of(session: SparkSession) -> Listener:
    """Return the session's listener, which is registered on first use.

    A cloned session shares its parent's listener, because Spark clones both.
    """
    with _lock:
        if session in _of_session:
            return _of_session[session]
        known = session.conf.get(_CONF, "")
        if known in _listeners:
            _of_session[session] = _listeners[known]
            return _listeners[known]
        from pyspark.java_gateway import ensure_callback_server_started

        gateway: Any = session.sparkContext._gateway  # noqa: SLF001
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        listener = Listener(session.sparkContext)
        session._jsparkSession.listenerManager().register(listener)  # noqa: SLF001
        name = uuid.uuid4().hex
        session.conf.set(_CONF, name)
        _listeners[name] = _of_session[session] = listener
        return listener


def _written(name: str, execution: "JavaObject", command: "JavaObject") -> set[str]:
    """Return the meters whose rows an execution with this name writes."""
    plan = execution.logical()
    if command.isInstance(plan):
        meter = None if name == _DELTA else _meter_of(plan.apply(1))
        below = list(each(plan.children())) if meter is None else []
        meters = set() if meter is None else {meter}
    elif name in (_DELTA, _JDBC):
        below, meters = [plan], set()
    else:
        return set()
    while below:
        plan = below.pop()
        meter = _meter_of(plan)
        if meter is not None:
            meters.add(meter)
        elif name == _DELTA:  # it may add rows of its own, of a change data feed
            below += each(plan.children())
    return meters


def _meter_of(plan: "JavaObject") -> str | None:
    """Return the meter of a plan below nodes that keep each row, or None. A plan's nodes are numbered, its root is 0."""
    while plan is not None:
        kind = plan.nodeName()
        if kind == METER:
            return str(plan.name())
        plan = plan.apply(1) if kind in _PASSING else None
    return None
