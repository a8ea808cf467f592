"""Find out whether an execution has read all rows of a source, from the plan that ran.

A meter counts rows that were pulled, not rows that exist. `coalesce(1).limit(5)` pulls five of ten thousand, and a join with
nothing pulls none. So every node between the source and the root of the plan must be one of those that pull all rows of
their input. Anything else may stop early.
"""

from typing import Any

from acker_redis.spark.proof.plans import METER, each, is_of_sink
from acker_redis.spark.protocol.columns import OUT

_DRAINING = frozenset(
    (
        "Project", "Filter", "Generate", "Union", "Exchange", "BroadcastExchange", "Sort", "HashAggregate",
        "ObjectHashAggregate", "SortAggregate", METER, "ColumnarToRow", "InputAdapter", "AQEShuffleRead",
        # what writes
        "WriteFiles", "AppendData", "OverwriteByExpression", "OverwritePartitionsDynamic", "DeserializeToObject",
    )
)  # fmt: skip
"""Nodes that pull all rows of all their inputs."""

_CODEGEN, _COMMAND = "WholeStageCodegen", "Execute "
"""Beginnings of names that go on with a number, or with the name of a command, which writes all rows."""

_STAGES = ("ShuffleQueryStage", "BroadcastQueryStage", "ResultQueryStage", "TableCacheQueryStage")
"""Stages of an adaptive plan, which hide the nodes below them."""

_ADAPTIVE, _CACHED = "AdaptiveSparkPlan", "InMemoryTableScan"
_PYTHON = "MapInArrow"

_JOINS = ("SortMergeJoin", "ShuffledHashJoin", "BroadcastHashJoin", "BroadcastNestedLoopJoin")
_PRESERVED = {"LeftOuter": (True, False), "RightOuter": (False, True), "FullOuter": (True, True)}
"""Kind of an outer join -> whether it keeps the rows of each side without a match, and so pulls all of them."""


def drains(query: Any, meter: str) -> bool:
    """Return True if an execution has pulled all rows of the source with this meter, wherever it read it.

    Args:
        query: Spark's QueryExecution, after it ran.
        meter: name of the meter at the source.
    """
    found = _drained(query.executedPlan(), meter, is_drained=True)
    return bool(found) and all(found)


def _drained(plan: Any, meter: str, *, is_drained: bool) -> list[bool]:
    """Return, for each place of the meter at or below a node, whether its rows were all pulled.

    Args:
        plan: node of a physical plan.
        meter: name of the meter.
        is_drained: whether all rows of this node were pulled.
    """
    kind = str(plan.nodeName())
    if kind == METER and plan.name() == meter:
        return [is_drained]
    found = []
    subqueries = list(each(plan.subqueries()))
    for subquery in subqueries:
        found += _drained(subquery, meter, is_drained=False)
    below, pulls = _below(plan, kind)
    for child, pulls_all in zip(below, pulls, strict=True):
        found += _drained(child, meter, is_drained=is_drained and pulls_all)
    return found


def _below(plan: Any, kind: str) -> tuple[list[Any], list[bool]]:
    """Return the inputs of a node, and whether it pulls all rows of each."""
    if kind == _ADAPTIVE:
        return [plan.executedPlan()], [True]
    if kind in _STAGES:
        return [plan.plan()], [True]
    if kind == _CACHED:
        cache = plan.relation().cacheBuilder()
        return [cache.cachedPlan()], [is_of_sink(cache)]
    inputs = list(each(plan.children()))
    if kind in _JOINS and len(inputs) == 2:
        return inputs, list(_PRESERVED.get(str(plan.joinType().toString()), (False, False)))
    pulls = kind in _DRAINING or kind.startswith((_CODEGEN, _COMMAND))
    if kind == _PYTHON:  # our own steps have this column, which users can't have
        pulls = f"{OUT}#" in str(plan.output().toString())
    return inputs, [pulls] * len(inputs)
