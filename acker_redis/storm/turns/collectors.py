"""Collectors whose emits become rows. Values are serialised and checked at the emit, before anything has changed."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import get_ident
from time import perf_counter
from typing import Any, NoReturn

from acker_redis.errors import BadTupleError, InvalidTopologyError
from acker_redis.storm.components.bolt import Bolt
from acker_redis.storm.core.collectors import BoltCollector, Emission, Output, SpoutCollector
from acker_redis.storm.core.edges import CallEdges
from acker_redis.storm.core.hooks import EmitInfo
from acker_redis.storm.core.metrics import Mean
from acker_redis.storm.core.observer import Observer
from acker_redis.storm.core.tuples import ACKED, PENDING, Tuple
from acker_redis.storm.core.values import dump_values
from acker_redis.storm.definition.streams import DEFAULT
from acker_redis.storm.local.bolts import BoltTask
from acker_redis.storm.turns.field_types import advice, fit
from acker_redis.storm.turns.plan import Plan
from acker_redis.storm.turns.rows import EDGE_BYTES, Entry, RowBuffer

MAX_VALUE_BYTES = 32 << 20
"""Longest serialised tuple, in bytes."""


_NO_EDGES: dict[int, int] = {}


class Emits:
    """Rows of the emits of several tasks.

    Attributes:
        rows: the rows.
        plan: plan of the run.
        numbers: component:stream -> number of the stream.
    """

    def __init__(self, plan: Plan) -> None:
        self.rows = RowBuffer()
        self.plan = plan
        self.numbers = {f"{name}:{stream}": number for number, (name, stream) in enumerate(plan.sources)}


class RowOutput(Output):
    """Declared stream, as emits need it that become rows.

    Attributes:
        number: number of the stream in the plan.
        checks: for each field, the function that tells whether a value fits its type; empty without a sink.
        emitted: number of emits that the metrics don't have yet.
        transferred: number of tuples that they sent.
    """

    __slots__ = ("checks", "emitted", "number", "transferred")

    number: int
    checks: tuple[Callable[[Any], bool], ...]
    emitted: int
    transferred: int


class _Rows:
    """Emits of one task that become rows."""

    _output_type = RowOutput
    _bytes = b""
    _task: int
    _sequence: int
    _call: CallEdges
    _outputs: dict[str, Any]
    """`RowOutput` by the name of the stream. `Any`, because the base class has the other type."""
    _observer: Observer
    context: Any

    def send_to(self, emits: Emits) -> None:
        """Begin to send the tuples there."""
        types = emits.plan.types.get(self.context.component, {})
        for name, output in self._outputs.items():
            output.number = emits.numbers[output.source]
            output.checks = tuple(map(fit, types.get(name, ())))
            output.emitted = output.transferred = 0
        self._types = types
        self._rows, self._keys = emits.rows, emits.plan.key_of
        self._rows.task_keys[self._task] = self._call.task_key
        self._waiting: dict[int, list[Entry]] = {}
        self._is_logged = self._observer.events.is_any_on

    def _checked(self, values: object, stream: str | None) -> RowOutput:
        output: RowOutput | None = self._outputs.get(stream) if type(stream) is str else None
        if output is None or not isinstance(values, (list, tuple)) or len(values) != output.count:
            output = super()._checked(values, stream)  # type: ignore[misc]  # it raises, unless the stream is the default
        if output.checks:
            for value, fits in zip(values, output.checks):  # type: ignore[call-overload]  # noqa: B905  # it takes time
                if value is not None and not fits(value):
                    self._refuse_type(output, values)
        try:
            self._bytes = data = dump_values(values)  # type: ignore[arg-type]
        except Exception as exc:  # of a value's own code
            self._refuse_values(exc)
        if len(data) > MAX_VALUE_BYTES:
            self._refuse_size(len(data))
        return output

    def _refuse_type(self, output: RowOutput, values: Any) -> None:
        kinds = self._types[output.name]
        for name, value, kind, fits in zip(output.stream.fields, values, kinds, output.checks, strict=True):
            if value is not None and not fits(value):
                raise BadTupleError(
                    f"Field {name!r} of stream {output.name!r} of {output.component!r} is declared as {kind}, and "
                    f"{value!r:.100} doesn't fit. Its sink couldn't write it as it is. "
                    f"{advice(kind)}."
                )

    def _refuse_values(self, exc: Exception) -> NoReturn:
        raise BadTupleError(
            f"The values of an emit of {self.context.component!r} can't be serialised ({exc!r:.200}), so they can't reach "
            "another process. Emit plain values, or objects of classes in a module."
        ) from exc

    def _refuse_size(self, nbytes: int) -> NoReturn:
        raise BadTupleError(
            f"The values of an emit of {self.context.component!r} have {nbytes:,} bytes, and a turn carries at most "
            f"{MAX_VALUE_BYTES:,}. Write them to a file, and emit its path."
        )

    def _tell_emit(self, info: EmitInfo) -> None:
        data = self._bytes
        super()._tell_emit(info)  # type: ignore[misc]
        self._bytes = data  # a hook may have emitted other values

    def _content(self, values: Any) -> bytes:  # noqa: ARG002  # of the values that were checked last
        return self._bytes

    def _send(self, target: int, output: Any, values: Any, edges: dict[int, int] | None) -> None:  # noqa: ARG002
        self._sequence = sequence = self._sequence + 1
        waiting = self._waiting.get(target)
        if waiting is None:
            waiting = self._wait_for(target)
        data, rows, edges = self._bytes, self._rows, edges or _NO_EDGES
        waiting.append((sequence, output.number, data, edges))
        rows.count += 1
        rows.nbytes += len(data) + EDGE_BYTES * len(edges)

    def _wait_for(self, target: int) -> list[Entry]:
        made = self._waiting[target] = self._rows.tuples(self._keys[target], target, self._task)
        return made

    def begin_sequence(self, first: int) -> None:
        """Begin the numbers of the tuples, where several processes emit for one task."""
        self._sequence = first

    def emit_startup(self) -> None:
        """Emit `startup`; see the base class."""
        self._bytes = dump_values(["startup"])
        super().emit_startup()  # type: ignore[misc]


class RowSpoutCollector(_Rows, SpoutCollector):
    """Emits of a spout's task."""

    def emit(
        self, values: Sequence[Any], tup_id: Any = None, stream: str | None = None, direct_task: int | None = None
    ) -> Sequence[int]:
        """Emit a message; see the base class."""
        targets = super().emit(values, tup_id, stream, direct_task)
        if tup_id is None or not self._transport.is_tracking:
            untracked = Emission(None, DEFAULT if stream is None else stream, tuple(values), direct_task)
            self._transport.note_untracked(self._task, untracked)  # type: ignore[attr-defined]
        return targets


class _Tally:
    """Executions that the metrics don't have yet.

    Attributes:
        executed: times that the executions took, by source of the tuples.
        acked: times until the acks, by source of those that were acked.
        edges: edges of those.
    """

    __slots__ = ("acked", "edges", "executed")

    def __init__(self) -> None:
        self.executed: dict[str, Mean] = defaultdict(Mean)
        self.acked: dict[str, Mean] = defaultdict(Mean)
        self.edges: list[dict[int, int]] = []


class RowBoltCollector(_Rows, BoltCollector):
    """Emits of a bolt's task during one turn.

    Attributes:
        mistake: error that ends the run; None: there is none.
    """

    mistake: InvalidTopologyError | None = None
    _transport: Any

    def emit(
        self,
        values: Sequence[Any],
        stream: str | None = None,
        anchors: Iterable[Tuple | str] = (),
        direct_task: int | None = None,
    ) -> Sequence[int]:
        """Emit a tuple; see the base class. An emit of the usual form, anchored to the current tuple, takes the short way."""
        tup = self._executing
        is_watched = self._is_logged or self._hooks.emit
        is_usual = type(anchors) is tuple and len(anchors) == 1 and anchors[0] is tup and direct_task is None
        if is_watched or not is_usual or tup is None or tup.state is ACKED or len(tup.edges) > 1:
            return super().emit(values, stream, anchors, direct_task)
        if get_ident() != self._thread:
            self._refuse_thread()
        output = self._checked(values, stream)
        call = self._call
        call.ordinal += 1
        targets = output.choose(values, call)
        output.emitted += 1
        output.transferred += len(targets)
        (root,) = tup.edges or (_NO_EDGES,)  # its edge comes with the row
        data, rows = self._bytes, self._rows
        for target in targets:
            self._sequence = sequence = self._sequence + 1
            waiting = self._waiting.get(target) or self._wait_for(target)
            waiting.append((sequence, output.number, data, root))
            rows.count += 1
            rows.nbytes += len(data) + EDGE_BYTES
        return targets

    def executed(self, task: BoltTask, tups: Iterator[Tuple], *, are_ticks: bool) -> Iterator[Tuple]:
        """Execute tuples one by one, as `BoltTask.execute` does. Yields each after its execution.

        The usual bolts, without hooks, take the short way.
        """
        tally, hooks = _Tally(), self._hooks
        try:
            for tup in tups:
                if are_ticks or not hooks.is_empty or type(task.component)._acker_execute is not Bolt._acker_execute:  # noqa: SLF001
                    task.execute(tup)
                else:
                    self._execute(task, tup, tally)
                yield tup
        finally:
            self._count(tally)

    def _execute(self, task: BoltTask, tup: Tuple, tally: _Tally) -> None:
        """Execute a tuple. All of it is here, because a call takes longer than most of what it does."""
        component, hooks = task.component, self._hooks
        self._executing, self._thread = tup, get_ident()
        self._call.begin(tup.id)
        component._acker_current = (tup,)  # noqa: SLF001
        is_whole, is_acked = True, False
        tup.began = began = perf_counter()
        try:
            component.process(tup)
            if component.auto_ack and tup.state is PENDING:
                if hooks.is_empty:
                    tup.state, is_acked = ACKED, True
                else:  # it was added by this call
                    self.ack(tup)
        except Exception as exc:
            is_whole = component._acker_failed(exc)  # noqa: SLF001
        finally:
            component._acker_current = ()  # noqa: SLF001
        if hooks.is_empty:
            took_ms = (perf_counter() - began) * 1000
            self._executing = None
            mean = tally.executed[tup.source]
            mean.count += 1
            mean.total_ms += took_ms
            if is_acked:
                mean = tally.acked[tup.source]
                mean.count += 1
                mean.total_ms += took_ms
                tally.edges.append(tup.edges)
            elif tup.state is PENDING:
                self.open_tuples[tup.id] = tup
        else:
            self.end_tuple(tup)
        if not is_whole:
            task.replace()

    def _count(self, tally: _Tally) -> None:
        """Send the acks of a tally, and add it and the emits to the metrics."""
        metrics = self._metrics
        for name, output in self._outputs.items():
            if output.emitted:
                metrics.emitted[name] += output.emitted
                metrics.transferred[name] += output.transferred
                output.emitted = output.transferred = 0
        for source, mean in tally.executed.items():
            metrics.executed[source] += mean.count
            metrics.execute_latency[source].merge(mean)
        for source, mean in tally.acked.items():
            metrics.acked[source] += mean.count
            metrics.process_latency[source].merge(mean)
        if self._transport.is_tracking:
            self._transport.ack_tuples(tally.edges, self.context.component)

    def _held(self, tup: Tuple | str, call: str) -> Tuple:
        self._check_turn(tup, call)
        return super()._held(tup, call)

    def fail(
        self, tup: Tuple | str, reason: str | None = None, *, retry: bool = True, is_expected: bool = True
    ) -> None:
        """Fail a tuple; see the base class."""
        self._check_turn(tup, "fail")
        super().fail(tup, reason, retry=retry, is_expected=is_expected)

    def _check_turn(self, tup: Tuple | str, call: str) -> None:
        """Refuse a tuple of an earlier turn."""
        if tup is self._executing or not isinstance(tup, Tuple) or tup.state is not PENDING:
            return
        if self.open_tuples.get(tup.id) is not tup:
            self.mistake = InvalidTopologyError(
                f"Component {self.context.component!r} tried to {call} a tuple of an earlier turn, which isn't in its "
                "state. A worker may vanish with its objects. Derive from StatefulBolt, and keep the tuple in self.state."
            )
            raise self.mistake
