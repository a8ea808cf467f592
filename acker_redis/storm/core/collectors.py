"""Collectors: emits, acks and fails of one task, checked strictly.

Storm's counterparts are SpoutOutputCollectorImpl and BoltOutputCollectorImpl. A call that raises has changed nothing. The
checks come first, then the targets are chosen, then edges are XORed and tuples sent.
"""

from collections.abc import Callable, Iterable, Sequence
from threading import current_thread, get_ident
from time import perf_counter
from typing import Any, NamedTuple, NoReturn, Protocol

from acker_redis.errors import BadTupleError
from acker_redis.storm.core.context import TopologyContext
from acker_redis.storm.core.edges import CallEdges, content_of, task_key
from acker_redis.storm.core.hooks import BoltInfo, EmitInfo, HookList
from acker_redis.storm.core.observer import Observer
from acker_redis.storm.core.routing import Chooser, Router
from acker_redis.storm.core.tuples import ACKED, COPY, FAILED, PENDING, Tuple, values_type
from acker_redis.storm.definition.graph import Graph
from acker_redis.storm.definition.streams import DEFAULT, SYSTEM, Stream

_OVER_IDS = 10_000
"""Number of ids of failed and forgotten tuples that a task remembers, so that an ack by such an id has no effect."""

ACK_INIT, ACK_ACK, ACK_FAIL = "__ack_init", "__ack_ack", "__ack_fail"


class Emission(NamedTuple):
    """Tracked emit of a spout.

    Attributes:
        tup_id: id of the message, as the spout gave it.
        stream: name of the stream.
        values: values of the tuple.
        direct_task: task that a direct emit named.
    """

    tup_id: Any
    stream: str
    values: Any
    direct_task: int | None


class Transport(Protocol):
    """Side of a runner that carries tuples and updates of roots."""

    is_tracking: bool
    """False without acker executors: no roots, and messages are acked inside of their emit."""

    def send(self, sender: int, target: int, tup: Tuple) -> None:
        """Put a tuple into the queue of two tasks."""

    def new_root(self) -> int:
        """Draw a root that the app has never had."""

    def init(self, task: int, root: int, val: int, emission: Emission) -> None:
        """Init a root. The tuples are on their way."""

    def ack_untracked(self, task: int, emission: Emission) -> None:
        """Call the spout's ack at once, because nothing is tracked."""

    def ack(self, edges: dict[int, int], component: str) -> None:
        """XOR a value into each root. The values are final."""

    def fail(self, root: int, reason: str, component: str, *, retry: bool, is_expected: bool) -> None:
        """Fail a root. It is expected unless an exception caused it that the bolt doesn't declare."""

    def reset_timeout(self, root: int) -> None:
        """Restart a root's timeout."""


class Output:
    """Declared stream, as emits need it.

    Attributes:
        component: name of its component.
        stream: the stream.
        name: its name.
        count: number of its fields.
        make: function that makes the namedtuple of its values.
        choose: function that chooses the targets of a regular emit.
        source: component and stream, as `component:stream`.
    """

    __slots__ = ("choose", "component", "count", "make", "name", "source", "stream")

    def __init__(self, component: str, stream: Stream, choose: Chooser) -> None:
        self.component = component
        self.stream = stream
        self.name = stream.name
        self.count = len(stream.fields)
        self.make = values_type(stream)._make
        self.choose = choose
        self.source = f"{component}:{stream.name}"


class _Collector:
    """Emits of one task."""

    _output_type = Output

    def __init__(
        self,
        graph: Graph,
        context: TopologyContext,
        transport: Transport,
        observer: Observer,
        hooks: HookList,
        *,
        run: str,
        turn: int = 0,
    ) -> None:
        self.context = context
        self._task = context.task_id
        self._router = Router(graph, context)
        self._transport = transport
        self._observer = observer
        self._metrics = observer.metrics[context.component]
        self._hooks = hooks
        self._outputs = {
            name: self._output_type(context.component, stream, self._router.chooser(stream))
            for name, stream in context.streams.items()
        }
        self._sequence = 0
        self._calls = 0
        self._call = CallEdges(task_key(run, turn, context.task_id), "")
        self.begin_call()

    def begin_call(self, call: str | None = None) -> None:
        """Begin a call of the component. Its key defaults to the number of the call."""
        if call is None:
            self._calls += 1
            call = str(self._calls)
        self._call.begin(call)
        self._thread = get_ident()

    def emit_startup(self) -> None:
        """Emit `startup` on the system stream, as each task of Storm does before it is initialised. It isn't tracked."""
        self.begin_call()
        output, values = self._outputs[SYSTEM], ["startup"]
        targets = self._targets(output, values, None)
        if targets:
            self._note(output, values, targets)
        for target in targets:
            self._send(target, output, values, None)

    def check(self, values: object, stream: str | None, direct_task: int | None = None) -> None:
        """Check an emit without making it.

        Raises:
            BadTupleError: as for an emit.
        """
        output = self._checked(values, stream)
        if direct_task is not None:
            self._router.direct_targets(output.stream, direct_task)
        elif output.stream.direct:
            output.choose(values, self._call)  # type: ignore[arg-type]  # it raises

    def _checked(self, values: object, stream: str | None) -> Output:
        name = DEFAULT if stream is None else stream
        output = self._outputs.get(name) if isinstance(name, str) else None
        if output is None:
            output = self._outputs[self._router.stream(name).name]  # it raises
        if not isinstance(values, (list, tuple)):
            raise BadTupleError(
                f"The values {values!r} of an emit are neither a list nor a tuple. Emit [value], even for a single one."
            )
        if len(values) != output.count:
            fields = output.stream.fields
            declared = f"{len(fields)} field{'' if len(fields) == 1 else 's'}"
            raise BadTupleError(
                f"Stream {output.name!r} of {self.context.component!r} has {declared} ({', '.join(fields)}), but "
                f"{len(values)} were emitted. Nothing was sent. Emit one value per field."
            )
        return output

    def _refuse_thread(self) -> NoReturn:
        """Refuse a call from a thread of the component's own, which would race with the run for edges and queues."""
        raise BadTupleError(
            f"Component {self.context.component!r} emitted, acked or failed a tuple from thread {current_thread().name!r}, "
            "which could corrupt its tree. Keep the tuple, and call from process() or process_tick()."
        )

    def _targets(self, output: Output, values: Any, direct_task: int | None) -> Sequence[int]:
        call = self._call
        call.ordinal += 1
        if direct_task is None:
            return output.choose(values, call)
        return self._router.direct_targets(output.stream, direct_task)

    def _content(self, values: Any) -> bytes:
        """Return the bytes of an emit's values, which its edges depend on."""
        return content_of(values)

    def _send(self, target: int, output: Output, values: Any, edges: dict[int, int] | None) -> None:
        self._sequence = sequence = self._sequence + 1
        task = self._task
        made = Tuple(
            f"{task}:{sequence}", output.component, output.name, task, output.make(values), edges, output.source
        )
        self._transport.send(task, target, made)

    def _note(self, output: Output, values: Any, targets: Sequence[int], tup_id: Any = None) -> None:
        metrics, observer, name = self._metrics, self._observer, output.name
        metrics.emitted[name] += 1
        metrics.transferred[name] += len(targets)
        if self._hooks.emit:
            self._tell_emit(EmitInfo(output.make(values), name, self._task, list(targets)))
        if observer.is_recording or observer.events.is_any_on:
            observer.note_emit(output.component, self._task, name, output.make(values), tup_id)

    def _tell_emit(self, info: EmitInfo) -> None:
        """Tell the hooks of an emit, before its edges are made. A hook may emit, too."""
        call = self._call
        ordinal = call.ordinal
        for hear in self._hooks.emit:
            hear(info)
        if call.ordinal != ordinal:
            call.ordinal += 1  # else this emit could have the edges of the hook's


class SpoutCollector(_Collector):
    """Emits of a spout's task.

    Attributes:
        emits: number of emits so far.
    """

    emits = 0

    def emit(
        self, values: Sequence[Any], tup_id: Any = None, stream: str | None = None, direct_task: int | None = None
    ) -> Sequence[int]:
        """Emit a message, tracked if it has an id. Returns the tasks that it was sent to.

        Raises:
            BadTupleError: the stream isn't declared, the number of values is wrong, the emit is direct on a stream that isn't,
                or the other way round, or it comes from another thread. Nothing was sent.
        """
        if get_ident() != self._thread:
            self._refuse_thread()
        output = self._checked(values, stream)
        targets = self._targets(output, values, direct_task)
        transport, task = self._transport, self._task
        self.emits += 1
        self._note(output, values, targets, tup_id)
        if tup_id is None or not transport.is_tracking:
            for target in targets:
                self._send(target, output, values, None)
            if tup_id is not None:
                transport.ack_untracked(task, Emission(tup_id, output.name, output.make(values), direct_task))
            return targets
        root, val, content = transport.new_root(), 0, self._content(values)
        for place, target in enumerate(targets):
            edge = self._call.edge(root, place, target, content)
            val ^= edge
            self._send(target, output, values, {root: edge})
        if self._hooks.emit:
            self._tell_emit(EmitInfo([root, val, task], ACK_INIT, task, []))
        transport.init(task, root, val, Emission(tup_id, output.name, output.make(values), direct_task))
        return targets


class BoltCollector(_Collector):
    """Emits, acks and fails of a bolt's task.

    Attributes:
        open_tuples: id -> tuple that was executed before, and is neither acked nor failed.
    """

    open_tuples: dict[str, Tuple]

    def __init__(self, *args: Any, **options: Any) -> None:
        self.open_tuples = {}
        self._executing: Tuple | None = None
        self._over: dict[str, None] = {}
        super().__init__(*args, **options)

    def begin_tuple(self, tup: Tuple) -> None:
        """Begin to execute a tuple."""
        self._executing = tup
        self._call.begin(tup.id)
        self._thread = get_ident()
        tup.began = perf_counter()

    def end_tuple(self, tup: Tuple) -> None:
        """Note that the execution of a tuple returned."""
        duration_ms = (perf_counter() - tup.began) * 1000
        self._executing = None
        if tup.state is PENDING and not tup.is_tick:
            self.open_tuples[tup.id] = tup
        metrics = self._metrics
        metrics.executed[tup.source] += 1
        metrics.execute_latency[tup.source].add(duration_ms)
        if self._observer.is_recording:
            self._observer.note_execution(self.context.component, tup)
        for hear in self._hooks.bolt_execute:
            hear(BoltInfo(tup, self._task, duration_ms))

    def emit(
        self,
        values: Sequence[Any],
        stream: str | None = None,
        anchors: Iterable[Tuple | str] = (),
        direct_task: int | None = None,
    ) -> Sequence[int]:
        """Emit a tuple, anchored to tuples or their ids. Returns the tasks that it was sent to.

        Raises:
            BadTupleError: as for a spout, or an anchor was acked already. Nothing was sent, and the trees are as they were.
        """
        if get_ident() != self._thread:
            self._refuse_thread()
        output = self._checked(values, stream)
        tups: list[Tuple] = []
        for anchor in anchors:
            tup = anchor if anchor is self._executing else self._held(anchor, "emit anchored to")
            if tup.state is ACKED:
                self._refuse_anchor(tup)
            tups.append(tup)
        targets = self._targets(output, values, direct_task)
        self._note(output, values, targets)
        trees: list[dict[int, int]] = []
        for tup in tups:
            if tup.state is ACKED:  # by a hook
                self._refuse_anchor(tup)
            if tup.edges:
                trees.append(tup.edges)
        if not trees:
            for target in targets:
                self._send(target, output, values, None)
            return targets
        if not targets:
            return targets
        call, content = self._call, self._content(values)
        for place, target in enumerate(targets):
            edges: dict[int, int] = {}
            for tree in trees:
                for root in tree:
                    if root not in edges:
                        edges[root] = edge = call.edge(root, place, target, content)
                        tree[root] ^= edge
            self._send(target, output, values, edges)
        return targets

    def _refuse_anchor(self, tup: Tuple) -> NoReturn:
        raise BadTupleError(
            f"Component {self.context.component!r} acked the tuple {tup.id!r} before it emitted anchored to it, so the new "
            "tuple would be outside of the tree. Emit first, then ack."
        )

    def ack(self, tup: Tuple | str) -> None:
        """Ack a tuple. After a fail it has no effect.

        Raises:
            BadTupleError: the tuple was acked already, or the call comes from another thread.
        """
        if get_ident() != self._thread:
            self._refuse_thread()
        held = tup if tup is self._executing else self._held(tup, "ack")
        if held.state is FAILED:
            return
        if held.state is ACKED:
            raise BadTupleError(
                f"Component {self.context.component!r} acked the tuple {held.id!r} twice, which would cancel the first ack. "
                "Ack a tuple once. With auto_ack, process() needs no ack."
            )
        held.state = ACKED
        if held is not self._executing:
            self.open_tuples.pop(held.id, None)
        if self._transport.is_tracking:
            self._transport.ack(held.edges, self.context.component)
            if self._hooks.emit:
                for root, val in held.edges.items():
                    self._tell_emit(EmitInfo([root, val], ACK_ACK, self._task, []))
        latency_ms = (perf_counter() - held.began) * 1000
        self._metrics.acked[held.source] += 1
        self._metrics.process_latency[held.source].add(latency_ms)
        for hear in self._hooks.bolt_ack:
            hear(BoltInfo(held, self._task, latency_ms))

    def fail(
        self, tup: Tuple | str, reason: str | None = None, *, retry: bool = True, is_expected: bool = True
    ) -> None:
        """Fail a tuple. After an ack or a fail it has no effect.

        Raises:
            BadTupleError: `tup` is neither a tuple nor an id, the reason is not a text, or the call comes from another thread.
        """
        if get_ident() != self._thread:
            self._refuse_thread()
        if reason is not None and not isinstance(reason, str):
            raise BadTupleError(
                f"Component {self.context.component!r} failed a tuple with the reason {reason!r}, which is not a text. Pass "
                "str(reason), or omit it."
            )
        held = self._open(tup, "fail")
        if held is None:
            return
        held.state = FAILED
        if held is self._executing or self.open_tuples.pop(held.id, None) is not None:
            self._note_over(held.id)
        if self._transport.is_tracking:
            for root in held.edges:
                self._transport.fail(
                    root, reason or "failed", self.context.component, retry=retry, is_expected=is_expected
                )
            if self._hooks.emit:
                for root in held.edges:
                    self._tell_emit(EmitInfo([root], ACK_FAIL, self._task, []))
        self._metrics.failed[held.source] += 1
        for hear in self._hooks.bolt_fail:
            hear(BoltInfo(held, self._task, (perf_counter() - held.began) * 1000))

    def reset_timeout(self, tup: Tuple | str) -> None:
        """Restart the timeout of a tuple's messages. After an ack or a fail it has no effect.

        Raises:
            BadTupleError: `tup` is neither a tuple nor an id, or the call comes from another thread.
        """
        if get_ident() != self._thread:
            self._refuse_thread()
        held = self._open(tup, "reset the timeout of")
        if held is not None and self._transport.is_tracking:
            for root in held.edges:
                self._transport.reset_timeout(root)

    def sweep(self, is_pending: Callable[[int], bool]) -> None:
        """Forget tuples whose messages have all ended, so that a bolt that forgets tuples doesn't fill the memory.

        Their acks, fails and resets have no effect any more.
        """
        over = [tup_id for tup_id, tup in self.open_tuples.items() if not any(map(is_pending, tup.edges))]
        for tup_id in over:
            del self.open_tuples[tup_id]
            self._note_over(tup_id)

    def _note_over(self, tup_id: str) -> None:
        """Remember an id whose acks have no effect."""
        self._over[tup_id] = None
        if len(self._over) > _OVER_IDS:
            del self._over[next(iter(self._over))]

    def _open(self, tup: Tuple | str, call: str) -> Tuple | None:
        """Return a tuple that is neither acked nor failed, by itself or by its id."""
        if not isinstance(tup, Tuple):
            return self._by_id(tup, call)
        if tup.state is COPY:
            self._refuse_copy(tup, call)
        return tup if tup.state is PENDING else None

    def _by_id(self, tup_id: str, call: str) -> Tuple | None:
        """Return a tuple that is neither acked nor failed, by its id."""
        if not isinstance(tup_id, str):
            raise BadTupleError(
                f"Component {self.context.component!r} tried to {call} {tup_id!r}, which is neither a tuple nor its id. Pass "
                "the tuple that process() received, or tup.id."
            )
        executing = self._executing
        if executing is not None and executing.id == tup_id and executing.state is PENDING:
            return executing
        return self.open_tuples.get(tup_id)

    def _refuse_copy(self, tup: Tuple, call: str) -> NoReturn:
        raise BadTupleError(
            f"Component {self.context.component!r} tried to {call} a copy of the tuple {tup.id!r}. A copy belongs to no "
            "message, so the message would not wait for it. Pass the tuple that process() received, or its id."
        )

    def _held(self, tup: Tuple | str, call: str) -> Tuple:
        if isinstance(tup, Tuple):
            if tup.state is COPY:
                self._refuse_copy(tup, call)
            return tup
        held = self._by_id(tup, call)
        if held is None and tup in self._over:
            held = Tuple(tup, SYSTEM, DEFAULT, -1, ())
            held.state = FAILED
        if held is None:
            raise BadTupleError(
                f"Component {self.context.component!r} tried to {call} {tup!r}, which is not a tuple that it holds. It was "
                "acked or failed before, or another task received it."
            )
        return held
