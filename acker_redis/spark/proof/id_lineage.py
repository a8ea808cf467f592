"""Refuse message ids that another job may give to other rows.

`monotonically_increasing_id` and `row_number` number rows in the order in which they arrive. Behind a shuffle, that order
depends on the columns that a job reads, and on which task is first. The set of ids is the same in each job, and so is every
sum, so no proof would notice. Only the lineage of the id column shows it. Other columns don't matter.

The arrays of `collect_list` and `collect_set` have such an order, too. Their elements are data, but their places number rows.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from acker_redis.errors import PipelineError
from acker_redis.spark.proof import lineage_texts
from acker_redis.spark.proof.plans import each
from acker_redis.spark.proof.request_lineage import RequestLineage
from acker_redis.spark.runtime.jvm import java_class
from acker_redis.spark.runtime.sessions import is_connect

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_NARROW = frozenset(
    ("Project", "Filter", "Generate", "Union", "Sample", "MapInArrow", "MapInPandas", "CollectMetrics", "SubqueryAlias",
     "View", "ResolvedHint")
)  # fmt: skip
"""Nodes that make the rows of a partition of one partition of their input, in its order."""

_GIVEN = frozenset(("LocalRelation", "Range", "OneRowRelation", "HiveTableRelation"))
"""Leaves with the same rows in the same order in each job."""

_FILES = "HadoopFsRelation"
_FILE_TABLE = "org.apache.spark.sql.execution.datasources.v2.FileTable"
_V2 = ("DataSourceV2Relation", "DataSourceV2ScanRelation")

_INDEXING = "AttachDistributedSequence"
"""Node that numbers rows for an index of pandas on Spark."""

_SUBQUERIES = frozenset(("ScalarSubquery", "Exists", "ListQuery", "LateralSubquery"))

_DETERMINATE = "DETERMINATE"
"""Spark's level of an RDD whose rows are in the same order in each job."""

_OF_VALUES = frozenset(("Rank", "DenseRank", "PercentRank", "CumeDist"))
"""Window functions that give equal rows equal values."""

_ALL_ROWS = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
_AGGREGATE = "AggregateExpression"

_COLLECTED = frozenset(("CollectList", "CollectSet"))
"""Aggregates whose arrays have their elements in the order in which rows arrive."""

_JOINED = "ListAgg"
"""An aggregate whose text has its parts in that order, unless it names another."""

_OF_ELEMENTS = frozenset(
    (
        "Explode",
        "Inline",
        "SortArray",
        "ArraySort",
        "Size",
        "ArraySize",
        "ArrayMax",
        "ArrayMin",
        "ArrayContains",
        "ArraysOverlap",
    )
)
"""Functions of an array for which the order of its elements makes no difference."""

_PASSING = frozenset(
    ("Alias", "PosExplode", "AggregateExpression", "First", "Last", "AnyValue", "Max", "Min", "ArrayDistinct", "Flatten",
     "ArrayUnion", "ArrayExcept", "ArrayIntersect", "ArrayRemove", "ArrayCompact", *_COLLECTED)
)  # fmt: skip
"""Expressions that pass an array on, or its elements with their places."""

_DEFINED_BY = {"Project": "projectList", "Aggregate": "aggregateExpressions", "Window": "windowExpressions"}
"""Nodes that define columns -> their method that returns the definitions."""

_CTE, _CTE_USED = "WithCTE", "CTERelationRef"
_BY_POSITION = ("Union", "Intersect", "Except", _CTE_USED)

_ALL_FIELDS = 1_000_000
_NUMBERS = re.compile(r"#\d+L?")
_MOST_CHARS = 80


_ANYTHING = frozenset(("PythonUDF", "ScalaUDF", "HiveSimpleUDF", "HiveGenericUDF", "CallMethodViaReflection"))
"""Functions that may return anything, unless they are deterministic."""

_PASSING_ON = frozenset(("Project", "SubqueryAlias", "View"))

_CLOCK = frozenset(("CurrentTimestamp", "Now", "CurrentDate", "CurrentTime", "LocalTimestamp"))
"""Expressions of the time at which a job begins."""

_OF_FILES = frozenset(("InputFileName", "InputFileBlockStart", "InputFileBlockLength"))
"""Expressions that aren't deterministic for Spark, and number nothing."""

_TEXTS = frozenset(("JsonFileFormat", "CSVFileFormat", "XmlFileFormat", "JsonTable", "CSVTable"))
"""Readers of text, and their tables in Spark's newer interface."""


def check_id_lineage(frame: DataFrame, column: str, call: str) -> bool:
    """Check that the message ids belong to the same rows in each job.

    A client of Spark Connect sees only the part of a plan that its own request describes: ids that SQL text or a view
    defines are not checked there.

    Args:
        frame: one row per message.
        column: name of the message id column.
        call: function of the product that the user has called.

    Returns:
        Whether the ids number rows in the order in which Spark reads them. Files must stay then, and be split in the same way.

    Raises:
        PipelineError: they depend on the order of rows behind a shuffle, or on another expression that isn't deterministic.
    """
    lineage = RequestLineage(frame) if is_connect(frame.sparkSession) else _Lineage(frame)
    found = lineage.unstable(column)
    if found is not None:
        raise PipelineError(
            f"{call}: the ids in column {column!r} depend on {found[0]} above {found[1]}. Each job may give them to other "
            "rows, so replays, dead letters and other sinks would get other messages. Call checkpoint() or "
            "localCheckpoint() on the frame with the ids, write it and read it back, or derive the ids from the data."
        )
    return lineage.numbers_rows


class _Lineage:
    """The lineage of columns in the analyzed plan of a classic session."""

    def __init__(self, frame: DataFrame) -> None:
        self._plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
        self._file_table = java_class(frame.sparkSession.sparkContext, "java.lang.Class").forName(_FILE_TABLE)
        self._ctes: dict[int, JavaObject] = {}
        self.numbers_rows = False
        self._skips_files = lineage_texts.skips_files(frame.sparkSession)
        self._session = frame.sparkSession

    def unstable(self, column: str) -> tuple[str, str] | None:
        """Return an expression that numbers rows in no fixed order, and the node that leaves their order open; else None."""
        wanted = [one for one in each(self._plan.output()) if str(one.name()).lower() == column.lower()]
        return self._in(self._plan, {_id(one): one for one in wanted}, by_place=False)

    def _in(self, plan: "JavaObject", wanted: dict[int, "JavaObject"], *, by_place: bool) -> tuple[str, str] | None:
        """Follow columns of a node's output to the leaves. With `by_place`, the places of an array's elements count."""
        if not wanted:
            return None
        kind = _kind(plan)
        if kind == _CTE:
            self._ctes |= {int(one.id()): one.child() for one in each(plan.cteDefs())}
            return self._in(plan.plan(), wanted, by_place=by_place)
        inputs = self._inputs(plan, kind)
        if kind == _INDEXING and _id(plan.sequenceAttr()) in wanted:
            node = self._node_without_order(inputs)
            wanted = {number: one for number, one in wanted.items() if number != _id(plan.sequenceAttr())}
            if node is not None:
                return "an index of pandas", node
            self.numbers_rows = True
        if kind in _BY_POSITION:
            places = [place for place, one in enumerate(each(plan.output())) if _id(one) in wanted]
            outputs = [list(each(below.output())) for below in inputs]
            below_wanted = [(by_place, {_id(output[i]): output[i] for i in places}) for output in outputs]
            return self._below(inputs, below_wanted)
        needed: dict[bool, dict[int, JavaObject]] = {False: {}, True: {}}
        for expression, is_place in self._defining(plan, kind, wanted, by_place=by_place):
            source = _source_in(expression, kind, inputs)
            if source is not None and _may_be_anything(source):
                return _described(source.sql()), _described(plan.simpleString(8))
            if kind in _DEFINED_BY and _has(expression, _CLOCK):
                return _described(expression.sql()), _described(plan.simpleString(8))
            node = None if source is None else self._node_without_order(inputs)
            self.numbers_rows |= source is not None and _kind(source) not in _OF_FILES
            if source is None:
                source, node = _collected(expression, by_place=is_place), _described(plan.simpleString(8))
            if source is not None and node is not None:
                return _described(source.sql()), node
            for subquery in _subqueries(expression):
                found = self._in(subquery, {_id(one): one for one in each(subquery.output())}, by_place=is_place)
                if found is not None:
                    return found
            for one, uses_place in _used(expression, by_place=is_place):
                needed[uses_place][_id(one)] = one
        sets = [below.outputSet() for below in inputs]
        for uses_place, columns in needed.items():
            below_wanted = [(uses_place, {i: one for i, one in columns.items() if of.contains(one)}) for of in sets]
            found = self._below(inputs, below_wanted)
            if found is not None:
                return found
        return None

    def _below(
        self, plans: Sequence["JavaObject"], wanted: Sequence[tuple[bool, dict[int, "JavaObject"]]]
    ) -> tuple[str, str] | None:
        found = (self._in(plan, of, by_place=by_place) for plan, (by_place, of) in zip(plans, wanted, strict=True))
        return next((one for one in found if one is not None), None)

    def _defining(
        self, plan: "JavaObject", kind: str, wanted: dict[int, "JavaObject"], *, by_place: bool
    ) -> Iterator[tuple["JavaObject", bool]]:
        """Yield the expressions of wanted columns, and whether the places of elements count in them.

        A column that comes from below is itself an expression.
        """
        defined: dict[int, tuple[JavaObject, bool]] = {}
        if kind in _DEFINED_BY:
            defined = {_id(one): (one, by_place) for one in each(getattr(plan, _DEFINED_BY[kind])())}
        elif kind == "Generate":
            generator, outputs = plan.generator(), list(each(plan.generatorOutput()))
            has_places = _kind(generator) == "PosExplode"
            defined = {_id(one): (generator, has_places and place == 0) for place, one in enumerate(outputs)}
        elif kind == "Expand":  # such as unpivot: each row becomes one for each of the projections
            rows = [list(each(projection)) for projection in each(plan.projections())]
            for place, one in enumerate(each(plan.output())):
                if _id(one) in wanted:
                    yield from ((row[place], by_place) for row in rows)
            return
        inputs = self._inputs(plan, kind)
        for number, column in wanted.items():
            if number in defined:
                yield defined[number]
            elif any(below.outputSet().contains(column) for below in inputs):
                yield column, by_place
            else:  # a function of rows, which passes a column on under its name, or makes one of any of them
                there = [one for below in inputs for one in each(below.output())]
                named = [one for one in there if one.name() == column.name()]
                yield from ((one, by_place) for one in named or there)

    def _inputs(self, plan: "JavaObject", kind: str) -> list["JavaObject"]:
        if kind == _CTE_USED:
            return [self._ctes[int(plan.cteId())]]
        return [*each(plan.children()), *([plan.right().plan()] if kind == "LateralJoin" else [])]

    def _node_without_order(self, plans: Iterable["JavaObject"]) -> str | None:
        """Return a node at or below these whose rows may come in another order in the next job; None: there is none."""
        for plan in plans:
            kind = _kind(plan)
            inputs = self._inputs(plan, kind)
            if inputs and (kind == _CTE_USED or (kind in _NARROW and not self._depends_on_more(plan, kind, inputs))):
                found = self._node_without_order(inputs)
            else:
                found = None if kind in _GIVEN or self._is_ordered(plan, kind) else _described(plan.simpleString(8))
            if found is not None:
                return found
        return None

    def _depends_on_more(self, plan: "JavaObject", kind: str, inputs: Sequence["JavaObject"]) -> bool:
        """Return True if a node is a join in disguise, or keeps other rows in another job."""
        if kind in ("Filter", "Project") and lineage_texts.joins(str(plan.simpleString(_ALL_FIELDS))):
            return True
        if kind not in ("Filter", "Generate"):
            return False
        chooses = plan.condition() if kind == "Filter" else plan.generator()
        if _has(chooses, _CLOCK) or (not chooses.deterministic() and _has(chooses, _ANYTHING)):
            return True
        return self._vary(inputs, {_id(one): one for one, _ in _used(chooses, by_place=False)})

    def _vary(self, plans: Sequence["JavaObject"], columns: dict[int, "JavaObject"]) -> bool:
        """Return True if columns of some nodes may have other values in another job, for the same rows."""
        return any(
            self._varies(plan, {number: one for number, one in columns.items() if plan.outputSet().contains(one)})
            for plan in plans
        )

    def _varies(self, plan: "JavaObject", wanted: dict[int, "JavaObject"]) -> bool:
        if not wanted:
            return False
        kind = _kind(plan)
        if kind == _CTE:
            self._ctes |= {int(one.id()): one.child() for one in each(plan.cteDefs())}
            return self._varies(plan.plan(), wanted)
        inputs = self._inputs(plan, kind)
        if not inputs:
            return self._corrupt_column(plan, kind) in {str(one.name()) for one in wanted.values()}
        if kind in _BY_POSITION:
            places = [place for place, one in enumerate(each(plan.output())) if _id(one) in wanted]
            outputs = [list(each(below.output())) for below in inputs]
            of_inputs = [{_id(output[i]): output[i] for i in places} for output in outputs]
            return any(self._varies(below, of) for below, of in zip(inputs, of_inputs, strict=True))
        defining = [expression for expression, _ in self._defining(plan, kind, wanted, by_place=False)]
        if kind in _DEFINED_BY and any(_has(one, _CLOCK) for one in defining):
            return True
        used = [one for expression in defining for one, _ in _used(expression, by_place=False)]
        return self._vary(inputs, {_id(one): one for one in used})

    def _corrupt_column(self, plan: "JavaObject", kind: str) -> str | None:
        """Return the name of the column for lines that a reader of text can't parse."""
        if kind == "LogicalRelation" and _kind(plan.relation()) == _FILES:
            files = plan.relation()
            options = _options(files.options()) if _kind(files.fileFormat()) in _TEXTS else None
        else:
            options = _options(plan.options()) if kind in _V2 and _kind(plan.table()) in _TEXTS else None
        return None if options is None else lineage_texts.corrupt_column(self._session, options)

    def _is_ordered(self, plan: "JavaObject", kind: str) -> bool:
        """Return True if a node is a scan of files, or has rows that were computed once."""
        if kind == "LogicalRelation":
            files = plan.relation()
            is_split_by_size = _kind(files) == _FILES and not files.bucketSpec().isDefined()
            return is_split_by_size and not self._skips_files and not _drops(files.options())
        if kind in _V2:
            is_of_files = bool(self._file_table.isInstance(plan.table()))
            return is_of_files and not self._skips_files and not _drops(plan.options())
        if kind in ("LogicalRDD", "ExternalRDD"):
            rdd = plan.rdd()
            return bool(rdd.isCheckpointed()) or str(rdd.outputDeterministicLevel().toString()) == _DETERMINATE
        return False


def _source_in(expression: "JavaObject", kind: str, inputs: Sequence["JavaObject"]) -> "JavaObject | None":
    """Return the part of an expression whose value depends on the order of rows, or None."""
    if kind == "Window" and _kind(expression) == "Alias" and _kind(expression.child()) == "WindowExpression":
        window = expression.child()
        return window if _numbers_rows(window) and not _tells_rows_apart(window.windowSpec(), inputs[0]) else None
    if expression.deterministic() or _kind(expression) == _AGGREGATE:
        return None  # an aggregate takes its values from rows together, so an id stays with its row
    parts = (_source_in(part, "", inputs) for part in each(expression.children()))
    found = next((part for part in parts if part is not None), None)
    has_parts = any(not part.deterministic() for part in each(expression.children()))
    return found if has_parts else expression


def _may_be_anything(source: "JavaObject") -> bool:
    """Return True if a part of an expression isn't even the same for the same rows in the same order.

    A window without an order of its own gives it to rows as they come from the tasks of a shuffle.
    """
    if _kind(source) == "WindowExpression":
        window = source.windowSpec()
        return all(
            one.references().isEmpty() for part in (window.partitionSpec(), window.orderSpec()) for one in each(part)
        )
    return _kind(source) in _ANYTHING


def _options(options: "JavaObject") -> dict[str, str]:
    """Return the options of a scan, by their names in lower case. Those of a source of version 2 are a map of Java's."""
    if isinstance(options, Mapping):
        return {str(name).lower(): str(value) for name, value in options.items()}
    names, values = map(str, each(options.keySet())), map(str, each(options.values()))
    return {name.lower(): value for name, value in zip(names, values, strict=True)}


def _drops(options: "JavaObject") -> bool:
    """Return True if a scan with these options may drop other lines or files in another job."""
    return lineage_texts.drops_rows(_options(options))


def _has(expression: "JavaObject", kinds: Set[str]) -> bool:
    """Return True if an expression, or a part of it, is of one of these kinds."""
    return _kind(expression) in kinds or any(_has(part, kinds) for part in each(expression.children()))


def _subqueries(expression: "JavaObject") -> Iterator["JavaObject"]:
    """Yield the plans of subqueries in an expression."""
    if _kind(expression) in _SUBQUERIES:
        yield expression.plan()
    for part in each(expression.children()):
        yield from _subqueries(part)


def _collected(expression: "JavaObject", *, by_place: bool) -> "JavaObject | None":
    """Return the part of an expression that depends on the order in which rows arrive at an aggregate, or None."""
    kind = _kind(expression)
    if kind in _COLLECTED:
        return expression if by_place else None
    if kind == _JOINED:
        return expression if expression.orderExpressions().isEmpty() else None
    below = by_place if kind in _PASSING else kind not in _OF_ELEMENTS
    parts = (_collected(part, by_place=below) for part in each(expression.children()))
    return next((part for part in parts if part is not None), None)


def _used(expression: "JavaObject", *, by_place: bool) -> Iterator[tuple["JavaObject", bool]]:
    """Yield the columns that an expression uses, and whether it uses the places of their elements, if they are arrays."""
    kind = _kind(expression)
    if kind == "AttributeReference":
        yield expression, by_place
        return
    below = by_place if kind in _PASSING else kind not in _OF_ELEMENTS
    for part in each(expression.children()):
        yield from _used(part, by_place=below)


def _numbers_rows(window: "JavaObject") -> bool:
    """Return True if a window function gives rows that the window's order doesn't tell apart different values."""
    frame = str(window.windowSpec().frameSpecification().sql())
    return _kind(window.windowFunction()) not in _OF_VALUES and frame.startswith("ROWS") and frame != _ALL_ROWS


def _tells_rows_apart(window: "JavaObject", rows: "JavaObject") -> bool:
    """Return True if the columns of a window are a key of the rows, such as that of an aggregate, so that nothing is open."""
    columns = {_id(one) for one in each(window.partitionSpec()) if _kind(one) == "AttributeReference"}
    columns |= {_id(one.child()) for one in each(window.orderSpec()) if _kind(one.child()) == "AttributeReference"}
    for key in each(rows.distinctKeys()):
        if all(_kind(one) == "AttributeReference" and _id(one) in columns for one in each(key)):
            return True
    while _kind(rows) in _PASSING_ON:
        rows = rows.child()
    return _kind(rows) == "Deduplicate" and {_id(one) for one in each(rows.keys())} <= columns


def _id(column: "JavaObject") -> int:
    return int(column.exprId().id())


def _kind(node: "JavaObject") -> str:
    return str(node.getClass().getSimpleName())


def _described(text: str) -> str:
    """Return a node or an expression as Spark prints it, without the numbers of its columns."""
    text = _NUMBERS.sub("", str(text)).strip()
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}..."
