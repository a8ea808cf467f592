"""Settings of a topology by Storm's names (Storm: Config.java, 2.8).

A known name is honoured, or is Spark's business, or has no effect. An unknown name that begins with `topology.` is refused.
"""

import difflib
import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

from acker_redis.errors import InvalidTopologyError

log = logging.getLogger("acker_redis.storm")

PREFIX = "topology."

ACKER_EXECUTORS = "topology.acker.executors"
AUTO_TASK_HOOKS = "topology.auto.task.hooks"
DEBUG = "topology.debug"
DISABLE_LOADAWARE = "topology.disable.loadaware.messaging"
ENABLE_TIMEOUTS = "topology.enable.message.timeouts"
EVENTLOGGER_EXECUTORS = "topology.eventlogger.executors"
MAX_SPOUT_PENDING = "topology.max.spout.pending"
MAX_TASK_PARALLELISM = "topology.max.task.parallelism"
MESSAGE_TIMEOUT_SECS = "topology.message.timeout.secs"
NAME = "topology.name"
TASKS = "topology.tasks"
TICK_SECS = "topology.tick.tuple.freq.secs"

WINDOW_COUNT = "topology.bolts.window.length.count"
WINDOW_MS = "topology.bolts.window.length.duration.ms"
SLIDE_COUNT = "topology.bolts.window.sliding.interval.count"
SLIDE_MS = "topology.bolts.window.sliding.interval.duration.ms"
LAG_MS = "topology.bolts.tuple.timestamp.max.lag.ms"
LATE_STREAM = "topology.bolts.late.tuple.stream"
WATERMARK_MS = "topology.bolts.watermark.event.interval.ms"

DEFAULT_TIMEOUT_SECS = 30.0
"""Message timeout of a topology that sets none, as in Storm."""

SPARKS = frozenset(
    PREFIX + name
    for name in """
    acker.cpu.pcore.percent acker.resources.offheap.memory.mb acker.resources.onheap.memory.mb auto-credentials
    blobstore.map classpath classpath.beginning component.cpu.pcore.percent component.resources.map
    component.resources.offheap.memory.mb component.resources.onheap.memory.mb environment
    fall.back.on.java.serialization groups isolate.machines kryo.decorators kryo.factory kryo.register
    localityaware.higher.bound localityaware.lower.bound metrics.consumer.cpu.pcore.percent
    metrics.consumer.resources.offheap.memory.mb metrics.consumer.resources.onheap.memory.mb oci.image priority
    ras.acker.executors.per.worker ras.constraint.max.state.search ras.constraint.max.time.secs ras.constraints
    ras.one.component.per.worker ras.one.executor.per.worker ras.order.executors.by.proximity.needs readonly.groups
    readonly.users scheduler.favored.nodes scheduler.strategy scheduler.unfavored.nodes
    skip.missing.kryo.registrations spread.components submitter.principal submitter.user tuple.compression.enable
    tuple.compression.max.decompressed.bytes tuple.compression.threshold tuple.serializer users worker.childopts
    worker.gc.childopts worker.logwriter.childopts worker.max.heap.size.mb worker.metrics
    worker.nimbus.thrift.client.use.tls worker.shared.thread.pool.size worker.timeout.secs workers
    """.split()  # noqa: SIM905  # a list would take a line per name
)
"""Names of processes, their memory, and what they may load: the business of Spark or of the machine."""

WITHOUT_EFFECT = frozenset(
    PREFIX + name
    for name in """
    backpressure.check.millis backpressure.enable backpressure.wait.park.microsec
    backpressure.wait.progressive.level1.count backpressure.wait.progressive.level2.count
    backpressure.wait.progressive.level3.sleep.millis backpressure.wait.strategy batch.flush.interval.millis
    bolt.wait.park.microsec bolt.wait.progressive.level1.count bolt.wait.progressive.level2.count
    bolt.wait.progressive.level3.sleep.millis bolt.wait.strategy bolts.message.id.field.name
    builtin.metrics.bucket.size.secs enable.send.iconnection.metrics enable.v2.metrics.tick
    error.throttle.interval.secs event.logger.register eventlogger.max.retained.files eventlogger.rotation.size.mb
    executor.overflow.limit executor.receive.buffer.size logging.config logging.sensitivity
    max.error.report.per.interval max.replication.wait.time.sec metrics.consumer.register metrics.reporters
    min.replication.count multilang.log.handler multilang.serializer producer.batch.dynamic producer.batch.size
    serialized.message.size.metrics shellbolt.max.pending sleep.spout.wait.strategy.time.ms spout.recvq.skips
    spout.wait.park.microsec spout.wait.progressive.level1.count spout.wait.progressive.level2.count
    spout.wait.progressive.level3.sleep.millis spout.wait.strategy state.checkpoint.interval.ms state.kryo.register
    state.provider state.provider.config state.synchronization.timeout.secs stats.ewma.enable
    stats.ewma.smoothing.factor stats.sample.rate subprocess.timeout.secs testing.always.try.serialize
    transactional.id transfer.batch.size transfer.buffer.size trident.batch.emit.interval.millis
    trident.windowing.cache.tuple.limit upstream.feedback.enable upstream.feedback.freq.secs
    v2.metrics.tick.interval.seconds version
    """.split()  # noqa: SIM905  # a list would take a line per name
)
"""Names of mechanisms that don't exist here."""


def is_count(value: object) -> bool:
    """Return True if this is an integer of 1 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def is_count_or_zero(value: object) -> bool:
    """Return True if this is an integer of 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_text(value: object) -> bool:
    """Return True if this is a text that UTF-8 can encode: one without halves of surrogate pairs."""
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)


def is_duration(value: object) -> bool:
    """Return True if this is a number above 0, and finite."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


_CHECKS = {
    ACKER_EXECUTORS: (is_count_or_zero, "a number of executors, 0 for no tracking", True),
    AUTO_TASK_HOOKS: (lambda value: isinstance(value, (list, tuple)), "a list of hooks", True),
    DEBUG: (lambda value: isinstance(value, bool), "True or False", False),
    DISABLE_LOADAWARE: (lambda value: isinstance(value, bool), "True or False", False),
    ENABLE_TIMEOUTS: (lambda value: isinstance(value, bool), "True or False", False),
    EVENTLOGGER_EXECUTORS: (is_count_or_zero, "a number of executors", True),
    MAX_SPOUT_PENDING: (is_count_or_zero, "a number of messages, 0 for no bound", True),
    MAX_TASK_PARALLELISM: (is_count, "a number of tasks", True),
    MESSAGE_TIMEOUT_SECS: (is_duration, "a number of seconds above 0", False),
    NAME: (lambda value: is_text(value) and value != "", "a text that UTF-8 can encode, and that isn't empty", True),
    TASKS: (is_count, "a number of tasks", True),
    TICK_SECS: (is_duration, "a number of seconds above 0", True),
    WINDOW_COUNT: (is_count, "a number of tuples", True),
    WINDOW_MS: (is_count, "a number of milliseconds", True),
    SLIDE_COUNT: (is_count, "a number of tuples", True),
    SLIDE_MS: (is_count, "a number of milliseconds", True),
    LAG_MS: (is_count_or_zero, "a number of milliseconds, 0 for none", True),
    LATE_STREAM: (lambda value: isinstance(value, str), "the name of a stream", True),
    WATERMARK_MS: (is_count, "a number of milliseconds", True),
}
"""Settings that are honoured: check of the value, its description, and whether None is allowed."""

TOPOLOGYS = frozenset({ACKER_EXECUTORS, ENABLE_TIMEOUTS, EVENTLOGGER_EXECUTORS, MESSAGE_TIMEOUT_SECS, NAME})
"""Settings of a whole topology, which a component can't have for itself. Storm drops them there."""

_LISTED = 10
"""Number of known names up to which an error lists them all."""

_logged: set[str] = set()


def check(config: object, owner: str, argument: str = "config") -> dict[str, Any]:
    """Check a configuration that has the name of an argument, and return a copy.

    Raises:
        InvalidTopologyError: a name that begins with `topology.` is unknown, or a value is out of range.
    """
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise InvalidTopologyError(f"{argument}={config!r} of {owner} is not a dict. Map Storm's names to values.")
    for name, value in config.items():
        if not isinstance(name, str):
            raise InvalidTopologyError(f"The name {name!r} in the config of {owner} is not a text. Use Storm's names.")
        if not name.startswith(PREFIX):
            continue
        if name in _CHECKS:
            is_valid, description, may_be_none = _CHECKS[name]
            if not (is_valid(value) or (value is None and may_be_none)):
                raise InvalidTopologyError(f"{name}={value!r} in the config of {owner} is invalid. Use {description}.")
        elif name in SPARKS or name in WITHOUT_EFFECT:
            _log_once(name)
        else:
            raise InvalidTopologyError(
                f"The setting {name!r} in the config of {owner} is unknown. {nearest(name, known_names(), 'setting')} "
                "Settings of your own must not begin with 'topology.'."
            )
    return dict(config)


def check_own(config: object, owner: str) -> dict[str, Any]:
    """Check the configuration of a component, and return a copy.

    Raises:
        InvalidTopologyError: as for `check`, or a setting belongs to the topology.
    """
    checked = check(config, owner)
    for name in checked:
        if name in TOPOLOGYS:
            raise InvalidTopologyError(
                f"The setting {name!r} in the config of {owner} is one of the topology, so it would have no effect. Set it in "
                "the topology's config."
            )
    return checked


def known_names() -> list[str]:
    """List all names of Storm's settings."""
    return sorted({*_CHECKS, *SPARKS, *WITHOUT_EFFECT})


def nearest(name: str, known: Iterable[str], what: str) -> str:
    """Name the known name that is nearest to an unknown one, in a sentence. Of a few, name all if none is similar."""
    listed = list(known)
    similar = difflib.get_close_matches(name, listed, 1, 0.5 if len(listed) <= _LISTED else 0.0)
    if similar:
        return f"Did you mean {similar[0]!r}?"
    return f"Known: {', '.join(map(repr, listed))}." if listed else f"There is no {what}."


def _log_once(name: str) -> None:
    if name not in _logged:
        _logged.add(name)
        log.info("setting without effect name=%s", name)
