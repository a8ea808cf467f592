"""Part that spouts and bolts share."""

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, ClassVar, NamedTuple

from acker_redis.errors import AckerError, InvalidTopologyError
from acker_redis.storm.core.context import TopologyContext
from acker_redis.storm.core.metrics import ComponentMetrics
from acker_redis.storm.core.tuples import Tuple
from acker_redis.storm.definition.specs import ComponentKind, Spec, inputs_of
from acker_redis.storm.definition.streams import Stream

_CALLED: dict[ComponentKind, tuple[str, ...]] = {
    "spout": ("initialize", "close", "activate", "deactivate", "next_tuple", "ack", "fail"),
    "bolt": ("initialize", "close", "process", "process_tick"),
}
"""Methods that runners call, whatever a component overrides."""

_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "initialize": ("conf", "context"),
    "close": (),
    "activate": (),
    "deactivate": (),
    "next_tuple": (),
    "ack": ("tup_id",),
    "fail": ("tup_id", "reason"),
    "process": ("tup",),
    "process_tick": ("tup",),
    "process_batch": ("key", "tups"),
    "process_batches": (),
    "process_window": ("window",),
    "group_key": ("tup",),
}
"""Arguments that runners pass to a method."""

PREFIX = "_acker_"
"""Prefix of what the library keeps in components, beside documented names. All other names are free for their classes."""

_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
"""Levels of Storm and of Python. Any other is `info`, as in streamparse."""


class SpecMethod:
    """Descriptor of `spec`, which works on a class and on an object."""

    def __get__(self, component: "Component | None", owner: type["Component"]) -> Callable[..., Spec]:
        """Bind `spec` to a class or an object."""
        made_from = owner if component is None else component

        def spec(
            name: str | None = None,
            inputs: object = None,
            par: int | None = None,
            config: Mapping[str, Any] | None = None,
        ) -> Spec:
            if name is not None and (not isinstance(name, str) or not name):
                raise InvalidTopologyError(f"name={name!r} is not the name of a component. Pass a text, or omit it.")
            kind = made_from._acker_kind  # noqa: SLF001  # of the class below
            return Spec(kind, made_from, name, inputs_of(inputs), par, config)

        spec.__doc__ = SPEC_DOC
        return spec


SPEC_DOC = """Describe this component in a topology class.

Args:
    name: name of the component; None means the attribute's name.
    inputs: list of components and streams, which means shuffle, or a dict that maps them to groupings.
    par: number of executors; None means the class attribute `par`, or 1.
    config: settings of this component, by Storm's names.
"""


def _function(owner: Any, name: str) -> Any:
    method = getattr(owner, name)
    return getattr(method, "__func__", method)


class Rule(NamedTuple):
    """Rule for an attribute of a component.

    Attributes:
        is_valid: check of the value.
        valid: description of what is valid.
    """

    is_valid: Callable[[Any], bool]
    valid: str


def check_component(name: str, maker: Any) -> None:
    """Refuse a component that can't be made, lacks the method that does its work, or has an attribute that breaks a rule.

    Raises:
        InvalidTopologyError: its class needs arguments, it has no such method, a method that runners call is a generator or a
            coroutine, or an attribute is invalid.
    """
    check_attributes(name, maker)
    made = maker if isinstance(maker, type) else type(maker)
    if made is maker:
        _check_arguments(name, made)
    base = next(base for base in made.__mro__ if "_acker_needs" in vars(base))
    needs: tuple[str, ...] = vars(base)["_acker_needs"]
    own = [method for method in needs if _function(maker, method) is not _function(base, method)]
    if not own:
        raise InvalidTopologyError(f"Component {name!r} has no {needs[0]}(). Define it in {made.__name__}.")
    called = _CALLED[maker._acker_kind]  # noqa: SLF001  # of the class below
    _check_plain(name, maker, {*called, *(own if len(own) == 1 else ())})
    for method in sorted({*called, *needs, *vars(base).get("_acker_calls", ())}):
        _check_call(name, maker, method, is_spout=maker._acker_kind == "spout")  # noqa: SLF001  # as above
    maker._acker_check(name)  # noqa: SLF001  # as above


def _check_plain(name: str, maker: Any, methods: Iterable[str]) -> None:
    """Refuse methods whose call returns before their code runs: each tuple would be acked without it."""
    for method in methods:
        function = getattr(maker, method, None)
        if any(of(function) for of in (isgeneratorfunction, iscoroutinefunction, isasyncgenfunction)):
            raise InvalidTopologyError(
                f"{method}() of component {name!r} is a generator or a coroutine. A call would return before its code runs. "
                "Write it with def and without yield."
            )


def _check_call(name: str, maker: Any, method: str, *, is_spout: bool) -> None:
    """Refuse a method that a runner can't call with the arguments that it passes."""
    function, arguments = getattr(maker, method), _ARGUMENTS[method]
    shown = f"{method}({', '.join(('self', *arguments))})"
    if not callable(function):
        raise InvalidTopologyError(
            f"{method}={function!r} of component {name!r} is not a method, so each call of it would fail. Define {shown}."
        )
    made = maker if isinstance(maker, type) else type(maker)
    is_plain = isinstance(maker, type) and not isinstance(
        inspect.getattr_static(made, method), (staticmethod, classmethod)
    )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a class or a function in C
        return
    takes_less = [arguments[:1]] if is_spout and method == "fail" else []
    if not any(_takes(signature, (["self"] if is_plain else []) + list(given)) for given in (arguments, *takes_less)):
        declared = inspect.signature(getattr(function, "__func__", function))
        raise InvalidTopologyError(
            f"{method}{declared} of component {name!r} can't be called with {_listed(arguments)}, so each call of it would "
            f"fail. Define {shown}."
        )


def _takes(signature: inspect.Signature, given: list[str]) -> bool:
    by_name = given[-1:] == ["reason"] and "reason" in signature.parameters
    for places, names in ((given, {}), (given[:-1], {"reason": ""})) if by_name else ((given, {}),):
        try:
            signature.bind(*places, **names)
        except TypeError:
            continue
        return True
    return False


def _listed(arguments: Sequence[str]) -> str:
    return " and ".join(arguments) or "no argument"


def _check_arguments(name: str, made: type) -> None:
    try:
        inspect.signature(made).bind()
    except TypeError as exc:
        raise InvalidTopologyError(
            f"The tasks of component {name!r} can't be made from the class {made.__name__}, which needs arguments ({exc}). "
            "Pass an object, or read settings from conf in initialize()."
        ) from exc
    except ValueError:  # a class without a signature
        logging.getLogger(__name__).debug("arguments not checked component=%r", name, exc_info=True)


def check_attributes(name: str, component: Any) -> None:
    """Check the attributes of a component's class or object.

    Raises:
        InvalidTopologyError: one is invalid.
    """
    made = component if isinstance(component, type) else type(component)
    rules: dict[str, Rule] = {}
    for base in reversed(made.__mro__):
        rules |= vars(base).get("_acker_rules", {})
    for attribute, rule in rules.items():
        value = getattr(component, attribute)
        if not rule.is_valid(value):
            raise InvalidTopologyError(f"{attribute}={value!r} of component {name!r} is invalid. Use {rule.valid}.")


class Component:
    """Base class of spouts and bolts. Derive from `Spout` or `Bolt`.

    Attributes:
        outputs: names of the default stream's fields, or a list of `Stream`.
        par: number of executors, unless `spec` says otherwise.
        config: settings of the component by Storm's names, unless `spec` says otherwise.
        task_id: id of this task.
        component_name: name of this component.
        topology_name: name of the topology.
        storm_conf: settings of the topology, replaced by those of the component.
        context: place of this task in the topology.
        logger: logger of this component.
    """

    _acker_kind: ClassVar[ComponentKind]
    _acker_needs: ClassVar[tuple[str, ...]]
    """Methods of this base class of which a component has to override one."""
    _acker_rules: ClassVar[Mapping[str, Rule]] = {}
    """Rules for attributes of this class. Those of its base classes hold, too."""
    outputs: Sequence[str] | Sequence[Stream] | None = None
    par: int | None = None
    config: Mapping[str, Any] | None = None
    spec = SpecMethod()

    task_id: int
    component_name: str
    topology_name: str
    storm_conf: Mapping[str, Any]
    context: TopologyContext
    logger: logging.Logger

    _acker_collector: Any = None
    _acker_metrics: ComponentMetrics
    _acker_place: TopologyContext
    """The context for the library, because a class may put something else into `self.context`. Likewise the logger."""
    _acker_logger: logging.Logger

    def initialize(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """Prepare this task. Called once, before anything else (Storm: open, prepare).

        >>> def initialize(self, conf, context):
        ...     self.source = open(conf["lines.path"])
        """

    def close(self) -> None:
        """Clean up. Called at the end of a run, after an error too (Storm: close, cleanup)."""

    def log(self, message: str, level: str | None = None) -> None:
        """Log a message at `trace`, `debug`, `info`, `warn`, `warning`, `error` or `critical`.

        >>> self.log("connected", "debug")
        """
        self._acker_logger.log(_LEVELS.get(level or "info", logging.INFO), message)

    def report_metric(self, name: str, value: Any) -> None:
        """Report a value of a metric of your own.

        >>> self.report_metric("rows", 17)
        """
        self._acker_metrics.report(name, value)

    def raise_exception(self, exception: BaseException, tup: Tuple | None = None) -> None:
        """Report an exception. It is logged and counted, and the task goes on (Storm: reportError).

        >>> self.raise_exception(ValueError("no such customer"))
        """
        self._acker_metrics.errors += 1
        self._acker_logger.error(
            "exception reported task_id=%d tup=%r error=%r", self._acker_place.task_id, tup, exception,
            exc_info=exception,
        )  # fmt: skip

    def add_task_hook(self, hook: Any) -> None:
        """Add a hook to this task, an object with some of the methods of `TaskHook`.

        >>> self.add_task_hook(TaskHook())
        """
        self._acker_place.add_task_hook(hook)

    @staticmethod
    def is_tick(tup: Tuple) -> bool:
        """Return True if this is a tick tuple.

        >>> self.is_tick(Tuple("1", "lines", "default", 1, ("a",)))
        False
        """
        return tup.is_tick

    @classmethod
    def _acker_check(cls, name: str) -> None:
        """Refuse a component whose methods don't fit each other."""

    def _acker_bind(self, collector: Any, context: TopologyContext, metrics: ComponentMetrics) -> None:
        """Attach the component to its task. Runners call it before `initialize`."""
        self._acker_collector = collector
        self._acker_metrics = metrics
        self.context = self._acker_place = context
        self.task_id = context.task_id
        self.component_name = context.component
        self.topology_name = context.topology_name
        self.storm_conf = context.conf
        self.logger = self._acker_logger = logging.getLogger(f"acker_redis.storm.{context.component}")

    def _acker_out(self) -> Any:
        if self._acker_collector is None:
            raise AckerError(
                f"{type(self).__name__} is not part of a run, so it can't emit, ack or fail. Run it in a topology, for "
                "example by Topology.local()."
            )
        return self._acker_collector
