"""Task hooks: calls around emits, executions, acks and fails (Storm: BaseTaskHook)."""

import copy
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm.core.tuples import Tuple


class EmitInfo(NamedTuple):
    """Emit that a hook hears of. The acker's streams are among them: `__ack_init`, `__ack_ack` and `__ack_fail`.

    Attributes:
        values: values of the tuple; of the acker's streams root, ack value and task.
        stream: name of the stream.
        task_id: id of the emitting task.
        out_tasks: ids of the receiving tasks; empty for the acker's streams, because the ledger has no task.
    """

    values: Sequence[Any]
    stream: str
    task_id: int
    out_tasks: Sequence[int]


class SpoutAckInfo(NamedTuple):
    """Ack that a spout received.

    Attributes:
        tup_id: id of the message.
        task_id: id of the spout's task.
        latency_ms: time from the emit to this call, in milliseconds; None without acker executors.
    """

    tup_id: Any
    task_id: int
    latency_ms: float | None


class SpoutFailInfo(NamedTuple):
    """Fail that a spout received.

    Attributes:
        tup_id: id of the message.
        task_id: id of the spout's task.
        latency_ms: time from the emit to this call, in milliseconds.
        reason: text of the fail, or `timeout`.
        last_component: component that failed a tuple of the tree first, or else acked one last. Before any bolt did, it is
            the spout.
    """

    tup_id: Any
    task_id: int
    latency_ms: float
    reason: str
    last_component: str


class BoltInfo(NamedTuple):
    """Execution, ack or fail of a tuple by a bolt.

    Attributes:
        tuple: the tuple.
        task_id: id of the bolt's task.
        latency_ms: time that the execution took, or from its begin to the ack or fail, in milliseconds.
    """

    tuple: Tuple
    task_id: int
    latency_ms: float


class TaskHook:
    """Task hook that does nothing. Derive from it, or give any object the calls that you need.

    `add_task_hook` of a component or its context adds one, and `topology.auto.task.hooks` adds one to every task.

    >>> class Acks(TaskHook):
    ...     def bolt_ack(self, info):
    ...         print(info.tuple.values)
    """

    def prepare(self, conf: Mapping[str, Any], context: Any) -> None:
        """Prepare the hook. Called when it is added."""

    def cleanup(self) -> None:
        """Clean up. Called before the task's `close`."""

    def emit(self, info: EmitInfo) -> None:
        """Hear of an emit, inside of it."""

    def spout_ack(self, info: SpoutAckInfo) -> None:
        """Hear of an ack, after the spout's `ack`."""

    def spout_fail(self, info: SpoutFailInfo) -> None:
        """Hear of a fail, after the spout's `fail`."""

    def bolt_execute(self, info: BoltInfo) -> None:
        """Hear of an execution, after it returned."""

    def bolt_ack(self, info: BoltInfo) -> None:
        """Hear of an ack by the bolt, inside of it."""

    def bolt_fail(self, info: BoltInfo) -> None:
        """Hear of a fail by the bolt, inside of it."""


CALLS = ("emit", "spout_ack", "spout_fail", "bolt_execute", "bolt_ack", "bolt_fail")
"""Calls of a hook between `prepare` and `cleanup`."""


class HookList:
    """Hooks of one task, in the order in which they were added. A hook may lack calls.

    Attributes:
        emit: calls that hear of emits. The other lists are alike.
        is_empty: True if there is no hook.
    """

    def __init__(self) -> None:
        self.emit: list[Callable[[EmitInfo], object]] = []
        self.spout_ack: list[Callable[[SpoutAckInfo], object]] = []
        self.spout_fail: list[Callable[[SpoutFailInfo], object]] = []
        self.bolt_execute: list[Callable[[BoltInfo], object]] = []
        self.bolt_ack: list[Callable[[BoltInfo], object]] = []
        self.bolt_fail: list[Callable[[BoltInfo], object]] = []
        self.is_empty = True
        self._hooks: list[Any] = []
        self._kept = 0

    def add(self, hook: Any, conf: Mapping[str, Any], context: Any) -> None:
        """Add a hook and prepare it.

        Raises:
            InvalidTopologyError: the object has none of the calls.
        """
        _check(hook)
        self._hooks.append(hook)
        self._list()
        if callable(getattr(hook, "prepare", None)):
            hook.prepare(conf, context)

    def keep(self) -> None:
        """Keep the hooks that are here when the component is replaced."""
        self._kept = len(self._hooks)

    def drop(self) -> None:
        """Clean up and remove the hooks that the component added itself, because a fresh copy takes its place."""
        own, self._hooks = self._hooks[self._kept :], self._hooks[: self._kept]
        self._list()
        _clean_up(own)

    def clean_up(self) -> None:
        """Clean up all hooks."""
        _clean_up(self._hooks)

    def _list(self) -> None:
        self.is_empty = not self._hooks
        for name in CALLS:
            setattr(self, name, [getattr(hook, name) for hook in self._hooks if callable(getattr(hook, name, None))])


def make_hook(hook: object) -> Any:
    """Make a task's hook from `topology.auto.task.hooks`: a class, a class's name, or an object, which is copied.

    Raises:
        InvalidTopologyError: it is none of them.
    """
    if isinstance(hook, str):
        module, _, name = hook.replace(":", ".").rpartition(".")
        try:
            hook = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as exc:
            raise InvalidTopologyError(
                f"The task hook {hook!r} can't be imported. Name a class, such as 'package.module.Class'."
            ) from exc
    made = hook() if isinstance(hook, type) else copy.deepcopy(hook)
    _check(made)
    return made


def _check(hook: object) -> None:
    if isinstance(hook, type) or not any(
        callable(getattr(hook, name, None)) for name in (*CALLS, "prepare", "cleanup")
    ):
        raise InvalidTopologyError(
            f"{hook!r} is not a task hook. Pass an object with some of the methods of acker_redis.storm.TaskHook."
        )


def _clean_up(hooks: Sequence[Any]) -> None:
    for hook in hooks:
        if callable(getattr(hook, "cleanup", None)):
            hook.cleanup()
