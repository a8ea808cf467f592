"""Spouts: they emit messages, and hear of their outcomes."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from acker_redis.acker import Acker
from acker_redis.errors import BadTupleError
from acker_redis.spout.retry import RetryPolicy
from acker_redis.storm.components.component import Component, Rule
from acker_redis.storm.components.source import NO_SOURCE, Source
from acker_redis.storm.definition import settings
from acker_redis.storm.definition.specs import ComponentKind
from acker_redis.storm.definition.streams import DEFAULT, Stream


class Spout(Component):
    """Source of messages (Storm: ISpout; streamparse: Spout).

    All calls of a task come from one thread, one after the other. Each emit with an id ends in exactly one `ack` or `fail` at
    the task that emitted it, in any order. An exception in any method ends the run.

    Not guaranteed: that a message is processed once. What `fail` emits again is processed again.

    >>> class Lines(Spout):
    ...     outputs = ["line"]
    ...     def next_tuple(self):
    ...         self.emit(["a b"], tup_id=1)
    """

    _acker_kind: ClassVar[ComponentKind] = "spout"
    _acker_needs: ClassVar[tuple[str, ...]] = ("next_tuple",)
    _acker_requires_ids: ClassVar[bool] = False
    _acker_source: Source = NO_SOURCE

    def next_tuple(self) -> None:
        """Emit some messages, or none. Called again and again while the bound on pending messages allows it.

        Don't block here. The run calls less often while nothing is emitted.
        """
        raise NotImplementedError(f"{type(self).__name__} has no next_tuple(). Define it.")

    def ack(self, tup_id: Any) -> None:
        """Hear that everything derived from a message was processed. `tup_id` is the object that was emitted."""

    def fail(self, tup_id: Any, reason: str) -> None:
        """Hear that a message failed, with the text of the fail or `timeout`.

        A method that takes only `tup_id` is called without the reason. This one does nothing, so nobody has to call it.
        """

    def activate(self) -> None:
        """Hear that the topology was activated. Called after `initialize`, too."""

    def deactivate(self) -> None:
        """Hear that the topology was deactivated: `next_tuple` isn't called, and outcomes still arrive."""

    def emit(
        self,
        values: Sequence[Any],
        tup_id: Any = None,
        stream: str | None = DEFAULT,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None:
        """Emit a message.

        Args:
            values: one value per field of the stream.
            tup_id: id of the message, an object of any type. None means that the message isn't tracked, and a reliable spout
                refuses it. Two pending messages may have one id.
            stream: name of the stream; None for the default stream.
            direct_task: task that receives the tuple of a direct stream.
            need_task_ids: True to return the ids of the tasks that the tuple was sent to.

        Raises:
            BadTupleError: the stream isn't declared, the number of values is wrong, the emit is direct on a stream that isn't,
                or the other way round, or a reliable spout emits without an id. Nothing was sent.

        >>> self.emit(["a b"], tup_id=1)
        """
        if tup_id is None and self._acker_requires_ids:
            raise BadTupleError(
                f"{type(self).__name__} emitted a message without tup_id, so it couldn't be replayed. Pass an id, or derive "
                "the spout from Spout."
            )
        tasks: Sequence[int] = (self._acker_collector or self._acker_out()).emit(values, tup_id, stream, direct_task)
        return list(tasks) if need_task_ids else None

    def _acker_open_source(self, acker: Acker, run_id: str, spout_id: int) -> None:
        """Make the source of this task, if it has one. Runners call it after `initialize`."""

    def _acker_fail_call(self) -> Callable[..., object]:
        """Return `fail`, with a reason or without."""
        fail: Callable[..., object] = self.fail
        try:
            parameters = list(inspect.signature(fail).parameters.values())
        except (TypeError, ValueError):
            return fail
        by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if len(by_place) >= 2 or any(p.kind is p.VAR_POSITIONAL for p in parameters):
            return fail
        if any(p.kind is p.KEYWORD_ONLY and p.name == "reason" for p in parameters):
            return lambda tup_id, reason: fail(tup_id, reason=reason)
        return lambda tup_id, reason: fail(tup_id)


Spout.fail.__defaults__ = ("",)  # for programs of pystorm, which call super().fail(tup_id); typed overrides need none


class ReliableSpout(Spout):
    """Spout whose failed messages are replayed, with the same id and values, under a fresh root.

    Each emit needs an id. `fail` is called for each failed attempt. A message that fails in its last attempt becomes a dead
    letter, which `acker-redis dead-letters replay` sends through the spout again. (streamparse acks it.)

    Attributes:
        retry: policy that decides when a message is emitted again. Its `last_alone` has no effect.
        max_fails: number of failures after which a message is emitted again; so it has one attempt more. None means the
            attempts of `retry`. (streamparse: max_fails, 3)

    >>> class Lines(ReliableSpout):
    ...     outputs = ["line"]
    ...     max_fails = 3
    """

    retry: RetryPolicy = RetryPolicy()
    max_fails: int | None = None

    _acker_requires_ids: ClassVar[bool] = True
    _acker_rules: ClassVar[Mapping[str, Rule]] = {
        "retry": Rule(lambda value: isinstance(value, RetryPolicy), "a RetryPolicy"),
        "max_fails": Rule(
            lambda value: value is None or settings.is_count_or_zero(value), "an integer of 0 or more, or None"
        ),
    }

    def _acker_policy(self) -> RetryPolicy:
        return self.retry if self.max_fails is None else replace(self.retry, max_attempts=self.max_fails + 1)


class FeederSpout(Spout):
    """Spout for tests, which emits the messages that `feed` of a local run gives it (Storm: FeederSpout).

    >>> spout = FeederSpout(["line"])
    """

    def __init__(self, fields: Sequence[str] | Sequence[Stream]) -> None:
        """Make a spout whose default stream has these fields, or that has these streams."""
        self.outputs = fields if isinstance(fields, str) else list(fields)  # type: ignore[assignment]

    def next_tuple(self) -> None:
        """Emit nothing: `feed` does."""
