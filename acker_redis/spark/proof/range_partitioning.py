"""Refuse rows that Spark would count twice.

`orderBy` and `repartitionByRange` partition by range. Spark first runs a job that samples the rows, and before 4.3 that job
counted them, too: 20 000 of 10 000 rows on 4.0.5, 4.1.4 and 4.2.1.
"""

import re
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from acker_redis.errors import PipelineError
from acker_redis.spark.proof import requests
from acker_redis.spark.proof.meters import PREFIX
from acker_redis.spark.proof.plans import INDENT, METER, analyzed_text
from acker_redis.spark.runtime.sessions import is_connect, version_of

_COUNT_TWICE = ("4.0.", "4.1.", "4.2.")

_BY_RANGE = re.compile(
    r"Sort \[.*\], true\b|RepartitionByExpression \[.*? (?:ASC|DESC) NULLS (?:FIRST|LAST)", re.DOTALL
)
_NAMED, _USED = (re.compile(rf"CTERelation{kind} (\d+)\b") for kind in ("Def", "Ref"))
"""A query that WITH names, and a place that reads it."""


def counts_twice(session: SparkSession) -> bool:
    """Return True if Spark counts rows twice below a partitioning by range."""
    return version_of(session).startswith(_COUNT_TWICE)


def check_range_partitioning(frame: DataFrame, operator: str) -> None:
    """Check that no range partitioning is between a frame and the tracker's last meters below it.

    Raises:
        PipelineError: there is one, and this version of Spark counts twice below it.
    """
    session = frame.sparkSession
    if not counts_twice(session):
        return
    if is_connect(session):
        plan: Any = frame._plan.to_proto(session.client).root  # type: ignore[operator]  # noqa: SLF001
        # The server tells more than the request, but it takes time for that.
        is_counted_twice = _is_above_meter_in_request(plan) or (
            requests.has_hidden_plans(plan) and is_above_meter(analyzed_text(frame))
        )
    else:
        is_counted_twice = is_above_meter(analyzed_text(frame))
    if is_counted_twice:
        raise PipelineError(
            f"{operator!r}: the rows are sorted or repartitioned by range after an operator that counts them. Spark "
            f"{version_of(session)} counts rows twice below such a step, so nothing could be proven. Call "
            "tracker.local_checkpoint or checkpoint before the step, or use Spark 4.3."
        )


def is_above_meter(plan: str) -> bool:
    """Return True if the text of a plan has a range partitioning above one of the tracker's meters."""
    queries_by_range: set[str] = set()
    while True:
        found = set(queries_by_range)
        if _walk(plan, found):
            return True
        if found == queries_by_range:
            return False
        queries_by_range = found


def _walk(plan: str, queries_by_range: set[str]) -> bool:
    """Return True if a meter is found below a range partitioning. Add the queries that are read below one."""
    is_by_range: list[bool] = []  # of the last node at each depth: whether it is a range partitioning, or below one
    for line in plan.splitlines():
        node = INDENT.sub("", line, count=1)
        depth = (len(line) - len(node)) // 3
        if depth > len(is_by_range) or (is_by_range and not depth):
            continue  # the rest of a name with a line break
        is_below = bool(depth) and is_by_range[depth - 1]
        if is_below and node.startswith(f"{METER} {PREFIX}"):
            return True
        named, used = _NAMED.match(node), _USED.match(node)
        if is_below and used is not None:
            queries_by_range.add(used[1])
        is_by_range[depth:] = [
            is_below or bool(_BY_RANGE.match(node)) or (named is not None and named[1] in queries_by_range)
        ]
    return False


def _is_above_meter_in_request(relation: Any, *, is_below_range: bool = False) -> bool:
    """Do the same for a plan as Spark Connect sends it."""
    if requests.meter_of(relation) is not None:
        return is_below_range
    kind = relation.WhichOneof("rel_type")
    if kind == "sort":
        is_below_range |= not relation.sort.HasField("is_global") or relation.sort.is_global
    elif kind == "repartition_by_expression":
        keys = relation.repartition_by_expression.partition_exprs
        is_below_range |= any(key.WhichOneof("expr_type") == "sort_order" for key in keys)
    return any(_is_above_meter_in_request(below, is_below_range=is_below_range) for below in requests.inputs(relation))
