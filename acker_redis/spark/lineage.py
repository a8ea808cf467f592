"""Refuses what would ack an edge twice, before anything runs.

Every edge has to be acked by exactly one consumer, exactly once. A DataFrame can be used by two consumers, and its rows can
be multiplied by an explode, a join or a union; then a tree would reach zero too early and report completion falsely. So
the anchors column carries the name of the operator that made it, as metadata that Spark hands on, and the plan between
that operator and its consumer is looked at.
"""

import warnings
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from acker_redis.errors import BadBatchError, NotExactError
from acker_redis.spark import anchors as anchor_column
from acker_redis.spark import checks

_PRODUCER = "acker_producer"

_KEEPS_ROWS = frozenset({
    "Project", "Filter", "Sort", "Repartition", "RepartitionByExpression", "RebalancePartitions", "SubqueryAlias", "View",
    "ResolvedHint", "UnresolvedHint", "LocalLimit", "GlobalLimit", "Offset", "Tail", "Window", "Deduplicate",
    "DeduplicateWithinWatermark", "EventTimeWatermark", "CollectMetrics",
})  # fmt: skip
"""Plan nodes that give each input row at most once. One they drop is never acked and times out, which is safe."""

_MAKES_ANCHORS = ("MapInArrow", "Project")
_SEMI_JOINS = ("LeftSemi", "LeftAnti")
_REMEMBERED = 10_000
_MICRO_BATCH = ("sql.streaming.queryId", "streaming.sql.batchId")
"""Local properties of Spark's that a streaming query sets for its jobs."""

_consumer_of: OrderedDict[str, str] = OrderedDict()
_source_of: OrderedDict[str, str] = OrderedDict()
_first_of: OrderedDict[str, str] = OrderedDict()


def with_anchors(schema: StructType, producer: str) -> StructType:
    """A schema with the anchors column last, which says what made it."""
    field = StructField(anchor_column.COLUMN, anchor_column.TYPE, True, {_PRODUCER: producer})
    return StructType([*without_anchors(schema).fields, field])


def marked(frame: DataFrame, producer: str) -> DataFrame:
    """A DataFrame made in SQL, whose anchors column says what made it."""
    checks.column_names(without_anchors(frame.schema).names, producer.rpartition(":")[2])
    column = F.col(anchor_column.COLUMN).alias(anchor_column.COLUMN, metadata={_PRODUCER: producer})
    return frame.select(*(F.col(checks.quoted(name)) for name in frame.columns if name != anchor_column.COLUMN), column)


def without_anchors(schema: StructType) -> StructType:
    """A schema without the anchors column."""
    return StructType([field for field in schema.fields if field.name != anchor_column.COLUMN])


def is_tracked(frame: DataFrame) -> bool:
    """Whether a DataFrame has the anchors column."""
    return anchor_column.COLUMN in frame.columns


def check(frame: DataFrame, consumer: str) -> str:
    """The producer of a DataFrame's anchors; refuses a plan that may multiply rows.

    Raises:
        BadBatchError: the DataFrame isn't tracked, or has a column with a name of the tracker's own.
        NotExactError: rows may have been multiplied since the last operator of the tracker.
    """
    if not is_tracked(frame):
        raise BadBatchError(
            f"{consumer!r}: the DataFrame has no column {anchor_column.COLUMN!r}: make it tracked with spout(), and keep the "
            "column in every select"
        )
    checks.column_names((column for column in frame.columns if column != anchor_column.COLUMN), consumer)
    producer = str(frame.schema[anchor_column.COLUMN].metadata.get(_PRODUCER, ""))
    if not producer:
        raise NotExactError(
            f"{consumer!r}: column {anchor_column.COLUMN!r} was computed by something else than a spout or bolt (an "
            "aggregate, an expression): derive rows in a bolt, so that every edge is made and acked once"
        )
    plan = getattr(frame, "_jdf", None)
    if plan is None:
        warnings.warn(
            f"{consumer!r}: this kind of DataFrame (Spark Connect) does not show its plan: make sure that no row is "
            "multiplied between the tracker's operators",
            stacklevel=4,
        )
        return producer
    _check_plan(plan.queryExecution().analyzed(), producer, consumer)
    return producer


def source(frame: DataFrame) -> str:
    """What a DataFrame reads, the same when it is made again.

    A micro-batch that Spark runs again, as after a failed commit, has another plan; query and batch id are what stays.
    """
    if getattr(frame, "_jdf", None) is not None:
        query, batch = (frame.sparkSession.sparkContext.getLocalProperty(name) for name in _MICRO_BATCH)
        if query and batch:
            return f"micro-batch {batch} of query {query}"
    return f"plan {frame.semanticHash()}"


def claim(emission: str, producers: Sequence[str], consumer: str) -> None:
    """Note who consumes the rows of producers.

    Raises:
        BadBatchError: the consumer's name is empty, too long or can't be encoded.
        NotExactError: somebody else does already, or the name is taken by a consumer of something else.
    """
    checks.operator_name(consumer)
    me = f"{emission}:{consumer}"
    for producer in producers:
        earlier = _remember(_consumer_of, producer, me)
        if earlier != me or producers.count(producer) > 1:
            made_by, other = producer.rpartition(":")[2], earlier.rpartition(":")[2]
            raise NotExactError(
                f"{consumer!r}: the rows of {made_by!r} are consumed by {other!r} already, and each edge can be acked once "
                f"only. Use fan_out(df, {other!r}, ...) and give each its own branch"
            )
    claim_name(emission, consumer, " and ".join(producers))


def unconsumed(producers: Collection[str]) -> list[str]:
    """The operators, of these producers, whose rows nobody consumes."""
    return [producer.rpartition(":")[2] for producer in producers if producer not in _consumer_of]


def claim_name(emission: str, name: str, source: str) -> None:
    """Note what an operator works on.

    Raises:
        BadBatchError: the name is empty, too long or can't be encoded.
        NotExactError: the name is taken by an operator that works on something else.
    """
    checks.operator_name(name)
    if _remember(_source_of, f"{emission}:{name}", source) != source:
        raise NotExactError(
            f"{name!r} is the name of another operator of this emission, or the emission's number was used for other "
            "messages: give each operator a name of its own, and each batch of messages a number"
        )


def claim_first(emission: str, name: str, first: str) -> None:
    """Note with which step the chain begins that an operator runs in.

    Raises:
        NotExactError: it ran in another chain before (cached in between), whose updates were cut in another way.
    """
    known = _remember(_first_of, f"{emission}:{name}", first)
    if known != first:
        raise NotExactError(
            f"{name!r} was planned in one worker with {known!r} before, and now begins behind {first!r}: cache a tracked "
            "DataFrame before anything is derived from it, or not at all"
        )


def _remember(memory: OrderedDict[str, str], key: str, value: str) -> str:
    found = memory.setdefault(key, value)
    memory.move_to_end(key)
    if len(memory) > _REMEMBERED:
        memory.popitem(last=False)
    return found


def _check_plan(node: Any, producer: str, consumer: str) -> None:
    while True:
        kind = str(node.nodeName())
        children = list(_items(node.children()))
        if not children:
            return  # read back from files, or checkpointed: each row as it was written
        if kind in _MAKES_ANCHORS and not any(_producer_of(child) == producer for child in children):
            return
        if kind == "Repartition" and not node.shuffle():
            raise NotExactError(
                f"{consumer!r}: coalesce() runs several partitions in one task, whose updates can't be told apart when it "
                "runs again: use repartition(), or coalesce before the spout"
            )
        if kind == "Join" and str(node.joinType()) in _SEMI_JOINS:
            children = children[:1]
        elif kind not in _KEEPS_ROWS:
            raise NotExactError(
                f"{consumer!r}: a {kind} stands between it and {producer.rpartition(':')[2]!r} and may multiply rows; an "
                "edge would be acked more than once and the root could complete too early. Use the tracker's own "
                "explode, join, group, union or a bolt, which give derived rows edges of their own, or do it before the spout"
            )
        (node,) = children


def _producer_of(node: Any) -> str | None:
    for attribute in _items(node.output()):
        if attribute.name() == anchor_column.COLUMN and attribute.metadata().contains(_PRODUCER):
            return str(attribute.metadata().getString(_PRODUCER))
    return None


def _items(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(i) for i in range(sequence.size()))
