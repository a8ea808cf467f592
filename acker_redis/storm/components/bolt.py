"""Bolts: they process tuples, and emit new ones."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from acker_redis.errors import RowFailedError
from acker_redis.outages import is_outage, text_of
from acker_redis.storm.components.component import Component, Rule
from acker_redis.storm.core.tuples import PENDING, Tuple
from acker_redis.storm.definition.specs import ComponentKind
from acker_redis.storm.definition.streams import DEFAULT


class Bolt(Component):
    """Component that processes tuples (Storm: IRichBolt; streamparse: Bolt).

    All calls of a task come one after the other. Tuples of one emitting task arrive in the order of their emits.

    `RowFailedError` in `process` fails the current tuple with its text. Any other exception fails it, too, with its type and
    text, is logged, and the task goes on. What was emitted before is sent, and state stays changed, as in Storm.

    Attributes:
        auto_anchor: True to anchor emits to the current tuple.
        auto_ack: True to ack the current tuple when `process` returns, unless it was acked or failed.
        auto_fail: True to fail the current tuple after an exception. Otherwise it stays pending.
        exit_on_exception: True to go on with a fresh, initialised copy after an exception other than RowFailedError.
            (streamparse's default is True, and its process exits.)
        cache: True if the attributes that change after `initialize` are a cache, which may vanish at any time. `Topology.run`
            refuses a bolt that changes its attributes otherwise. Any other value is your own.

    >>> class Split(Bolt):
    ...     outputs = ["word"]
    ...     def process(self, tup):
    ...         for word in tup.values.line.split():
    ...             self.emit([word])
    """

    _acker_kind: ClassVar[ComponentKind] = "bolt"
    _acker_needs: ClassVar[tuple[str, ...]] = ("process",)
    _acker_rules: ClassVar[Mapping[str, Rule]] = dict.fromkeys(
        ("auto_anchor", "auto_ack", "auto_fail", "exit_on_exception"),
        Rule(lambda value: isinstance(value, bool), "True or False"),
    )
    auto_anchor: bool = True
    auto_ack: bool = True
    auto_fail: bool = True
    exit_on_exception: bool = False
    cache: Any = False

    _acker_current: Sequence[Tuple] = ()

    def process(self, tup: Tuple) -> None:
        """Process a tuple."""
        raise NotImplementedError(f"{type(self).__name__} has no process(). Define it.")

    def process_tick(self, tup: Tuple) -> None:
        """Process a tick. Ticks arrive every `topology.tick.tuple.freq.secs`, and are not tracked."""

    def emit(
        self,
        values: Sequence[Any],
        stream: str | None = DEFAULT,
        anchors: Iterable[Tuple | str] | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None:
        """Emit a tuple.

        Args:
            values: one value per field of the stream.
            stream: name of the stream; None for the default stream.
            anchors: tuples, or their ids, that the new tuple is derived from. None means the current tuple with `auto_anchor`,
                and otherwise none. An empty list emits a tuple that isn't tracked.
            direct_task: task that receives the tuple of a direct stream.
            need_task_ids: True to return the ids of the tasks that the tuple was sent to.

        Raises:
            BadTupleError: the stream isn't declared, the number of values is wrong, an anchor was acked already, or the emit
                is direct on a stream that isn't, or the other way round. Nothing was sent.

        >>> self.emit(["word"], need_task_ids=True)
        [1]
        """
        if anchors is None:
            anchors = self._acker_current if self.auto_anchor else ()
        elif isinstance(anchors, (Tuple, str)) or not isinstance(anchors, Iterable):
            anchors = (anchors,)
        tasks: Sequence[int] = (self._acker_collector or self._acker_out()).emit(values, stream, anchors, direct_task)
        return list(tasks) if need_task_ids else None

    def ack(self, tup: Tuple | str) -> None:
        """Ack a tuple, or the tuple with this id. After a fail it has no effect.

        Raises:
            BadTupleError: the tuple was acked already. The tree is as it was.

        >>> self.ack(tup)  # or self.ack(tup.id)
        """
        self._acker_out().ack(tup)

    def fail(self, tup: Tuple | str, reason: str | None = None) -> None:
        """Fail a tuple, or the tuple with this id, with a text. After an ack or a fail it has no effect.

        Raises:
            BadTupleError: `tup` is neither a tuple nor an id, or the reason is not a text. The tree is as it was.

        >>> self.fail(tup, "no such customer")
        """
        self._acker_out().fail(tup, reason)

    def reset_timeout(self, tup: Tuple | str) -> None:
        """Restart the timeout of the messages that a tuple is derived from.

        >>> self.reset_timeout(tup)
        """
        self._acker_out().reset_timeout(tup)

    def _acker_execute(self, tup: Tuple) -> bool:
        """Process a tuple or tick, and ack or fail it. Returns False if the task has to go on with a fresh copy."""
        self._acker_current = (tup,)
        try:
            if tup.is_tick:
                self.process_tick(tup)
            else:
                self.process(tup)
            if self.auto_ack and tup.state is PENDING:
                self._acker_collector.ack(tup)
        except Exception as exc:
            return self._acker_failed(exc)
        finally:
            self._acker_current = ()
        return True

    @contextmanager
    def _acker_processing(self, tups: Sequence[Tuple], *, acks: bool | None = None) -> "Iterator[_Processing]":
        """Make tuples the current ones, and ack them at the end, or fail them after an exception."""
        done, outer = _Processing(), self._acker_current
        self._acker_current = tups
        try:
            yield done
            if self.auto_ack if acks is None else acks:
                for tup in tups:
                    if tup.state is PENDING:
                        self._acker_collector.ack(tup)
        except Exception as exc:
            done.has_failed = True
            done.is_whole = self._acker_failed(exc)
        finally:
            self._acker_current = outer

    def _acker_failed(self, exc: Exception) -> bool:
        """Fail the current tuples by an exception. Returns False if the task has to go on with a fresh copy."""
        retry, is_expected = True, True
        if isinstance(exc, RowFailedError):
            reason, retry = text_of(exc) or "failed", exc.retry
        else:
            is_expected = is_outage(exc)
            text = text_of(exc)
            reason = f"{type(exc).__name__}: {text}" if text else type(exc).__name__
            self._acker_metrics.errors += 1
            failing = [tup for tup in self._acker_current if tup.state is PENDING and not tup.is_tick]
            self._acker_logger.warning(
                "exception in a bolt task_id=%d failed=%d error=%r", self._acker_place.task_id,
                len(failing) if self.auto_fail else 0, exc, exc_info=exc,
            )  # fmt: skip
        if self.auto_fail:
            for tup in self._acker_current:
                self._acker_collector.fail(tup, reason, retry=retry, is_expected=is_expected)
        return isinstance(exc, RowFailedError) or not self.exit_on_exception

    def _acker_abandon(self) -> None:
        """Fail what the bolt holds, because a fresh copy takes its place."""

    def _acker_flush(self) -> bool:
        """Process what the bolt holds. Returns False if the task has to go on with a fresh copy."""
        return True


class _Processing:
    """Result of processing tuples: whether it raised, and whether the component may go on."""

    has_failed = False
    is_whole = True
