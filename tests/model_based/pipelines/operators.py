"""Operators of the tracker, each with what it means in plain Python."""

import hashlib
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from acker_redis import RowFailedError
from acker_redis.spark import FlatMapOutput, Tracker
from acker_redis.spark.checks import arrow_schema
from tests.model_based.pipelines.data import COLUMNS, Data, Row
from tests.model_based.pipelines.faults import Away, Fault
from tests.support.spark.versions import COUNTS_ONCE

TRACKING = ["_share", "_roots"]


@dataclass
class Playing:
    """One call of a pipeline.

    Attributes:
        tracker: of the emission.
        data: of the messages.
        folder: of the sinks and whatever else is written.
        local: of Spark's shuffle files.
        cached: frames to unpersist at the end.
    """

    tracker: Tracker
    data: Data
    folder: Path
    local: str
    cached: list[DataFrame] = field(default_factory=list)

    @property
    def session(self) -> SparkSession:
        """Spark."""
        found = SparkSession.getActiveSession()
        assert found is not None
        return found

    @property
    def marks(self) -> str:
        """Folder of what has struck: of the run, not of this call."""
        return str(self.folder.parent / "struck")


@dataclass(frozen=True)
class Known:
    """A row of the truth, and the messages that it belongs to."""

    row: Row
    messages: frozenset[int]


Rows = list[Known]


@dataclass(frozen=True)
class Operator:
    """A step of a pipeline. `harmless`: keeps every row once."""

    harmless: ClassVar[bool] = True
    inputs: ClassVar[int] = 1

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        """On Spark."""
        raise NotImplementedError

    def mean(self, failed: set[int], *rows: Rows) -> Rows:
        """What must come of the rows; adds the messages that fail."""
        return rows[0]


def crc(text: str | None) -> int:
    """As Spark's crc32."""
    return zlib.crc32((text or "").encode())


CONDITIONS: dict[str, Callable[[Row], bool]] = {
    "n > 5": lambda row: row["n"] is not None and row["n"] > 5,
    "n IS NULL": lambda row: row["n"] is None,
    "k = 'a'": lambda row: row["k"] == "a",
    "size(tags) > 1": lambda row: row["tags"] is not None and len(row["tags"]) > 1,
    "crc32(path) % 3 <> 0": lambda row: crc(row["path"]) % 3 != 0,
    "crc32(path) % 20 = 0": lambda row: crc(row["path"]) % 20 == 0,
    "crc32(path) % 50 <> 0": lambda row: crc(row["path"]) % 50 != 0,
    "10 / n > 1": lambda row: bool(row["n"]) and 10 / row["n"] > 1,
    "n > (SELECT max(x) FROM VALUES (1), (2) AS t(x))": lambda row: row["n"] is not None and row["n"] > 2,
    "true": lambda row: True,
    "false": lambda row: False,
}
"""SQL, and the same in Python; null is not met."""

_GUARDED = {"10 / n > 1": "n <> 0"}
"""Conditions that may only be evaluated where another is met, as they raise elsewhere."""


def condition_of(chance: random.Random) -> str:
    """One that is always allowed."""
    return chance.choice([one for one in CONDITIONS if one not in _GUARDED])


@dataclass(frozen=True)
class Filter(Operator):
    """`tracker.filter`."""

    condition: str

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        return playing.tracker.filter(frames[0], self.condition)

    def mean(self, failed: set[int], *rows: Rows) -> Rows:
        return [one for one in rows[0] if CONDITIONS[self.condition](one.row)]


@dataclass(frozen=True)
class Guarded(Operator):
    """Two filters, of which the second would raise for what the first drops; something in between."""

    shuffle: bool

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        ((condition, guard),) = _GUARDED.items()
        guarded = playing.tracker.filter(frames[0], guard)
        if self.shuffle:
            guarded = guarded.orderBy("n") if COUNTS_ONCE else guarded.repartition("n")
        return playing.tracker.filter(guarded, condition)

    def mean(self, failed: set[int], *rows: Rows) -> Rows:
        (condition,) = _GUARDED
        return [one for one in rows[0] if CONDITIONS[condition](one.row)]


@dataclass(frozen=True)
class FailWhere(Operator):
    """`tracker.fail_where`."""

    condition: str

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        return playing.tracker.fail_where(
            frames[0], self.condition, F.concat(F.lit("bad "), F.coalesce("k", F.lit("-")))
        )

    def mean(self, failed: set[int], *rows: Rows) -> Rows:
        bad = [one for one in rows[0] if CONDITIONS[self.condition](one.row)]
        failed.update(message for one in bad for message in one.messages)
        return [one for one in rows[0] if one not in bad] if bad else rows[0]


@dataclass(frozen=True)
class Explode(Operator):
    """`tracker.explode`: a row per tag, or so many as `n` says."""

    of: str

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        new = {"path": "concat(path, '/', i)"} | ({"k": "tag"} if self.of == "tags" else {"n": "n + i"})
        fields = ", ".join(f"{new.get(name, name)} AS {name}" for name in playing.data.columns)
        if self.of == "tags":
            children = f"transform(tags, (tag, i) -> struct({fields}))"
        else:
            children = f"transform(filter(array(0, 1, 2), i -> i < pmod(n, 4)), i -> struct({fields}))"
        return playing.tracker.explode(frames[0], children)

    def mean(self, failed: set[int], *rows: Rows) -> Rows:
        derived = []
        for one in rows[0]:
            row = one.row
            if self.of == "tags":
                children = [{"k": tag} for tag in row["tags"] or ()]
            else:
                children = [{"n": row["n"] + i} for i in range(min(3, row["n"] % 4) if row["n"] is not None else 0)]
            derived += [
                Known({**row, **child, "path": f"{row['path']}/{i}"}, one.messages) for i, child in enumerate(children)
            ]
        return derived


def children_of(row: Row, salt: int, fails: bool) -> list[Row]:
    """What flat_maps make of a row: nothing, one row, or several.

    Raises:
        RowFailedError: for some rows, if `fails`.
    """
    drawn = zlib.crc32(f"{salt}:{row['path']}".encode()) % 16
    if drawn == 0 and fails:
        raise RowFailedError(f"flat_map {salt} says no")
    count = (0, 0, 2, 2, 3)[drawn] if drawn < 5 else 1
    return [{**row, "path": f"{row['path']}.{i}"} for i in range(count)]


@dataclass(frozen=True)
class _RowByRow:
    flat_map: "FlatMap"
    emission: int
    marks: str
    local: str

    def __call__(self, row: Row) -> list[Row]:
        if self.flat_map.fault is not None:
            self.flat_map.fault.strike(self.emission, row["path"], self.marks, self.local)
        if self.flat_map.away is not None:
            self.flat_map.away.ask(self.emission, row["path"])
        return children_of(row, self.flat_map.salt, self.flat_map.fails)


@dataclass(frozen=True)
class _Vectorised:
    flat_map: "FlatMap"
    emission: int
    marks: str
    local: str
    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> FlatMapOutput:
        derived: list[Row] = []
        parents: list[int] = []
        failed: dict[int, str] = {}
        for number, row in enumerate(batch.to_pylist()):
            if self.flat_map.fault is not None:
                self.flat_map.fault.strike(self.emission, row["path"], self.marks, self.local)
            if self.flat_map.away is not None:
                self.flat_map.away.ask(self.emission, row["path"])
            try:
                children = children_of(row, self.flat_map.salt, self.flat_map.fails)
            except RowFailedError as exc:
                failed[number] = str(exc)
                continue
            derived += children
            parents += [number] * len(children)
        order = np.random.default_rng(self.flat_map.salt).permutation(len(derived))  # parents in any order
        rows = pa.RecordBatch.from_pylist([derived[i] for i in order], self.schema)
        return FlatMapOutput(rows, np.array(parents, np.int64)[order], failed)


@dataclass(frozen=True)
class FlatMap(Operator):
    """`tracker.flat_map`, or `flat_map_arrow`."""

    salt: int
    arrow: bool
    fails: bool
    on_error: str = "raise"
    fault: Fault | None = None
    away: Away | None = None

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        tracker, schema = playing.tracker, playing.data.schema
        if not self.arrow:
            run = _RowByRow(self, tracker.emission, playing.marks, playing.local)
            return tracker.flat_map(frames[0], run, schema, on_error=self.on_error)  # type: ignore[arg-type]
        kind = arrow_schema(schema)
        derived = _Vectorised(self, tracker.emission, playing.marks, playing.local, kind)
        return tracker.flat_map_arrow(frames[0], derived, schema)

    def reached(self, emission: int, failed: set[int], rows: Rows) -> Rows:
        """Leave out the rows that fail because the store is away. Others of their messages may have been joined with them."""
        if self.away is None or self.on_error != "fail":  # else the emission breaks
            return rows
        lost = [one for one in rows if self.away.fails(emission, one.row["path"])]
        failed.update(message for one in lost for message in one.messages)
        return [one for one in rows if one not in lost] if lost else rows

    def mean(self, failed: set[int], *rows: Rows) -> Rows:
        derived: Rows = []
        for one in rows[0]:
            try:
                derived += [Known(row, one.messages) for row in children_of(one.row, self.salt, self.fails)]
            except RowFailedError:
                failed.update(one.messages)
        return derived


TABLES: dict[str, tuple[str, str, list[tuple[Any, int]]]] = {
    "keys": ("k", "string", [("a", 1), ("b", 2), ("b", 3), ("1", 4), ("01", 5), (None, 6), ("nobody", 7), ("a", 1)]),
    "texts": ("n", "string", [("1", 1), ("01", 2), ("2", 3), (None, 4), ("007", 5), ("99", 6)]),
    "loose texts": ("n", "string", [(" 1", 1), ("01", 2), ("2.0", 3), (None, 4), ("x", 5), ("3.9", 6), ("1e1", 7)]),
    "shorts": ("n", "smallint", [(1, 1), (1, 1), (3, 2), (4, 3), (None, 4)]),
    "empty": ("k", "string", []),
}
"""Reference tables: the column to join on, its type, rows of (key, extra). In ANSI mode loose texts are an error."""


_STRICT = [table for table in TABLES if table != "loose texts"]


def number_of(text: Any) -> int | None:
    """As Spark casts a text to bigint where it compares it with one; not in ANSI mode where it isn't a whole number."""
    try:
        return int(float(text)) if "e" not in str(text) else None
    except ValueError:
        return None


@dataclass(frozen=True)
class JoinTable(Operator):
    """`tracker.join` with a table that isn't tracked: keys twice, keys missing, null, and of another type."""

    table: str
    how: str

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        on, kind, rows = TABLES[self.table]
        table = playing.session.createDataFrame(rows, f"{on} {kind}, extra bigint")
        derived = playing.tracker.join(frames[0], table, on, self.how)
        return derived.withColumns(
            {"n": F.expr("n + coalesce(extra, 0)"), "path": F.expr("concat_ws('*', path, cast(extra AS string))")}
        ).drop("extra")

    def mean(self, failed: set[int], *rows: Rows) -> Rows:
        on, _, table = TABLES[self.table]
        derived = []
        for one in rows[0]:
            key = one.row[on]
            found: list[int | None] = [
                extra for of, extra in table if None not in (of, key) and (number_of(of) if on == "n" else of) == key
            ]
            for extra in found or ([None] if self.how == "left" else []):
                n = one.row["n"]
                path = one.row["path"] if extra is None else f"{one.row['path']}*{extra}"
                derived.append(
                    Known({**one.row, "n": None if n is None else n + (extra or 0), "path": path}, one.messages)
                )
        return derived


@dataclass(frozen=True)
class JoinTracked(Operator):
    """`tracker.join` of two tracked frames."""

    inputs: ClassVar[int] = 2
    on: str
    how: str

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        left, right = frames
        others = [name for name in ("id", "n", "path") if name != self.on]
        renamed = right.select(self.on, *(F.col(name).alias(f"r_{name}") for name in others), *TRACKING)
        derived = playing.tracker.join(left, renamed, self.on, self.how, partial=True)
        new = {"path": F.expr("concat_ws('&', path, r_path)")}
        if self.on != "id":
            new["id"] = F.expr("coalesce(id, r_id)")
        if self.on != "n":
            new["n"] = F.expr("IF(n IS NULL AND r_n IS NULL, NULL, coalesce(n, 0) + coalesce(r_n, 0))")
        return derived.withColumns(new).drop(*(f"r_{name}" for name in others))

    def mean(self, failed: set[int], *rows: Rows) -> Rows:
        left, right = rows
        by_key: dict[Any, list[Known]] = {}
        for one in right:
            by_key.setdefault(one.row[self.on], []).append(one)
        by_key.pop(None, None)
        derived = []
        for one in left:
            found = by_key.get(one.row[self.on], [])
            derived += [self._both(one, other) for other in found]
            if not found and self.how in ("left", "full"):
                derived.append(one)
        if self.how in ("right", "full"):
            known = {one.row[self.on] for one in left} - {None}
            derived += [self._alone(other) for other in right if other.row[self.on] not in known]
        return derived

    def _both(self, one: Known, other: Known) -> Known:
        row = {**one.row, "path": f"{one.row['path']}&{other.row['path']}"}
        if self.on != "n":
            row["n"] = None if one.row["n"] is other.row["n"] is None else (one.row["n"] or 0) + (other.row["n"] or 0)
        if row["id"] is None:
            row["id"] = other.row["id"]
        return Known(row, one.messages | other.messages)

    def _alone(self, other: Known) -> Known:
        row: Row = dict.fromkeys(other.row)
        return Known({**row, **{name: other.row[name] for name in {"id", "n", "path", self.on}}}, other.messages)


@dataclass(frozen=True)
class Group(Operator):
    """`tracker.group_by`."""

    by: str

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        keys: Any = {"": [], "n % 3": F.expr("n % 3").alias("third")}.get(self.by, self.by)
        given = frames[0].select("*", F.col("k").alias("own_k"))
        wanted = [
            F.min("id").alias("g_id"),
            F.sum("n").alias("g_n"),
            F.min("own_k").alias("g_k"),
            F.expr("md5(concat_ws(',', sort_array(collect_list(path))))").alias("g_path"),
        ]
        derived = playing.tracker.group_by(given, keys, wanted, partial=True)
        own = [
            F.col(f"g_{name}").alias(name)
            if name in ("id", "n", "k", "path")
            else F.lit(None).cast(COLUMNS[name]).alias(name)
            for name in playing.data.columns
        ]
        return derived.select(*own, *TRACKING)

    def mean(self, failed: set[int], *rows: Rows) -> Rows:
        groups: dict[Any, list[Known]] = {} if self.by else {None: []}
        for one in rows[0]:
            groups.setdefault(self._key(one.row), []).append(one)
        names = list(rows[0][0].row) if rows[0] else [*COLUMNS]
        return [
            Known({**dict.fromkeys(names), **self._sums(group)}, frozenset(m for one in group for m in one.messages))
            for group in groups.values()
        ]

    def _key(self, row: Row) -> Any:
        if self.by == "n % 3":
            return None if row["n"] is None else row["n"] % 3
        return row[self.by] if self.by else None

    @staticmethod
    def _sums(group: list[Known]) -> Row:
        of = {name: [one.row[name] for one in group if one.row[name] is not None] for name in ("id", "n", "k", "path")}
        paths = ",".join(sorted(of["path"], key=str.encode))
        return {
            "id": min(of["id"], default=None),
            "n": sum(of["n"]) if of["n"] else None,
            "k": min(of["k"], key=str.encode, default=None),
            "path": hashlib.md5(paths.encode()).hexdigest(),
        }


@dataclass(frozen=True)
class Union(Operator):
    """`tracker.union_by_name`; `marked`: rows say which way they came."""

    inputs: ClassVar[int] = 2
    marked: bool

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        ways = [
            frame.withColumn("path", F.expr(f"concat(path, '|{i}')")) if self.marked else frame
            for i, frame in enumerate(frames)
        ]
        return playing.tracker.union_by_name(*ways)

    def mean(self, failed: set[int], *rows: Rows) -> Rows:
        return [
            Known({**one.row, "path": f"{one.row['path']}|{i}"}, one.messages) if self.marked else one
            for i, way in enumerate(rows)
            for one in way
        ]


@dataclass(frozen=True)
class Checkpoint(Operator):
    """`tracker.local_checkpoint`."""

    def apply(self, playing: Playing, *frames: DataFrame) -> DataFrame:
        return playing.tracker.local_checkpoint(frames[0])


def draw(chance: random.Random, *, fails: bool) -> Operator:
    """Draw one; `fails`: whether it may fail messages."""
    choices: list[Callable[[], Operator]] = [
        lambda: Filter(condition_of(chance)),
        lambda: Guarded(chance.random() < 0.5),
        lambda: Explode(chance.choice(("tags", "n"))),
        lambda: FlatMap(chance.randrange(1000), chance.random() < 0.5, fails, chance.choice(("raise", "fail"))),
        lambda: FlatMap(chance.randrange(1000), chance.random() < 0.5, fails, chance.choice(("raise", "fail"))),
        lambda: FlatMap(chance.randrange(1000), chance.random() < 0.5, fails, chance.choice(("raise", "fail"))),
        lambda: JoinTable(chance.choice(_STRICT), chance.choice(("inner", "left"))),
        lambda: JoinTracked(chance.choice(("k", "n", "id")), chance.choice(("inner", "left", "right", "full"))),
        lambda: Group(chance.choice(("k", "n", "n % 3", ""))),
        lambda: Union(chance.random() < 0.7),
        lambda: Union(chance.random() < 0.7),
        Checkpoint,
    ]
    if fails:
        choices.append(lambda: FailWhere(chance.choice(("crc32(path) % 20 = 0", "n IS NULL", "false", "k = 'a'"))))
    return chance.choice(choices)()
