"""The lineage of message ids in a plan as a client of Spark Connect sends it, for `id_lineage`.

Columns have no numbers there, so they are followed by name. SQL text is searched for the names of functions.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame

from acker_redis.spark.proof import lineage_texts, requests
from acker_redis.spark.proof.plans import analyzed_part, kinds_in

_NARROW = frozenset(
    ("project", "filter", "with_columns", "with_columns_renamed", "drop", "to_df", "to_schema", "subquery_alias", "sample",
     "collect_metrics", "map_partitions", "fill_na", "drop_na", "replace")
)  # fmt: skip
"""Relations that make the rows of a partition of one partition of their input, in its order."""

_GIVEN = frozenset(
    ("local_relation", "cached_local_relation", "chunked_cached_local_relation", "cached_remote_relation", "range")
)
"""Relations with the same rows in the same order in each job. The remote one is a checkpoint."""

_FUNCTIONS = frozenset(("map_partitions", "group_map", "co_group_map"))
"""Relations whose columns a function of rows makes."""

_FILES = frozenset(("", "parquet", "orc", "json", "csv", "text", "xml", "avro", "binaryfile", "delta"))
"""Formats of files. Without a name it is the session's default."""

_OF_FILES = frozenset(
    ("Project", "Filter", "Generate", "Union", "Sample", "SubqueryAlias", "View", "Relation", "LocalRelation", "Range",
     "OneRowRelation", "LogicalRDD", "HiveTableRelation", "MapInArrow", "MapInPandas")
)  # fmt: skip
"""Nodes of the same kind in the text of an analyzed plan."""

_RANDOM = frozenset(
    ("monotonically_increasing_id", "spark_partition_id", "rand", "random", "randn", "uuid", "shuffle", "uniform", "randstr",
     "input_file_name", "input_file_block_start", "input_file_block_length", "distributed_sequence_id")
)  # fmt: skip
"""Functions that aren't deterministic."""

_NUMBERING = frozenset(("row_number", "ntile", "lag", "lead", "nth_value"))
"""Functions of windows that give rows in one place of the order different values."""

_COLLECTED = frozenset(("collect_list", "collect_set", "array_agg"))
"""Aggregates whose arrays have their elements in the order in which rows arrive."""

_JOINED = frozenset(("listagg", "string_agg"))
"""Aggregates whose text has its parts in that order, unless they name another."""

_WITH_ORDER = "within group"

_OF_ELEMENTS = frozenset(
    ("explode", "explode_outer", "inline", "inline_outer", "sort_array", "array_sort", "size", "array_size", "cardinality",
     "array_max", "array_min", "array_contains", "arrays_overlap")
)  # fmt: skip
"""Functions of an array for which the order of its elements makes no difference."""

_PASSING = frozenset(
    ("posexplode", "posexplode_outer", "first", "last", "any_value", "max", "min", "array_distinct", "flatten", "array_union",
     "array_except", "array_intersect", "array_remove", "array_compact", *_COLLECTED)
)  # fmt: skip
"""Functions that pass an array on, or its elements with their places."""

_NAMED = re.compile(r"`([^`]+)`|(\w+)")
_AS = re.compile(r"(.+?)\s+(?:as\s+)?`?(\w+)`?\s*", re.IGNORECASE | re.DOTALL)
_UNION = 2

_TEXTS = frozenset(("json", "csv", "xml"))
"""Readers of text."""

_JDBC = "JDBCRelation("
_TABLE = re.compile(r"\bRelation ([^\s\[]+)\[")
"""A table in the text of an analyzed plan. Files that are read by their path have no name."""


class RequestLineage:
    """The lineage of columns in the request of a frame.

    Attributes:
        numbers_rows: whether columns that were followed number rows in the order in which Spark reads them.
    """

    def __init__(self, frame: DataFrame) -> None:
        """Set the frame."""
        self._session: Any = frame.sparkSession
        plan: Any = frame._plan.to_proto(self._session.client)  # type: ignore[operator]  # noqa: SLF001
        self._make_plan, self._root = type(plan), plan.root
        self.numbers_rows = False

    def unstable(self, column: str) -> tuple[str, str] | None:
        """Return a function that numbers rows in no fixed order, and the relation that leaves it open; else None."""
        return self._in(self._root, {column.lower(): False})

    @cached_property
    def _skips_files(self) -> bool:
        return lineage_texts.skips_files(self._session)

    def _in(self, relation: Any, wanted: Mapping[str, bool]) -> tuple[str, str] | None:
        """Follow columns of a relation to the leaves.

        Args:
            relation: the relation.
            wanted: names of the columns, in lower case -> whether the places of an array's elements count.
        """
        inputs = list(requests.inputs(relation))
        needed: dict[str, bool] = {}
        if relation.WhichOneof("rel_type") in _FUNCTIONS:
            wanted = self._through_function(inputs, wanted)
        for expression, is_place in _defining(relation, wanted):
            if isinstance(expression, str):
                needed[expression] = needed.get(expression, False) or is_place
                continue
            function = _order_dependent(expression)
            if (anything := _may_be_anything(expression)) is not None:
                return anything, str(relation.WhichOneof("rel_type"))
            node = None if function is None else self._relation_without_order(inputs)
            self.numbers_rows |= function is not None and not function.startswith("input_file_")
            if function is not None and node is not None:
                return function, node
            for name, uses_place, collects in _used(expression, by_place=is_place):
                if collects and uses_place:
                    return f"{name}()", str(relation.WhichOneof("rel_type"))
                if not collects:
                    needed[name] = needed.get(name, False) or uses_place
        found = (self._in(below, needed) for below in inputs if needed)
        return next((one for one in found if one is not None), None)

    def _through_function(self, inputs: Iterable[Any], wanted: Mapping[str, bool]) -> Mapping[str, bool]:
        """Return the columns of which a function of rows makes others: those of the same name, or any of them."""
        schemas = [self._session.client.schema(self._make_plan(root=below)) for below in inputs]
        there = {name.lower() for schema in schemas for name in schema.names}
        is_place = any(wanted.values())
        return wanted if wanted.keys() <= there else dict.fromkeys(there, is_place)

    def _relation_without_order(self, relations: Iterable[Any]) -> str | None:
        """Return a relation at or below these whose rows may come in another order in the next job; None: there is none."""
        for relation in relations:
            kind = str(relation.WhichOneof("rel_type"))
            inputs = list(requests.inputs(relation))
            is_union = kind == "set_op" and relation.set_op.set_op_type == _UNION and relation.set_op.is_all
            is_narrow = kind in _NARROW and not self._keeps_others(relation, kind)
            if inputs and (is_narrow or is_union):
                found = self._relation_without_order(inputs)
            elif kind in _GIVEN or self._is_ordered(relation, kind):
                found = None
            else:
                found = kind
            if found is not None:
                return found
        return None

    def _keeps_others(self, relation: Any, kind: str) -> bool:
        """Return True if a filter or a generator may keep or make other rows in another job."""
        if kind == "project":
            return any(_asks_the_clock(one) and _generates(one) for one in relation.project.expressions)
        if kind != "filter":
            return False
        of = relation.filter
        names = {name for name, _, _ in _used(of.condition, by_place=False)}
        return _may_be_anything(of.condition) is not None or self._varies(of.input, names)

    def _varies(self, relation: Any, names: set[str]) -> bool:
        """Return True if columns of a relation may have other values in another job, for the same rows."""
        if not names:
            return False
        if relation.WhichOneof("rel_type") == "read":
            if relation.read.data_source.format.lower() not in _TEXTS:
                return False
            options = {name.lower(): value for name, value in relation.read.data_source.options.items()}
            return lineage_texts.corrupt_column(self._session, options).lower() in names
        needed: set[str] = set()
        for expression, _ in _defining(relation, dict.fromkeys(names, False)):
            if isinstance(expression, str):
                needed.add(expression)
            elif _asks_the_clock(expression):
                return True
            else:
                needed |= {name for name, _, _ in _used(expression, by_place=False)}
        return any(self._varies(below, needed) for below in requests.inputs(relation))

    def _is_ordered(self, relation: Any, kind: str) -> bool:
        if kind == "read" and relation.read.WhichOneof("read_type") == "data_source":
            source = relation.read.data_source
            drops = self._skips_files or lineage_texts.drops_rows(source.options)
            return source.format.lower() in _FILES and not drops
        if kind not in ("read", "sql", "with_relations"):
            return False
        text = analyzed_part(self._session.client.explain_string(self._make_plan(root=relation), "extended"))
        is_of_files = kinds_in(text).keys() <= _OF_FILES and _JDBC not in text and not self._skips_files
        depends_on_more = lineage_texts.joins(text) or lineage_texts.filters_vary(
            text, lineage_texts.corrupt_column(self._session, {})
        )
        return is_of_files and not depends_on_more and not any(map(self._is_bucketed, _tables(text)))

    def _is_bucketed(self, table: str) -> bool:
        """Return True if a table has buckets: Spark reads it by these in some jobs, and by sizes of files in others."""
        return any(column.isBucket for column in self._session.catalog.listColumns(table))


def _defining(relation: Any, wanted: Mapping[str, bool]) -> Iterator[tuple[Any, bool]]:
    """Yield the expressions of wanted columns, and the names of those that come from below, with what counts in them."""
    kind = relation.WhichOneof("rel_type")
    defined: dict[str, tuple[Any, bool | None]] = {}
    if kind == "project":
        defined = {name: (one, place) for name, one, place in _named(relation.project.expressions)}
    elif kind == "aggregate":
        of = relation.aggregate
        named = _named([*of.grouping_expressions, *of.aggregate_expressions])
        defined = {name: (one, place) for name, one, place in named}
    elif kind == "with_columns":
        defined = {alias.name[0].lower(): (alias.expr, None) for alias in relation.with_columns.aliases}
    elif kind == "with_columns_renamed":
        of = relation.with_columns_renamed
        renamed = {one.new_col_name.lower(): one.col_name.lower() for one in of.renames}
        renamed |= {new.lower(): old.lower() for old, new in of.rename_columns_map.items()}
        yield from ((renamed.get(name, name), by_place) for name, by_place in wanted.items())
        return
    elif kind == "unpivot":
        of = relation.unpivot
        for name, by_place in wanted.items():
            is_value = name == of.value_column_name.lower()
            yield from ((one, by_place) for one in (of.values.values if is_value else ()))
            if not is_value and name != of.variable_column_name.lower():
                yield name, by_place
        return
    for name, by_place in wanted.items():
        expression, is_place = defined.get(name, (name, None))
        yield expression, by_place if is_place is None else is_place


def _named(expressions: Iterable[Any]) -> Iterator[tuple[str, Any, bool | None]]:
    """Yield expressions with the names of their columns, and for generators whether the column is the places."""
    for expression in expressions:
        kind = expression.WhichOneof("expr_type")
        if kind == "alias":
            of = expression.alias.expr
            function = of.unresolved_function.function_name.lower() if of.HasField("unresolved_function") else ""
            has_places, is_generator = function.startswith("posexplode"), "explode" in function
            for number, name in enumerate(expression.alias.name):
                yield name.lower(), of, (has_places and number == 0) if is_generator else None
        elif kind == "unresolved_function" and "explode" in expression.unresolved_function.function_name.lower():
            yield "pos", expression, True  # the names that Spark gives the columns
            yield "col", expression, False
        elif kind == "unresolved_attribute":  # a field of a struct has the name of the field
            yield _last_name(expression.unresolved_attribute.unparsed_identifier), expression, None
        elif kind == "expression_string":
            text = expression.expression_string.expression
            found = _AS.fullmatch(text)
            yield found[2].lower() if found else _last_name(text), expression, None


def _used(message: Any, *, by_place: bool) -> Iterator[tuple[str, bool, bool]]:
    """Yield the columns that an expression may use, and the aggregates that collect rows into arrays.

    Returns:
        Name; whether the places of an array's elements count; whether it is such an aggregate.
    """
    kind, below = message.DESCRIPTOR.name, by_place
    if kind == "UnresolvedAttribute":
        yield from ((name, by_place, False) for name in _names_in(message.unparsed_identifier))
        return
    if kind == "ExpressionString":
        called = set(lineage_texts.called_in(message.expression))
        is_place = bool(called - _OF_ELEMENTS - _PASSING) or by_place
        yield from ((name, is_place, True) for name in called & _COLLECTED if not called & _OF_ELEMENTS)
        if _WITH_ORDER not in message.expression.lower():
            yield from ((name, True, True) for name in called & _JOINED)
        yield from ((name, is_place, False) for name in _names_in(message.expression) - called)
        return
    if kind in ("UnresolvedFunction", "CallFunction"):
        name = message.function_name.lower()
        below = by_place if name in _PASSING else name not in _OF_ELEMENTS
        if name in _COLLECTED | _JOINED:
            yield name, by_place or name in _JOINED, True
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if hasattr(value, "DESCRIPTOR"):
            yield from _used(value, by_place=below)
        elif not field.message_type.GetOptions().map_entry:
            for one in value:
                yield from _used(one, by_place=below)


def _may_be_anything(expression: Any) -> str | None:
    """Return a function in an expression that isn't even the same for the same rows in the same order, or None."""
    for part in _parts(expression):
        if part.DESCRIPTOR.name == "CommonInlineUserDefinedFunction" and not part.deterministic:
            return f"{part.function_name}()"
        if part.DESCRIPTOR.name == "Window":
            function = _order_dependent(part)
            names = [name for order in part.order_spec for name in _used(order, by_place=False)]
            names += [name for part_of in part.partition_spec for name in _used(part_of, by_place=False)]
            if function is not None and not names:
                return function
    return "the present time" if _asks_the_clock(expression) else None


def _order_dependent(expression: Any) -> str | None:
    """Return a function in an expression whose value depends on the order of rows, or None."""
    for part in _parts(expression):
        kind = part.DESCRIPTOR.name
        if kind in ("UnresolvedFunction", "CallFunction") and part.function_name.lower() in _RANDOM | _NUMBERING:
            return f"{part.function_name}()"
        if kind == "ExpressionString":
            called = [name for name in lineage_texts.called_in(part.expression) if name in _RANDOM | _NUMBERING]
            if called:
                return f"{called[0]}()"
        if kind == "Window" and part.frame_spec.frame_type == part.WindowFrame.FRAME_TYPE_ROW:
            ends = (part.frame_spec.lower, part.frame_spec.upper)
            if not all(end.WhichOneof("boundary") == "unbounded" for end in ends):
                return "a window over rows"
    return None


def _asks_the_clock(expression: Any) -> bool:
    """Return True if an expression has a function of the time at which a job begins."""
    for part in _parts(expression):
        kind = part.DESCRIPTOR.name
        if kind in ("UnresolvedFunction", "CallFunction") and lineage_texts.is_of_the_clock(
            part.function_name, has_arguments=bool(part.arguments)
        ):
            return True
        if kind == "ExpressionString" and lineage_texts.asks_the_clock(part.expression):
            return True
    return False


def _generates(expression: Any) -> bool:
    """Return True if an expression makes several rows of one."""
    names = (
        part.function_name.lower()
        for part in _parts(expression)
        if part.DESCRIPTOR.name in ("UnresolvedFunction", "CallFunction")
    )
    return any("explode" in name or "inline" in name for name in names)


def _tables(text: str) -> set[str]:
    return set(_TABLE.findall(text))


def _names_in(text: str) -> set[str]:
    return {(quoted or plain).lower() for quoted, plain in _NAMED.findall(text)}


def _last_name(text: str) -> str:
    *_, (quoted, plain) = [("", text), *_NAMED.findall(text)]
    return str(quoted or plain).lower()


def _parts(message: Any) -> Iterator[Any]:
    """Yield a message of an expression and all that it consists of."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if hasattr(value, "DESCRIPTOR"):
            yield from _parts(value)
        elif not field.message_type.GetOptions().map_entry:
            for one in value:
                yield from _parts(one)
