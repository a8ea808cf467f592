"""Rows of a turn: tuples on their way to a task, updates of roots on their way to their bin, and reports to the driver.

A row carries consecutive tuples of one task for another, because Spark's time for a row is more than a bolt's for a tuple.
"""

import pickle
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from acker_redis.model.arrays import UInt64Array
from acker_redis.storm.turns.edges import edges_of_row

SCHEMA = pa.schema(
    [
        ("key", pa.int32()),
        ("to", pa.int32()),
        ("frm", pa.int32()),
        ("seq", pa.int64()),
        ("size", pa.int32()),
        ("data", pa.binary()),
        ("edges", pa.binary()),
    ]
)
"""Columns of a row. `to` is the id of a task, `REPORT`, `BIN` or `STATE`.

`frm` and `seq` name its first tuple, or `seq` a bin. The edges of a bin name the execution whose state it belongs to.
"""

TYPES: StructType = from_arrow_schema(SCHEMA)
"""The same columns for Spark."""

REPORT, BIN, STATE = 0, -1, -2
"""Values of `to` that are no task."""

TICK_SOURCE, TIMER_SOURCE, FLUSH_SOURCE, RELEASE_SOURCE = -1, -2, -3, -4
"""Numbers of streams that no component emits: ticks, and calls of a bolt whose time has come, which shall process all that it
holds, or shall fail it.
"""

CALLER, LAST_CALLER = -2, (1 << 31) - 1
"""Values of `frm` of calls, which come before the ticks and tuples of a turn, or behind them."""

MAX_TUPLES, MAX_BYTES = 10_000, 8 << 20
"""Tuples and bytes at which a batch is cut."""

ROW_BYTES = 1 << 20
"""Bytes at which a row is cut."""

EDGE_BYTES = 16
"""Bytes of a root and its edge."""

Entry: TypeAlias = tuple[int, int, bytes, dict[int, int] | int]
"""Tuple that waits for its row: sequence, number of its stream, serialised values, and the edge of each root.

A root in place of them gets its edge with the row.
"""

Derive: TypeAlias = Callable[[UInt64Array, Sequence[int], Sequence[bytes]], UInt64Array]
"""Function that derives edges from roots, sequences and serialised values."""


_Row: TypeAlias = tuple[int, int, int, int, int, bytes, bytes]
"""Columns of a row."""


class PackedTuples(NamedTuple):
    """Tuples of a row.

    Attributes:
        seqs: their sequences.
        sources: number of each one's stream.
        values: serialised values.
        counts: number of each one's roots.
    """

    seqs: list[int]
    sources: list[int]
    values: Sequence[bytes]
    counts: list[int]


def pack(entries: Sequence[Entry], derive: Derive | None = None) -> tuple[bytes, bytes]:
    """Pack tuples. Returns the columns `data` and `edges`."""
    seqs, sources, values, edges = zip(*entries, strict=True)
    kinds = set(map(type, edges))
    if derive is None or int not in kinds:
        counts = _shortened(list(map(len, edges)))
        roots, vals = array("Q", chain.from_iterable(edges)), array("Q", chain.from_iterable(map(dict.values, edges)))
        edge_bytes = roots.tobytes() + vals.tobytes()
    elif dict not in kinds:
        counts, of = 1, np.array(edges, np.uint64)
        edge_bytes = of.tobytes() + derive(of, seqs, values).tobytes()
    else:
        return pack(_with_edges(entries, derive))
    packed = (array("q", seqs).tobytes(), _shortened(sources), values, counts)
    return pickle.dumps(packed, 5), edge_bytes


def _with_edges(entries: Sequence[Entry], derive: Derive) -> list[Entry]:
    """Derive the edges of those tuples that have none yet."""
    seqs, _, values, roots = zip(*(entry for entry in entries if isinstance(entry[3], int)), strict=True)
    derived = iter(derive(np.array(roots, np.uint64), seqs, values).tolist())
    return [
        (seq, source, data, {edges: next(derived)} if isinstance(edges, int) else edges)
        for seq, source, data, edges in entries
    ]


def _shortened(numbers: Sequence[int]) -> Any:
    first = numbers[0]
    return first if numbers.count(first) == len(numbers) else array("q", numbers).tobytes()


def unpack(data: bytes) -> PackedTuples:
    """Unpack the column `data`."""
    seqs, sources, values, counts = pickle.loads(data)  # noqa: S301  # the run's own
    count = len(values)
    return PackedTuples(_numbers(seqs), _lengthened(sources, count), values, _lengthened(counts, count))


def _numbers(packed: bytes) -> list[int]:
    numbers = array("q")
    numbers.frombytes(packed)
    return numbers.tolist()


def _lengthened(packed: Any, count: int) -> list[int]:
    return [packed] * count if isinstance(packed, int) else _numbers(packed)


def unpack_edges(packed: bytes) -> tuple[UInt64Array, UInt64Array]:
    """Unpack the column `edges`. Returns all roots, tuple after tuple, and the edge of each."""
    both = np.frombuffer(packed, np.uint64)
    return both[: len(both) // 2], both[len(both) // 2 :]


def edges_of_tuples(tuples: PackedTuples, packed: bytes) -> list[dict[int, int]]:
    """Return the edge of each root, tuple by tuple."""
    if not packed:
        return [{} for _ in tuples.counts]
    roots, edges = (part.tolist() for part in unpack_edges(packed))
    pairs = zip(roots, edges, strict=True)
    if max(tuples.counts) == min(tuples.counts) == 1:
        return [{root: edge} for root, edge in pairs]
    return [dict(islice(pairs, count)) for count in tuples.counts]


class RowBuffer:
    """Tuples and other rows that wait for their batch.

    Attributes:
        count: number of tuples.
        nbytes: bytes of their values and edges.
        task_keys: id of an emitting task -> key from which the edges of its tuples are derived with their row.
        derived: roots and edges that were derived.
    """

    def __init__(self) -> None:
        self.count = self.nbytes = 0
        self.task_keys: dict[int, bytes] = {}
        self.derived: list[tuple[UInt64Array, UInt64Array]] = []
        self._tuples: dict[tuple[int, int, int], list[Entry]] = {}
        self._packed: list[_Row] = []
        self._others: list[_Row] = []

    def tuples(self, key: int, to: int, frm: int) -> list[Entry]:
        """Return the list of the tuples that wait on their way from task to task. Count what you append."""
        return self._tuples.setdefault((key, to, frm), [])

    def add(self, key: int, to: int, seq: int, data: bytes, execution: bytes = b"") -> None:
        """Add a row that has no tuples."""
        self._others.append((key, to, 0, seq, 0, data, execution))

    @property
    def is_full(self) -> bool:
        """True if there are enough tuples for a batch."""
        return self.count >= MAX_TUPLES or self.nbytes >= MAX_BYTES

    def __len__(self) -> int:
        return self.count + len(self._others)

    def pack(self) -> None:
        """Pack the tuples into rows. Those that came with a root have got their edges then."""
        for (key, to, frm), entries in self._tuples.items():
            sizes = [
                len(data) + EDGE_BYTES * (1 if type(edges) is int else len(edges))  # type: ignore[arg-type]
                for _, _, data, edges in entries
            ]
            derive = partial(self._derive, frm, to)
            for start, stop in _cuts(sizes, MAX_TUPLES, ROW_BYTES):
                part = entries[start:stop]
                self._packed.append((key, to, frm, part[0][0], len(part), *pack(part, derive)))
            entries.clear()

    def _derive(
        self, frm: int, to: int, roots: UInt64Array, seqs: Sequence[int], values: Sequence[bytes]
    ) -> UInt64Array:
        edges = edges_of_row(self.task_keys[frm], to, roots, seqs, values)
        self.derived.append((roots, edges))
        return edges

    def take(self) -> list[pa.RecordBatch]:
        """Remove all rows, as batches of bounded size."""
        self.pack()
        rows = [*self._packed, *self._others]
        self.count = self.nbytes = 0
        self._packed, self._others = [], []
        batches = []
        for start, stop in _cuts([len(row[5]) + len(row[6]) for row in rows], MAX_TUPLES, MAX_BYTES):
            columns = zip(*rows[start:stop], strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
            batches.append(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
        return batches


def _cuts(sizes: Sequence[int], most: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    if len(sizes) <= most and sum(sizes) <= most_bytes:
        if sizes:
            yield 0, len(sizes)
        return
    start, total, stop = 0, 0, 0
    for size in sizes:
        stop += 1
        total += size
        if stop - start >= most or total >= most_bytes:
            yield start, stop
            start, total = stop, 0
    if stop > start:
        yield start, stop
