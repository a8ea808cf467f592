"""Find the operators that explain a failed proof.

Spark's plans show which of the user's operators may have dropped or copied rows.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import DataFrame

from acker_redis.spark.proof.equation import node_in
from acker_redis.spark.proof.meters import OF_CACHE, PREFIX
from acker_redis.spark.protocol.columns import SHARE
from acker_redis.spark.runtime.sessions import is_connect

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_TRACKERS = "_acker_"
"""Prefix of a column in every node that the tracker adds, except its unions and filters."""

_TRACKERS_FILTER = f"Filter NOT (coalesce({SHARE}#"
"""Beginning of the node by which `Tracker.filter` drops rows."""

INDENT = re.compile(r"(?:[: ] {2})*(?:[:+]- )?")
"""Before a node in the text of a plan: three characters for each node that it is below."""

METER = "CollectMetrics"
"""Kind of a meter's node."""

_CACHE = "InMemoryRelation"
_ADAPTIVE, _LAST_STAGE = "AdaptiveSparkPlan", "ResultQueryStage"
"""Nodes above the command of an execution with several stages. The second one is in Spark 4.1 and newer."""

_LIMITS = ("GlobalLimit", "LocalLimit", "Tail")
_CAST = re.compile(r"cast\(([^\s()]+) as [a-z]+(?:\([\d,]+\))?\)")
"""A cast of a column or a constant that Spark added, not the user."""

_MOST_CHARS = 120
_MOST_CHANGES = 3
"""Number of operators named in a message. A longer list helps no reader."""

_GROUP, _JOIN = "tracker.group_by for aggregates", "tracker.join for joins"
_PART = "tracker.filter to keep a part of the rows, or pass fewer messages to the run"
_SETS = "tracker.filter, join or group_by for operations on sets"
_FLAT_MAP = "tracker.flat_map_arrow for functions of record batches"
_CUT = "tracker.checkpoint for checkpoints, files and tables"
_INSTEAD = {
    "Filter": "tracker.filter for where",
    "Join": _JOIN,
    "LateralJoin": _JOIN,
    "NearestByJoin": _JOIN,
    "AsOfJoin": _JOIN,
    "Aggregate": _GROUP,
    "Distinct": _GROUP,
    "Deduplicate": _GROUP,
    "Expand": _GROUP,
    "Pivot": _GROUP,
    **dict.fromkeys((*_LIMITS, "Offset"), _PART),
    "Sample": 'tracker.filter(rows, "rand() < 0.1") for samples',
    "Generate": "tracker.explode or flat_map for several rows from one",
    "Unpivot": "tracker.explode or flat_map for several rows from one",
    "Union": "tracker.union_by_name for unions",
    **dict.fromkeys(("Intersect", "IntersectAll", "Except", "ExceptAll"), _SETS),
    **dict.fromkeys(
        ("MapInArrow", "MapInPandas", "MapPartitions", "FlatMapGroupsInPandas", "FlatMapGroupsInArrow"), _FLAT_MAP
    ),
    **dict.fromkeys(("LogicalRDD", "LogicalRelation", "DataSourceV2Relation"), _CUT),
}
"""Nodes of a plan that may drop or copy rows -> what to use instead."""


@dataclass(frozen=True)
class Change:
    """One of the user's own operators.

    Attributes:
        text: the operator, as printed in Spark's plan.
        below: the tracker's operator whose rows it consumes.
        above: the tracker's operator that consumes its rows.
        instead: what to use instead.
    """

    text: str
    below: str
    above: str
    instead: str

    def __str__(self) -> str:
        return f"{self.text}, between {self.below!r} and {self.above!r}"


def advice(changes: Sequence[Change]) -> str:
    """Return sentences that name the operators that changed the rows, and what to use instead."""
    listed = "; ".join(map(str, changes[:_MOST_CHANGES]))
    more = f" and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
    operators = "this operator does" if len(changes) == 1 else "these operators do"
    instead = "; ".join(dict.fromkeys(change.instead for change in changes[:_MOST_CHANGES]))
    return f"Only the tracker may drop or copy rows, but perhaps {operators}: {listed}{more}. Use {instead}."


def each(sequence: "JavaObject") -> Iterator[Any]:
    """Yield the items of a Scala collection."""
    items = sequence.iterator()
    while items.hasNext():
        yield items.next()


def analyzed_text(frame: DataFrame) -> str:
    """Return the text of a frame's analyzed plan. A client of Spark Connect gets nothing else of it."""
    if is_connect(frame.sparkSession):
        return analyzed_part(str(frame._explain_string(extended=True)))  # type: ignore[operator]  # noqa: SLF001
    return str(frame._jdf.queryExecution().analyzed().toString())  # noqa: SLF001


def analyzed_part(explained: str) -> str:
    """Return the analyzed plan in the text of an extended explain."""
    described = explained.partition("== Analyzed Logical Plan ==\n")[2].partition("\n== Optimized Logical Plan ==")[0]
    return described.partition("\n")[2]  # the first line has the columns


def kinds_in(plan: str) -> Counter[str]:
    """Return the names of the nodes in the text of a plan, and how often each is there."""
    return Counter(INDENT.sub("", line, count=1).split(" ", 1)[0] for line in plan.splitlines() if line)


class Written(NamedTuple):
    """What Spark tells of the files that an execution has written.

    Attributes:
        rows: number of rows in them.
        files: their number.
    """

    rows: int
    files: int


def written_by(query: "JavaObject") -> Written:
    """Return what Spark tells of the files that a command has written. Tasks that ran twice count once."""
    plan = query.executedPlan()
    while (name := plan.nodeName()) == _ADAPTIVE or name.startswith(_LAST_STAGE):
        plan = plan.executedPlan() if name == _ADAPTIVE else plan.plan()
    told = plan.metrics()
    return Written(*(int(told.apply(name).value()) for name in ("numOutputRows", "numFiles")))


def is_cached(query: "JavaObject") -> bool:
    """Return True if an execution read tracked rows from a cache of the user's."""
    below = [query.withCachedData()]
    while below:
        plan = below.pop()
        if plan.nodeName().startswith(_CACHE) and _share(plan) is not None:
            cache = plan.cacheBuilder()
            if not is_of_sink(cache) or _CACHE in cache.cachedPlan().toString():
                return True
        below += each(plan.children())
    return False


def is_of_sink(cache: Any) -> bool:
    """Return True if a sink has cached rows (a CachedRDDBuilder). Then nothing else reads them, and the sink reads all."""
    top = cache.logicalPlan()
    return bool(top.nodeName() == METER and (name := str(top.name())).startswith(PREFIX) and name.endswith(OF_CACHE))


def is_deterministic(frame: DataFrame) -> bool:
    """Return True if a frame of a classic session has the same rows whenever they are computed, as far as Spark knows."""
    return bool(frame._jdf.queryExecution().analyzed().deterministic())  # noqa: SLF001


def changes(query: "JavaObject", meter: str, sink: str) -> list[Change]:
    """Find the user's operators that may have changed rows, from the sink down.

    Args:
        query: the execution.
        meter: name of the sink's meter in its plan.
        sink: name of the sink.
    """
    walk = _Walk(sink)
    walk.from_meter(query.analyzed(), meter)
    return list(dict.fromkeys(walk.changes))  # the path to a frame with two consumers is walked twice


@dataclass
class _Walk:
    sink: str
    changes: list[Change] = field(default_factory=list)

    def from_meter(self, plan: "JavaObject", meter: str) -> bool:
        """Go down to the sink's meter, and on from there. Return True if the meter was below."""
        kind = plan.nodeName()
        if kind == METER and plan.name() == meter:
            self.collect(plan, None, self.sink)
            return True
        is_below = any(self.from_meter(child, meter) for child in each(plan.children()))
        if is_below and kind in _LIMITS:  # the other rows never reached the meter
            self.changes.append(Change(_describe(plan), self.sink, self.sink, _PART))
        return is_below

    def collect(self, plan: "JavaObject", frame: str | None, above: str) -> None:
        """Go down from a node in the plan of an operator.

        Args:
            plan: the node.
            frame: name of the operator.
            above: name of the operator that consumes its rows.
        """
        share = _share(plan)
        text = plan.simpleString(200)
        is_trackers = _TRACKERS in text or text.startswith(_TRACKERS_FILTER) or _TRACKERS in plan.output().toString()
        if share is None and not is_trackers:
            return  # rows that aren't tracked, or not yet
        node = None if share is None else node_in(share.metadata().json())
        if node is not None and frame is not None and node != frame:
            above = frame
        frame = node or frame
        kind = plan.nodeName().replace(" ", "")
        is_half = kind == "LocalLimit" and self.changes and self.changes[-1].text.startswith("GlobalLimit")
        # The tracker's own unions have no equation yet.
        if kind in _INSTEAD and not is_trackers and node is not None and not is_half:
            self.changes.append(Change(_describe(plan), node, above, _INSTEAD[kind]))
        for child in each(plan.children()):
            self.collect(child, frame, above)


def _share(plan: "JavaObject") -> "JavaObject | None":
    """Return the share column in a node's output, or None."""
    output = plan.output()
    if f"{SHARE}#" not in output.toString():
        return None
    return next((column for column in each(output) if column.name() == SHARE), None)


def _describe(plan: "JavaObject") -> str:
    """Return a node as a plan prints it, without the numbers of its columns."""
    text = _CAST.sub(r"\1", re.sub(r"#\d+L?", "", plan.simpleString(8))).strip()
    kind, _, rest = text.partition(" ")
    if rest.startswith("(") and rest.endswith(")"):
        rest = rest[1:-1]
    text = f"{kind} ({rest})" if rest else kind
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}..."
