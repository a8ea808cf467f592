"""Components for topologies on Spark. Workers import them from here; spouts stay in the process of the test."""

import json
import os
import random
import signal
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import redis

from acker_redis.acker import app_of
from acker_redis.spark.worker import process
from acker_redis.spark.worker.process import acker_of_worker
from acker_redis.storm import (
    Bolt,
    DataFrameSpout,
    Grouping,
    ReliableSpout,
    RetryPolicy,
    RowFailedError,
    Spout,
    TaskHook,
    Topology,
    TopologyBuilder,
    Tuple,
)
from acker_redis.storm.turns.plan import Plan
from acker_redis.storm.turns.steps import AckStep, BinReport
from acker_redis.storm.turns.updates import Bin
from tests.storm.turns import cluster_parts
from tests.support.spark.faults import once, wait_for


class Heard(list[tuple[Any, ...]]):
    """Calls of a spout's tasks, in order: ("ack", id) or ("fail", id, reason)."""

    @property
    def acked(self) -> list[Any]:
        return [call[1] for call in self if call[0] == "ack"]

    @property
    def failed(self) -> dict[Any, str]:
        return {call[1]: call[2] for call in self if call[0] == "fail"}


AT_ONCE = RetryPolicy(max_attempts=2, first_delay_secs=0)


class HearsOfRows(DataFrameSpout):
    """Tells how its rows end. Its copies tell it to the same list."""

    heard: Heard

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = super().__deepcopy__(memo)
        copied.heard = self.heard
        return copied

    def ack(self, tup_id: int) -> None:
        self.heard.append(("ack", tup_id))

    def fail(self, tup_id: int, reason: str) -> None:
        self.heard.append(("fail", tup_id, reason))


def spout_of(
    messages: Sequence[tuple[Any, Any]],
    heard: Heard,
    fields: Sequence[Any] = ("v",),
    base: type[Spout] = Spout,
    **own: Any,
) -> type[Spout]:
    """A spout that emits values and ids, one at a call. All its tasks share the messages."""
    left = list(messages)[::-1]

    class Emits(base):  # type: ignore[misc, valid-type]
        outputs = list(fields)
        max_fails = 1 if base is ReliableSpout else None
        retry = RetryPolicy(first_delay_secs=0)

        def next_tuple(self) -> None:
            if left:
                values, tup_id = left.pop()
                self.emit([values] if not isinstance(values, list) else values, tup_id=tup_id)

        def ack(self, tup_id: Any) -> None:
            heard.append(("ack", tup_id))

        def fail(self, tup_id: Any, reason: str) -> None:
            heard.append(("fail", tup_id, reason))

    for name, value in own.items():
        setattr(Emits, name, value)
    return Emits


def numbered(values: Sequence[Any]) -> list[tuple[Any, int]]:
    return [(value, number) for number, value in enumerate(values)]


def chain(
    spout: Spout | type[Spout],
    *bolts: Bolt | type[Bolt],
    par: int = 2,
    grouping: Grouping = Grouping.SHUFFLE,
    config: Mapping[str, Any] | None = None,
) -> Topology:
    """A spout `spout` and bolts `a`, `b` ... behind each other."""
    builder = TopologyBuilder()
    builder.set_spout("spout", spout)
    source = "spout"
    for name, bolt in zip("abcdefgh", bolts, strict=False):
        builder.set_bolt(name, bolt, par=par).grouping(source, grouping)
        source = name
    return builder.create_topology("chain", config)


class Split(Bolt):
    outputs = ["word"]

    def process(self, tup: Tuple) -> None:
        for word in tup.values[0].split():
            self.emit([word])


class TakesMaps(Bolt):
    def process(self, tup: Tuple) -> None:
        assert tup.values[1] == {"a": tup.values[0]} and tup.values[2] == [{tup.values[0]: "b"}]


class Lower(Bolt):
    outputs = ["word string"]

    def process(self, tup: Tuple) -> None:
        if tup.values.word.startswith("bad"):
            raise RowFailedError("bad word", retry=tup.values.word != "bad-for-ever")
        self.emit([tup.values.word.lower()])


class Seen(Bolt):
    """Emits what it received, with its task."""

    outputs = ["v string", "task bigint", "frm bigint"]

    def process(self, tup: Tuple) -> None:
        self.emit([str(tup.values[0]), self.task_id, tup.task])


class Reports(Bolt):
    """Reports its task as a metric."""

    def process(self, tup: Tuple) -> None:
        self.report_metric(f"task {self.task_id}", 1)
        self.report_metric("hooked", CountsExecutions.executed)


class CountsExecutions(TaskHook):
    """Counts executions in this process."""

    executed = 0

    def bolt_execute(self, info: Any) -> None:
        CountsExecutions.executed += 1


class NotesCalls(TaskHook):
    """Notes all calls in files, by component: `split bolt_ack ('a',)`."""

    def prepare(self, conf: Mapping[str, Any], context: Any) -> None:
        self.component, self.folder = context.component, Path(conf["noted"])

    def note(self, *what: object) -> None:
        with (self.folder / str(os.getpid())).open("a") as file:
            file.write(" ".join(map(str, (self.component, *what))) + "\n")

    def emit(self, info: Any) -> None:
        self.note("emit", info.stream, "" if info.stream.startswith("__") else tuple(info.values))

    def spout_ack(self, info: Any) -> None:
        self.note("spout_ack", info.tup_id)

    def spout_fail(self, info: Any) -> None:
        self.note("spout_fail", info.tup_id, info.reason, info.last_component)

    def bolt_execute(self, info: Any) -> None:
        self.note("bolt_execute", tuple(info.tuple.values))

    def bolt_ack(self, info: Any) -> None:
        self.note("bolt_ack", tuple(info.tuple.values))

    def bolt_fail(self, info: Any) -> None:
        self.note("bolt_fail", tuple(info.tuple.values))


class Forgets(Bolt):
    """Neither acks nor fails one word."""

    outputs = ["word"]
    auto_ack = False

    def process(self, tup: Tuple) -> None:
        if tup.values.word == "forgotten":
            self.report_metric("forgotten", 1)
            return
        self.emit(list(tup.values))
        self.ack(tup)


class Passing(Bolt):
    outputs: Any = ["v"]

    def process(self, tup: Tuple) -> None:
        self.emit(list(tup.values))


class Does(Bolt):
    """Does something with the first value, by its name in this module."""

    outputs = ["v"]

    def __init__(self, call: str, *arguments: Any, **flags: Any) -> None:
        self.call, self.arguments = call, arguments
        for name, value in flags.items():
            setattr(self, name, value)

    def process(self, tup: Tuple) -> None:
        act: Callable[..., object] = globals()[self.call]
        act(self, tup, *self.arguments)


def take_field(bolt: Bolt, tup: Tuple, place: int) -> None:
    bolt.emit([tup.values[place]])


def some(batches: Any) -> Any:
    """Return half of the rows, others each time."""
    for batch in batches:
        yield batch.filter([random.random() < 0.5 for _ in range(batch.num_rows)])


def noted(batches: Any, folder: str) -> Any:
    """Note each execution that reads rows in a file."""
    for number, batch in enumerate(batches):
        if not number:
            Path(folder, uuid.uuid4().hex).touch()
        yield batch


def redrawn(batches: Any) -> Any:
    """Draw the second column anew in each execution."""
    for batch in batches:
        drawn = pa.array([random.random() for _ in range(batch.num_rows)])
        yield pa.RecordBatch.from_arrays([batch.column(0), drawn], ["id", "drawn"])


class Twice:
    """Grouping that sends each tuple twice to one task."""

    def prepare(self, context: Any, stream: Any, tasks: Sequence[int]) -> None:
        self.tasks = tasks

    def choose_tasks(self, task: int, values: Any) -> list[int]:
        return [self.tasks[0]] * 2


def forget_odd(bolt: Bolt, tup: Tuple) -> None:
    if tup.values[0] % 2 == 0:
        bolt.ack(tup)


def forget_odd_and_pass(bolt: Bolt, tup: Tuple) -> None:
    bolt.emit(list(tup.values))
    forget_odd(bolt, tup)


def kill_once(bolt: Bolt, tup: Tuple, mark: str) -> None:
    once(Path(mark), lambda: os.kill(os.getpid(), signal.SIGKILL))
    bolt.emit(list(tup.values))


def kill_at(bolt: Bolt, tup: Tuple, value: Any) -> None:
    if tup.values[0] == value:
        os.kill(os.getpid(), signal.SIGKILL)
    bolt.emit(list(tup.values))


def hang_at(bolt: Bolt, tup: Tuple, value: Any, mark: str) -> None:
    if tup.values[0] == value:
        Path(mark).touch()
        time.sleep(3600)
    bolt.emit(list(tup.values))


def pass_with_fault(bolt: Bolt, tup: Tuple, fault: str, value: Any, folder: str) -> None:
    """The fault is at one value."""
    emit = partial(bolt.emit, list(tup.values))
    if tup.values[0] == value:
        cluster_parts.FAULTS[fault](Path(folder), emit)
    else:
        emit()


def wait_at(bolt: Bolt, tup: Tuple, value: Any, folder: str) -> None:
    """Says that it has begun, and waits until somebody says that it is enough."""
    if tup.values[0] == value:
        Path(folder, "began").touch()
        wait_for(Path(folder, "enough"))


def empty_redis_once(bolt: Bolt, tup: Tuple, mark: str, url: str) -> None:
    """The worker opens the app anew, which takes until the driver has recovered it."""

    def empty() -> None:
        redis.Redis.from_url(url).flushall()
        process._ackers.clear()

    once(Path(mark), empty)
    bolt.emit(list(tup.values))


def draw(bolt: Bolt, tup: Tuple) -> None:
    """Not deterministic: each execution draws how many tuples it emits, and says so in each."""
    count, execution = random.randrange(1, 5), random.random()
    for number in range(count):
        bolt.emit([[tup.values[0], execution, count, number]])


def note_drawn(bolt: Bolt, tup: Tuple, folder: str) -> None:
    with Path(folder, f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(tup.values[0]) + "\n")
    bolt.emit(list(tup.values))


def note_drawn_and_die_once(bolt: Bolt, tup: Tuple, folder: str, local: str | None) -> None:
    """The second task dies at its first tuple, once the first task has processed one; shuffle files may die with it."""
    index = bolt.context.task_index
    if index:
        once(Path(folder, "died"), lambda: die(Path(folder), local))
    note_drawn(bolt, tup, folder)
    Path(folder, f"began-{index}").touch()


def die(folder: Path, local: str | None) -> None:
    wait_for(folder / "began-0")
    for path in Path(local).rglob("shuffle_*") if local else ():
        path.unlink(missing_ok=True)
    os.kill(os.getpid(), signal.SIGKILL)


def processed_whole(folder: Path) -> set[Any]:
    """Messages of which all tuples of one execution were processed."""
    rows = [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    numbers: dict[tuple[Any, float, int], set[int]] = {}
    for message, execution, count, number in rows:
        numbers.setdefault((message, execution, count), set()).add(number)
    return {message for (message, _, count), found in numbers.items() if len(found) == count}


def emit_unpicklable(bolt: Bolt, tup: Tuple) -> None:
    bolt.emit([lambda: None])


def emit_large(bolt: Bolt, tup: Tuple, sizes: Mapping[Any, int]) -> None:
    bolt.emit([b"x" * sizes[tup.values[0]]])


def raise_always(bolt: Bolt, tup: Tuple) -> None:
    raise KeyError(tup.values[0])


def fail_at(bolt: Bolt, tup: Tuple, value: Any) -> None:
    if tup.values[0] == value:
        raise RowFailedError("on purpose")


def raise_at(bolt: Bolt, tup: Tuple, value: Any) -> None:
    if tup.values[0] == value:
        raise KeyError(value)


def emit_text(bolt: Bolt, tup: Tuple) -> None:
    bolt.emit(["no number" if tup.values[0] == 1 else tup.values[0]])


def branch(bolt: Bolt, tup: Tuple) -> None:
    """An anchored, an unanchored and a twice anchored tuple."""
    bolt.emit(["anchored"])
    bolt.emit(["free"], anchors=[])
    bolt.emit(["twice"], anchors=[tup, tup])


def drop(batches: Any, partition: int) -> None:
    """A sink that only reads its rows."""
    for _ in batches:
        pass


class DiesWhenItHasSent(AckStep):
    """Kills its worker behind the first bin, each time."""

    def _send(self, plan: Plan, number: int, updates: Bin) -> BinReport:
        report = super()._send(plan, number, updates)
        if number == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return report


class DiesBeforeItSends(AckStep):
    """Kills its worker behind the claim of the first bin, each time."""

    def _send(self, plan: Plan, number: int, updates: Bin) -> BinReport:
        if number == 0:
            acker = acker_of_worker(str(self.spec.url), self.spec.config)
            app_of(acker).turn(self.spec.run_id, self.spec.turn).claim(number, updates.digest())
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._send(plan, number, updates)


class CountsInSelf(Bolt):
    """As streamparse's own word count does."""

    outputs = ["word", "n"]

    def initialize(self, conf: Any, context: Any) -> None:
        self.counts: dict[str, int] = {}

    def process(self, tup: Tuple) -> None:
        self.counts[tup.values[0]] = self.counts.get(tup.values[0], 0) + 1


class Caches(CountsInSelf):
    cache = True


class HoldsForEver(Bolt):
    cache = True
    auto_ack = False

    def initialize(self, conf: Any, context: Any) -> None:
        self.held: list[Tuple] = []

    def process(self, tup: Tuple) -> None:
        while self.held:
            self.ack(self.held.pop())
        self.held.append(tup)


class BrokenInitialize(Bolt):
    def initialize(self, conf: Any, context: Any) -> None:
        raise KeyError("no such setting")

    def process(self, tup: Tuple) -> None: ...
