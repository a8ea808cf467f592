"""Plans as a client of Spark Connect sends them: protobuf messages of the package `spark.connect`."""

import re
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from acker_redis.spark.proof.meters import PREFIX, Metrics

_RELATION = "spark.connect.Relation"

_INPUTS = {"write_operation": "input", "write_operation_v2": "input", "merge_into_table_command": "source_table_plan"}
"""Commands that consume rows -> their input."""

_PASSING = ("project", "subquery_alias", "drop", "with_columns_renamed", "with_columns", "to_df")
"""Relations that neither drop nor copy rows."""

_RUNNING_NOTHING = {
    "create_dataframe_view", "create_resource_profile_command", "get_resources_command", "register_data_source",
    "register_function", "register_table_function", "remove_cached_remote_relation_command", "streaming_query_command",
    "streaming_query_listener_bus_command", "streaming_query_manager_command",
}  # fmt: skip
"""Commands that run no job."""

_OWN_NAME = re.compile(r"(.*#\d+)\|\d+", re.DOTALL)
"""Name of a meter in one request. The name of each meter ends with a number."""

_SUBQUERY = re.compile(r"\(\s*(?:SELECT|FROM|TABLE|WITH)\b", re.IGNORECASE)

_numbers = count()


def inputs(node: Any) -> Iterator[Any]:
    """Yield the relations that a relation, a command or a whole plan consumes."""
    one_of = {
        _RELATION: "rel_type", "spark.connect.Command": "command_type", "spark.connect.Plan": "op_type",
    }[node.DESCRIPTOR.full_name]  # fmt: skip
    kind = node.WhichOneof(one_of)
    if kind is None:
        return
    below = getattr(node, kind)
    if below.DESCRIPTOR.full_name in (_RELATION, "spark.connect.Command"):
        yield from [below] if kind == "root" else inputs(below)
        return
    for field, value in below.ListFields():
        if field.message_type is not None and field.message_type.full_name == _RELATION:
            yield from [value] if hasattr(value, "WhichOneof") else value


def meter_of(relation: Any) -> str | None:
    """Return the name of one of the tracker's meters, or None if the relation is none."""
    if relation.WhichOneof("rel_type") == "collect_metrics" and relation.collect_metrics.name.startswith(PREFIX):
        return _meter(relation.collect_metrics.name)
    return None


def has_hidden_plans(relation: Any) -> bool:
    """Return True if a request has SQL as text, or names a table, which may be a view."""
    kind = relation.WhichOneof("rel_type")
    is_hidden = kind == "sql" or (kind == "read" and relation.read.WhichOneof("read_type") == "named_table")
    return is_hidden or any(map(has_hidden_plans, inputs(relation)))


def has_subqueries(message: Any) -> bool:
    """Return True if a text of an expression, anywhere in a request, has a subquery. `inputs` doesn't yield its relations."""
    if message.DESCRIPTOR.full_name == "spark.connect.Expression.ExpressionString":
        return _SUBQUERY.search(message.expression) is not None
    below = (value for field, value in message.ListFields() if field.message_type is not None)
    parts = (part for value in below for part in ([value] if hasattr(value, "ListFields") else value))
    return any(has_subqueries(part) for part in parts if hasattr(part, "ListFields"))


def meters_in(relation: Any) -> Iterator[str]:
    """Yield the meters of a relation, and of all that it consumes."""
    meter = meter_of(relation)
    if meter is not None:
        yield meter
    for below in inputs(relation):
        yield from meters_in(below)


def runs(plan: Any) -> bool:
    """Return True if a request runs a job. Of a text of SQL, only the response tells."""
    if plan.WhichOneof("op_type") == "root":
        return True
    kind = plan.command.WhichOneof("command_type")
    if kind == "checkpoint_command":
        return bool(plan.command.checkpoint_command.eager)
    return kind != "sql_command" and kind not in _RUNNING_NOTHING


def written(plan: Any) -> Iterator[str]:
    """Yield the meters whose rows a command consumes."""
    if plan.WhichOneof("op_type") != "command":
        return
    kind = plan.command.WhichOneof("command_type")
    if kind not in _INPUTS:
        return
    relation = getattr(getattr(plan.command, kind), _INPUTS[kind])
    while relation.WhichOneof("rel_type") in _PASSING:
        relation = getattr(relation, relation.WhichOneof("rel_type")).input
    meter = meter_of(relation)
    if meter is not None:
        yield meter


def rename(plan: Any) -> None:
    """Give each meter a name that no other request has, in place.

    Spark Connect 4.0 loses the sums of a meter that is twice in a plan, as in a frame united with itself, and those of a meter
    that a view had in an earlier request.
    """
    below = list(inputs(plan))
    while below:
        relation = below.pop()
        meter = meter_of(relation)
        if meter is not None:
            relation.collect_metrics.name = f"{meter}|{next(_numbers)}"
        below += inputs(relation)


def by_meter(metrics: Metrics) -> dict[str, Mapping[str, Any]]:
    """Return the sums of each meter. They are unknown if two of its occurrences differ, because the same rows pass each."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for name, sums in metrics.items():
        found.setdefault(_meter(name), []).append(sums)
    return {
        meter: every[0] for meter, every in found.items() if all(_counts(sums) == _counts(every[0]) for sums in every)
    }


def _meter(name: str) -> str:
    own = _OWN_NAME.fullmatch(name)
    return name if own is None else own[1]


def _counts(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sums without texts, whose order is that of the tasks."""
    return {name: value for name, value in sums.items() if not isinstance(value, str)}
