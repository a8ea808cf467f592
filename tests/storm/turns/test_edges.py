"""Edges that are derived with their row: no two are equal, and a turn closes exactly the trees that were processed."""

import pickle
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.cloudpickle import dumps

from acker_redis import Acker, AckerConfig
from acker_redis.storm import Bolt, Stream, TaskHook, TopologyBuilder, Tuple
from acker_redis.storm.core.values import load_values
from acker_redis.storm.local.run import spout_id_of
from acker_redis.storm.turns import steps
from acker_redis.storm.turns.edges import edges_of_row
from acker_redis.storm.turns.engine import TurnEngine
from acker_redis.storm.turns.plan import Plan, make_plan
from acker_redis.storm.turns.rows import BIN, REPORT, SCHEMA, Entry, RowBuffer, edges_of_tuples, unpack
from acker_redis.storm.turns.steps import LevelReport, LevelStep, TurnSpec
from acker_redis.storm.turns.updates import Bin
from acker_redis.testing import fake_acker
from tests.storm.turns.parts import Heard, spout_of

KEY = bytes(range(16))
ROOTS = [0, 1, 2, 1 << 59, (1 << 64) - 1]
VALUES = [
    b"", b"\0", b"\0\0", b"\0" * 7, b"\0" * 8, b"\0" * 9, b"a" * 8, b"a" * 8 + b"\0", b"a" * 8 + b"b" * 8, b"b" * 8 + b"a" * 8,
    b"a" * 127, b"a" * 128, b"a" * 129, b"a" * 1000, b"a" * 999 + b"b",
]  # fmt: skip


def edges(
    roots: Sequence[int], seqs: Sequence[int], values: Sequence[bytes], key: bytes = KEY, target: int = 5
) -> list[int]:
    found: list[int] = edges_of_row(key, target, np.array(roots, np.uint64), seqs, values).tolist()
    return found


def test_no_two_edges_are_equal() -> None:
    """Each of root, run, turn, task, target, sequence and values makes another edge."""
    seen: list[int] = []
    for key in (KEY, KEY[::-1], bytes(16)):
        for target in (1, 2):
            every = [(root, seq, value) for root in ROOTS for seq in (0, 1, 1 << 40) for value in VALUES]
            roots, seqs, values = zip(*every, strict=True)
            seen += edges(roots, seqs, values, key=key, target=target)
    assert len(set(seen)) == len(seen) == 6 * len(ROOTS) * 3 * len(VALUES)
    assert 0 not in seen


def test_bits_of_edges_are_even() -> None:
    drawn = np.array(edges([7] * 20_000, range(20_000), [b"same"] * 20_000), np.uint64)
    ones = [int((drawn >> np.uint64(bit) & np.uint64(1)).sum()) for bit in range(64)]
    assert all(9_500 < count < 10_500 for count in ones)  # seven standard deviations


@pytest.mark.parametrize("seed", range(5))
def test_an_edge_depends_on_its_tuple_alone(seed: int) -> None:
    """Rows are cut in other places, and texts begin at other bytes."""
    rng = random.Random(seed)
    roots, seqs = [rng.getrandbits(64) for _ in range(50)], list(range(50))
    values = [rng.randbytes(rng.choice([0, 1, 7, 8, 9, 40, 127, 128, 300])) for _ in seqs]
    whole = edges(roots, seqs, values)
    cut = rng.randrange(1, 50)
    assert whole == edges(roots[:cut], seqs[:cut], values[:cut]) + edges(roots[cut:], seqs[cut:], values[cut:])
    assert whole == [edges([root], [seq], [value])[0] for root, seq, value in zip(roots, seqs, values, strict=True)]


@pytest.mark.parametrize("others", [[], [{}], [{5: 6}, {7: 8, 9: 10}]])
def test_a_row_notes_the_edges_that_it_derived(others: list[dict[int, int]]) -> None:
    rows = RowBuffer()
    rows.task_keys[3] = KEY
    given: list[dict[int, int] | int] = [*others, 1 << 63, *others, 2]
    entries: list[Entry] = [(number, 0, b"v", of) for number, of in enumerate(given)]
    rows.tuples(0, 5, 3).extend(entries)
    (row,) = pa.Table.from_batches(rows.take()).to_pylist()
    found = edges_of_tuples(unpack(row["data"]), row["edges"])
    seqs = [len(others), 2 * len(others) + 1]
    derived = edges([1 << 63, 2], seqs, [b"v", b"v"])
    assert found == [*others, {1 << 63: derived[0]}, *others, {2: derived[1]}]
    assert [(of.tolist(), drawn.tolist()) for of, drawn in rows.derived] == [([1 << 63, 2], derived)]


# -- trees of whole turns, without Spark

Call = Callable[[Bolt, Tuple], None]


def emit_many(bolt: Bolt, tup: Tuple) -> None:
    for number in range(tup.values[0] % 4):
        bolt.emit([number % 2])  # equal values, too


def emit_once(bolt: Bolt, tup: Tuple) -> None:
    bolt.emit([tup.values[0]])


def emit_unanchored(bolt: Bolt, tup: Tuple) -> None:
    bolt.emit([1], anchors=[])
    bolt.emit([tup.values[0]])


def emit_anchored_twice(bolt: Bolt, tup: Tuple) -> None:
    bolt.emit([1], anchors=[tup, tup.id])
    bolt.emit([1], anchors=[tup])
    bolt.emit([1])


def ack_itself(bolt: Bolt, tup: Tuple) -> None:
    bolt.emit([2])
    bolt.ack(tup)


def emit_to_each_task(bolt: Bolt, tup: Tuple) -> None:
    for task in bolt.context.tasks("last"):
        bolt.emit([tup.values[0]], stream="direct", direct_task=task)


def emit_in_threes(bolt: Bolt, tup: Tuple) -> None:
    bolt.emit([tup.values[0]], stream="default" if tup.values[0] % 3 else None)
    bolt.emit(("a text", 2.5, None, [1]), stream="four")


def add_hook(bolt: Bolt, tup: Tuple) -> None:
    bolt.emit([1])
    if tup.values[0] == 5:
        bolt.add_task_hook(TaskHook())
    bolt.emit([2])


def fail_some(bolt: Bolt, tup: Tuple) -> None:
    bolt.emit([1])
    if tup.values[0] % 5 == 0:
        raise ValueError("five")


def forget_some(bolt: Bolt, tup: Tuple) -> None:
    bolt.emit([1])
    if tup.values[0] % 5:
        bolt.ack(tup)


CALLS = [
    emit_many, emit_unanchored, emit_anchored_twice, ack_itself, emit_to_each_task, emit_in_threes, add_hook,
]  # fmt: skip
COUNT = 40


class Middle(Bolt):
    outputs = [Stream(["v"]), Stream(["v"], "direct", direct=True), Stream(["a", "b", "c", "d"], "four")]

    def __init__(self, call: Call, **flags: Any) -> None:
        self.call = call
        for name, value in flags.items():
            setattr(self, name, value)

    def process(self, tup: Tuple) -> None:
        self.call(self, tup)


class Last(Bolt):
    outputs: list[str] = []

    def process(self, tup: Tuple) -> None:
        """Ack it."""


class Turn(NamedTuple):
    """Spout and bolts `middle` (two tasks), `last` (two) and `all` (two) without Spark."""

    plan: Plan
    spec: TurnSpec
    inits: dict[int, int]
    rows: list[pa.RecordBatch]

    def level(self, number: int, rows: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Run a level as Spark does: the rows of a partition are sorted by task, emitter and sequence."""
        table = pa.Table.from_batches(rows, SCHEMA).sort_by([(name, "ascending") for name in ("to", "frm", "seq")])
        found: list[pa.RecordBatch] = []
        for key in self.plan.keys:
            found += LevelStep(self.spec, number)(iter(table.filter(pc.equal(table["key"], key)).to_batches()))
        return found

    def updates(self, rows: list[pa.RecordBatch]) -> Bin:
        """Return the updates of rows with those of the inits."""
        bins = [Bin.from_bytes(row["data"]) for row in dicts(rows) if row["to"] == BIN]
        roots, vals = (np.array(list(part), np.uint64) for part in (self.inits, self.inits.values()))
        return Bin.merged([*bins, Bin(roots, vals, np.zeros(len(roots), np.uint16), {})])

    def open_roots(self, rows: list[pa.RecordBatch]) -> set[int]:
        """List the roots whose trees aren't complete, without those that failed."""
        updates = self.updates(rows)
        return {root for root, val in zip(updates.roots.tolist(), updates.vals.tolist(), strict=True) if val}


def dicts(rows: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in rows for row in batch.to_pylist()]


@pytest.fixture
def turn_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Turn]]:
    with fake_acker() as acker:
        yield partial(make_turn, acker, monkeypatch)


def make_turn(acker: Acker, monkeypatch: pytest.MonkeyPatch, middle: Bolt, *, is_watched: bool = False) -> Turn:
    monkeypatch.setattr(steps, "_runs", OrderedDict())
    builder = TopologyBuilder()
    builder.set_spout("spout", spout_of([], Heard()))
    builder.set_bolt("middle", middle, par=2).shuffle_grouping("spout")
    last = builder.set_bolt("last", Last, par=2).fields_grouping("middle", ["v"])
    last.direct_grouping("middle", "direct").shuffle_grouping("middle", "four")
    builder.set_bolt("all", Last, par=2).all_grouping("middle")
    config = {"topology.auto.task.hooks": [TaskHook]} if is_watched else {}
    graph = builder.create_topology(config=config)._checked_graph()
    plan = make_plan(graph, {}, {}, 2)
    engine = TurnEngine(plan, acker, {}, run_id="run", spout_id=spout_id_of(graph))
    (spout,) = engine.spout_tasks.values()
    for number in range(COUNT):
        spout.collector.begin_call()
        spout.collector.emit([number], number)
    sent: bytes = dumps(plan.for_workers())  # type: ignore[no-untyped-call]
    spec = TurnSpec("run", sent, 1, 0.0, "redis://unused", AckerConfig("app"), {})
    return Turn(plan, spec, engine.updates._open.inits, engine.emits.rows.take())


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("auto_ack", [True, False])
def test_trees_are_complete_once_all_tuples_were_processed(
    turn_of: Callable[..., Turn], call: Call, auto_ack: bool
) -> None:
    turn = turn_of(Middle(call, auto_ack=auto_ack))
    middle = turn.level(0, turn.rows)
    some = sum(row["size"] for row in dicts(middle) if row["to"] > 0)
    assert some >= COUNT
    whole = turn.level(1, middle)
    is_acked = auto_ack or call is ack_itself
    assert turn.open_roots(whole) == (set() if is_acked else set(turn.inits))
    assert not turn.updates(whole).fails


@pytest.mark.parametrize("place", range(5))
def test_a_lost_row_leaves_its_trees_open(turn_of: Callable[..., Turn], place: int) -> None:
    turn = turn_of(Middle(emit_many))
    middle = pa.Table.from_batches(turn.level(0, turn.rows))
    lost = [number for number, to in enumerate(middle["to"].to_pylist()) if to > 0][place]
    roots = {root for of in edges_in(middle.slice(lost, 1)) for root in of}
    rest = pa.concat_tables([middle.slice(0, lost), middle.slice(lost + 1)]).to_batches()
    assert roots and turn.open_roots(turn.level(1, rest)) == roots


@pytest.mark.parametrize("auto_ack", [True, False])
def test_only_an_ack_makes_a_bolt_the_last_component(turn_of: Callable[..., Turn], auto_ack: bool) -> None:
    turn = turn_of(Middle(emit_once, auto_ack=auto_ack))
    assert turn.plan.ranks["spout"] == 0
    ranks = set(turn.updates(turn.level(0, turn.rows)).ranks.tolist())
    assert ranks == {turn.plan.ranks["middle"] if auto_ack else 0}


def edges_in(row: pa.Table) -> list[dict[int, int]]:
    (found,) = row.to_pylist()
    return edges_of_tuples(unpack(found["data"]), found["edges"])


def emit_another_value(bolt: Bolt, tup: Tuple) -> None:
    bolt.emit([next(DRAWN)])


DRAWN = count()


def test_rows_and_updates_of_two_different_executions_leave_the_trees_open(turn_of: Callable[..., Turn]) -> None:
    turn = turn_of(Middle(emit_another_value, cache=True))
    first, second = (turn.level(0, turn.rows) for _ in range(2))
    assert turn.open_roots(turn.level(1, first)) == turn.open_roots(turn.level(1, second)) == set()
    tuples, others = (pa.Table.from_batches(rows) for rows in (first, second))
    mixed = [tuples.filter(pc.greater(tuples["to"], 0)), others.filter(pc.less_equal(others["to"], 0))]
    assert turn.open_roots(turn.level(1, pa.concat_tables(mixed).to_batches())) == set(turn.inits)


def test_executions_that_emit_the_same_make_the_same_rows(turn_of: Callable[..., Turn]) -> None:
    turn = turn_of(Middle(emit_many))
    first, second = ([row for row in dicts(turn.level(0, turn.rows)) if row["to"] != REPORT] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("call", [*CALLS, fail_some, forget_some])
def test_a_hook_changes_neither_outcomes_nor_counts(turn_of: Callable[..., Turn], call: Call) -> None:
    """Tasks with hooks go the long way, on which each emit has its edges at once."""
    found = []
    for is_watched in (False, True):
        turn = turn_of(Middle(call, auto_ack=call is not forget_some), is_watched=is_watched)
        whole = turn.level(1, turn.level(0, turn.rows))
        numbers = {root: number for number, root in enumerate(turn.inits)}
        fails = {numbers[root]: fail for root, fail in turn.updates(whole).fails.items()}
        opened = {numbers[root] for root in turn.open_roots(whole)}
        reports: list[LevelReport] = [pickle.loads(row["data"]) for row in dicts(whole) if row["to"] == REPORT]
        counts = [(name, of.as_counts()) for report in reports for name, of in report.metrics.items()]
        latencies = [
            (name, source, mean.count)
            for report in reports
            for name, of in report.metrics.items()
            for means in (of.execute_latency, of.process_latency)
            for source, mean in means.items()
        ]
        found.append((fails, opened, counts, latencies))
    assert found[0] == found[1]
    fives = set(range(0, COUNT, 5))
    assert set(found[0][0]) == (fives if call is fail_some else set())
    assert found[0][1] == (fives if call is forget_some else set())


class Echo(TaskHook):
    """Emits once more what it hears of, or other values."""

    def __init__(self, bolt: Bolt, values: list[Any], stream: str) -> None:
        self.bolt, self.values, self.stream = bolt, values, stream
        self.is_heard = False

    def emit(self, info: Any) -> None:
        if info.stream == "default" and not self.is_heard:
            self.is_heard = True
            self.bolt.emit(self.values or list(info.values), stream=self.stream)
            self.is_heard = False


class Echoed(Middle):
    values: list[Any] = []
    stream = "default"
    cache = True

    def initialize(self, conf: Any, context: Any) -> None:
        self.add_task_hook(Echo(self, self.values, self.stream))


@pytest.mark.parametrize(("values", "stream"), [([], "default"), ([-1], "default"), ([-1, 0, 0, 0], "four")])
def test_a_hook_that_emits_changes_neither_values_nor_edges_of_others(
    turn_of: Callable[..., Turn], values: list[Any], stream: str
) -> None:
    turn = turn_of(Echoed(emit_once, values=values, stream=stream))
    middle = turn.level(0, turn.rows)
    rows = [row for row in dicts(middle) if row["to"] > 0]
    heard = [load_values(data) for row in rows for data in unpack(row["data"]).values]
    copies = 6 if not values else 3  # one to a task of `last`, two to those of `all`
    assert all(heard.count((number,)) == copies for number in range(COUNT))
    drawn = [edge for row in rows for of in edges_of_tuples(unpack(row["data"]), row["edges"]) for edge in of.values()]
    assert len(set(drawn)) == len(drawn) == len(heard)
    assert not turn.open_roots(turn.level(1, middle))
