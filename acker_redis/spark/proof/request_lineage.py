"""The lineage of message ids in a plan as a client of Spark Connect sends it, for `id_lineage`.

Columns have no numbers there, so they are followed by name. SQL text is searched for the names of functions.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import DataFrame

from acker_redis.spark.proof import requests
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

_FILES = frozenset(("", "parquet", "orc", "json", "csv", "text", "xml", "avro", "binaryfile", "delta"))
"""Formats of files. Without a name it is the session's default."""

_OF_FILES = frozenset(
    ("Project", "Filter", "Generate", "Union", "Sample", "SubqueryAlias", "View", "Relation", "LocalRelation", "Range",
     "OneRowRelation", "LogicalRDD", "HiveTableRelation", "MapInArrow", "MapInPandas")
)  # fmt: skip
"""Nodes of the same kind in the text of an analyzed plan."""

_RANDOM = frozenset(
    ("monotonically_increasing_id", "spark_partition_id", "rand", "random", "randn", "uuid", "shuffle", "uniform", "randstr",
     "input_file_name", "input_file_block_start", "input_file_block_length")
)  # fmt: skip
"""Functions that aren't deterministic."""

_NUMBERING = frozenset(("row_number", "ntile", "lag", "lead", "nth_value"))
"""Functions of windows that give rows in one place of the order different values."""

_CALLED = re.compile(r"(\w+)\s*\(")
_NAMED = re.compile(r"`([^`]+)`|(\w+)")
_AS = re.compile(r"(.+?)\s+(?:as\s+)?`?(\w+)`?\s*", re.IGNORECASE | re.DOTALL)
_UNION = 2
_JDBC = "JDBCRelation("


def unstable_in_request(frame: DataFrame, column: str) -> tuple[str, str] | None:
    """Return a function that numbers rows in no fixed order, and the relation that leaves their order open; else None."""
    session: Any = frame.sparkSession
    plan: Any = frame._plan.to_proto(session.client)  # type: ignore[operator]  # noqa: SLF001
    return _Lineage(session.client, type(plan)).unstable(plan.root, frozenset([column.lower()]))


class _Lineage:
    def __init__(self, client: Any, make_plan: Any) -> None:
        self._client, self._make_plan = client, make_plan

    def unstable(self, relation: Any, wanted: frozenset[str]) -> tuple[str, str] | None:
        """Follow columns of a relation to the leaves, by their names in lower case."""
        inputs = list(requests.inputs(relation))
        needed: set[str] = set()
        for expressions in _defining(relation, wanted):
            if isinstance(expressions, str):
                needed.add(expressions)
                continue
            function = _order_dependent(expressions)
            node = None if function is None else self._relation_without_order(inputs)
            if function is not None and node is not None:
                return function, node
            needed |= _columns_in(expressions)
        found = (self.unstable(below, frozenset(needed)) for below in inputs if needed)
        return next((one for one in found if one is not None), None)

    def _relation_without_order(self, relations: Iterable[Any]) -> str | None:
        """Return a relation at or below these whose rows may come in another order in the next job; None: there is none."""
        for relation in relations:
            kind = str(relation.WhichOneof("rel_type"))
            inputs = list(requests.inputs(relation))
            is_union = kind == "set_op" and relation.set_op.set_op_type == _UNION and relation.set_op.is_all
            if inputs and (kind in _NARROW or is_union):
                found = self._relation_without_order(inputs)
            elif kind in _GIVEN or self._is_ordered(relation, kind):
                found = None
            else:
                found = kind
            if found is not None:
                return found
        return None

    def _is_ordered(self, relation: Any, kind: str) -> bool:
        if kind == "read" and relation.read.WhichOneof("read_type") == "data_source":
            return relation.read.data_source.format.lower() in _FILES
        if kind not in ("read", "sql", "with_relations"):
            return False
        text = analyzed_part(self._client.explain_string(self._make_plan(root=relation), "extended"))
        return kinds_in(text).keys() <= _OF_FILES and _JDBC not in text


def _defining(relation: Any, wanted: frozenset[str]) -> Iterator[Any]:
    """Yield the expressions of wanted columns, and the names of those that come from below."""
    kind = relation.WhichOneof("rel_type")
    defined: dict[str, Any] = {}
    if kind == "project":
        defined = dict(_named(relation.project.expressions))
    elif kind == "aggregate":
        of = relation.aggregate
        defined = dict(_named([*of.grouping_expressions, *of.aggregate_expressions]))
    elif kind == "with_columns":
        defined = {alias.name[0].lower(): alias.expr for alias in relation.with_columns.aliases}
    elif kind == "with_columns_renamed":
        of = relation.with_columns_renamed
        renamed = {one.new_col_name.lower(): one.col_name.lower() for one in of.renames}
        renamed |= {new.lower(): old.lower() for old, new in of.rename_columns_map.items()}
        yield from (renamed.get(name, name) for name in wanted)
        return
    for name in wanted:
        yield defined.get(name, name)


def _named(expressions: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield expressions with the names of their columns."""
    for expression in expressions:
        kind = expression.WhichOneof("expr_type")
        if kind == "alias":
            yield expression.alias.name[0].lower(), expression.alias.expr
        elif kind == "unresolved_attribute":  # a field of a struct has the name of the field
            yield _last_name(expression.unresolved_attribute.unparsed_identifier), expression
        elif kind == "expression_string":
            text = expression.expression_string.expression
            found = _AS.fullmatch(text)
            yield found[2].lower() if found else _last_name(text), expression


def _order_dependent(expression: Any) -> str | None:
    """Return a function in an expression whose value depends on the order of rows, or None."""
    for part in _parts(expression):
        kind = part.DESCRIPTOR.name
        if kind in ("UnresolvedFunction", "CallFunction") and part.function_name.lower() in _RANDOM | _NUMBERING:
            return f"{part.function_name}()"
        if kind == "CommonInlineUserDefinedFunction" and not part.deterministic:
            return f"{part.function_name}()"
        if kind == "ExpressionString":
            called = [name for name in _CALLED.findall(part.expression) if name.lower() in _RANDOM | _NUMBERING]
            if called:
                return f"{called[0]}()"
        if kind == "Window" and part.frame_spec.frame_type == part.WindowFrame.FRAME_TYPE_ROW:
            ends = (part.frame_spec.lower, part.frame_spec.upper)
            if not all(end.WhichOneof("boundary") == "unbounded" for end in ends):
                return "a window over rows"
    return None


def _columns_in(expression: Any) -> set[str]:
    """Return the names of all columns that an expression may use."""
    names: set[str] = set()
    for part in _parts(expression):
        if part.DESCRIPTOR.name == "UnresolvedAttribute":
            names |= _names_in(part.unparsed_identifier)
        elif part.DESCRIPTOR.name == "ExpressionString":
            names |= _names_in(part.expression)
    return names


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
