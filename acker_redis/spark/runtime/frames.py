"""Methods of DataFrames in few calls of Java.

A micro-batch has no time for hundreds of them, and each object that a call returns costs another call when it is released.
PySpark looks up a class and its method before each call of a function, passes a list item by item, and in classic sessions
notes the caller of each method of a Column. So expressions are SQL texts here, a list of texts is one text, and functions
are looked up once. Over Spark Connect nothing calls Java, and PySpark's own methods do the same.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from acker_redis.spark.runtime.jvm import java_static
from acker_redis.spark.runtime.sessions import is_connect

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_SEPARATOR = "\u0001"
"""Between the texts of a list."""

_MOST_CHECKED = 1000
"""Number of texts of which is known that they are expressions. Conditions that hold a value may be without number."""

_MOST_EXPRESSIONS = 500
"""Number of expressions that are kept, because the next micro-batch needs them again. Some texts hold a value of their own."""


@dataclass(frozen=True)
class _Java:
    """Functions and objects of one JVM, looked up once."""

    expr: Callable[[str], Any]
    col: Any
    metadata: Any
    map: Any
    split: Any
    sequence: Any
    expressions: Callable[..., "JavaObject"]
    kept: dict[tuple[str, ...], "JavaObject"] = field(default_factory=dict)
    sequences: dict[tuple[str, ...], "JavaObject"] = field(default_factory=dict)
    checked: set[str] = field(default_factory=set)

    def texts(self, *texts: str) -> "JavaObject":
        """Make an array of texts in one call."""
        return self.split(_SEPARATOR.join(texts))

    def names(self, *names: str) -> "JavaObject":
        """Return an array of names that the program knows, made once."""
        if names not in self.kept:
            self.kept[names] = self.texts(*names)
        return self.kept[names]

    def columns(self, *names: str) -> "JavaObject":
        """Return a sequence of columns whose names the program knows, made once."""
        if names not in self.sequences:
            self.sequences[names] = self.sequence([self.col(name) for name in names])
        return self.sequences[names]

    def column(self, column: str | Column) -> Any:
        """Return a column, given in SQL or as PySpark's."""
        return self.expr(column) if isinstance(column, str) else column._jc  # noqa: SLF001


_jvms: "WeakKeyDictionary[Any, _Java]" = WeakKeyDictionary()


def _java(frame: DataFrame) -> _Java:
    context = frame.sparkSession.sparkContext
    jvm = context._jvm  # noqa: SLF001
    if jvm not in _jvms:
        expr = java_static(context, "org.apache.spark.sql.functions", "expr")
        sequence = java_static(context, "org.apache.spark.api.python.PythonUtils", "toSeq")

        @lru_cache(_MOST_EXPRESSIONS)
        def kept_expr(text: str) -> Any:
            return expr(text)

        @lru_cache(_MOST_EXPRESSIONS)
        def kept_exprs(*texts: str) -> "JavaObject":
            return sequence([kept_expr(text) for text in texts])

        _jvms[jvm] = _Java(
            kept_expr,
            java_static(context, "org.apache.spark.sql.functions", "col"),
            java_static(context, "org.apache.spark.sql.types.Metadata", "fromJson"),
            java_static(context, "java.util.LinkedHashMap"),
            java_static(context, "java.util.regex.Pattern", "compile")(_SEPARATOR).split,
            sequence,
            kept_exprs,
        )
    return _jvms[jvm]


def _frame(made: "JavaObject", frame: DataFrame) -> DataFrame:
    """Wrap a frame of Java's, derived from another one."""
    kind: Any = type(frame)
    derived: DataFrame = kind(made, frame.sparkSession)
    return derived


def is_checked_expression(frame: DataFrame, text: str) -> bool:
    """Return True if a text is known to be one SQL expression, so that it may become a part of another text.

    Spark's parser says so, once for each text. Any other text must be a column of its own, as must an expression with a name,
    which may mean something else inside of another: `SELECT true` is the column `SELECT` with a name. Over Spark Connect there
    is no parser.

    Raises:
        ParseException: the text isn't one expression.
    """
    if is_connect(frame.sparkSession):
        return False
    checked = _java(frame).checked
    if text not in checked:
        parsed = frame.sparkSession._jsparkSession.sessionState().sqlParser().parseExpression(text)  # noqa: SLF001
        if str(parsed.nodeName()).endswith("Alias"):
            return False
        if len(checked) < _MOST_CHECKED:
            checked.add(text)
    return True


def select(frame: DataFrame, *expressions: str) -> DataFrame:
    """Select SQL expressions."""
    if is_connect(frame.sparkSession) or any(_SEPARATOR in expression for expression in expressions):
        return frame.selectExpr(*expressions)
    return _frame(frame._jdf.selectExpr(_java(frame).texts(*expressions)), frame)  # noqa: SLF001


def without(frame: DataFrame, *columns: str) -> DataFrame:
    """Drop columns, whose names the program knows."""
    if is_connect(frame.sparkSession):
        return frame.drop(*columns)
    dropped = columns[0] if len(columns) == 1 else _java(frame).names(*columns)
    return _frame(frame._jdf.drop(dropped), frame)  # noqa: SLF001


def with_columns(
    frame: DataFrame, columns: Mapping[str, str | Column], metadata: Mapping[str, str], *described: str
) -> DataFrame:
    """Add or replace columns.

    Args:
        frame: rows.
        columns: name -> SQL expression or column.
        metadata: metadata of some columns. The others keep what Spark gives them.
        described: names of the columns that get the metadata.
    """
    if is_connect(frame.sparkSession):
        made = frame.withColumns({name: F.expr(c) if isinstance(c, str) else c for name, c in columns.items()})
        for name in columns:
            if name in described:  # Spark Connect loses the metadata of an alias here
                made = made.withMetadata(name, dict(metadata))
        return made
    java = _java(frame)
    shared = java.metadata(json.dumps(metadata))
    own = {name: java.column(column) for name, column in columns.items()}
    for name in own:
        if name in described:
            own[name] = getattr(own[name], "as")(name, shared)
    if len(own) == 1:
        return _frame(frame._jdf.withColumn(*own.popitem()), frame)  # noqa: SLF001
    by_name = java.map()
    for name, column in own.items():
        by_name.put(name, column)
    return _frame(frame._jdf.withColumns(by_name), frame)  # noqa: SLF001


def observe(frame: DataFrame, name: str, *metrics: str) -> DataFrame:
    """Observe metrics in a classic session, given as SQL aggregates, which mostly are those of an earlier emission."""
    java = _java(frame)
    first, *others = metrics
    return _frame(frame._jdf.observe(name, java.expr(first), java.expressions(*others)), frame)  # noqa: SLF001


def in_partitions(frame: DataFrame, count: int, column: str, *order: str) -> DataFrame:
    """Bring rows with one value of a column together, and sort each partition. The program knows the names."""
    if is_connect(frame.sparkSession):
        together = frame.repartition(count, column)
        return together.sortWithinPartitions(*order) if order else together
    java = _java(frame)
    made = frame._jdf.repartition(count, java.columns(column))  # noqa: SLF001
    return _frame(made.sortWithinPartitions(java.columns(*order)) if order else made, frame)


def map_in_arrow(
    frame: DataFrame,
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: StructType,
    *columns: str,
) -> DataFrame:
    """Do the same as `mapInArrow` of a frame with these columns, whose names the program knows."""
    if is_connect(frame.sparkSession):
        return frame.mapInArrow(function, schema)
    from pyspark.sql.udf import UserDefinedFunction

    made: Any = UserDefinedFunction(function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = made._judf.apply(_java(frame).columns(*columns))  # noqa: SLF001
    return _frame(frame._jdf.mapInArrow(column, False, None), frame)  # noqa: FBT003, SLF001


_SIGN, _RANGE = 1 << 63, 1 << 64

_MOST_IN_TEXT = 20_000
"""Number of integers that become one text. More are read again by Arrow, so that a large text fills neither process."""


def read_few_integers(frame: DataFrame, expression: str) -> pa.Table:
    """Read a column of bigints as a text, in half of the calls of Java that Arrow makes.

    The plan runs by itself, not as an execution of a query. So Spark makes no decoder of rows, describes no plan and tells no
    listener, which takes as long as the job. For a million rows a text takes ten times as long as Arrow. If there are more
    rows than expected, Arrow reads them in a second job.

    Args:
        frame: rows of a plan without exchanges and caches.
        expression: SQL, which the program knows.
    """
    if is_connect(frame.sparkSession):
        return read_rows(frame.selectExpr(expression))
    selected = frame._jdf.selectExpr(_java(frame).names(expression))  # noqa: SLF001
    collected = selected.queryExecution().executedPlan().executeCollectIterator()  # the count, and the rows in bytes
    if int(collected._1()) > _MOST_IN_TEXT:  # noqa: SLF001
        return read_rows(_frame(selected, frame))
    rows = collected._2().mkString()  # noqa: SLF001
    return pa.table({"integers": pa.array([_integer(row) for row in rows[1:-1].split("][") if row], pa.int64())})


def _integer(row: str) -> int | None:
    """Return the integer of an unsafe row of one column: two words in hex, of which the first is 1 if the value is null."""
    is_null, _, word = row.partition(",")
    unsigned = int(word, 16)
    return None if is_null != "0" else unsigned - _RANGE if unsigned >= _SIGN else unsigned


def read_rows(frame: DataFrame) -> pa.Table:
    """Read rows of simple types. Unlike `toArrow`, this asks for no settings and no schema."""
    if is_connect(frame.sparkSession):
        table: pa.Table = frame._to_table()[0]  # type: ignore[operator]  # noqa: SLF001
        return table
    return pa.Table.from_batches(frame._collect_as_arrow(empty_list_if_zero_records=False))  # type: ignore[operator]  # noqa: SLF001
