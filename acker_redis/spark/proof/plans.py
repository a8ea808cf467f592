"""Spark's plans of an execution, read where a proof has failed: what the user's own operators did between the tracker's."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from py4j.java_gateway import JavaObject

from acker_redis.spark.proof.equation import node_in
from acker_redis.spark.protocol.columns import SHARE

_OURS = "_acker_"
"""Begins a column in every node that the tracker adds, but for its unions."""

_METER = "CollectMetrics"
_LIMITS = ("GlobalLimit", "LocalLimit", "Tail")
_CAST = re.compile(r"cast\(([^\s()]+) as [a-z]+(?:\([\d,]+\))?\)")
"""Of a column or a constant: Spark's doing, and not what the user wrote."""

_MOST_CHARS = 120
_MOST = 3
"""Operators that are named; a longer list helps nobody."""

_GROUP, _JOIN = "tracker.group_by for aggregates", "tracker.join for joins"
_PART = "tracker.filter for what takes a part of the rows, or give the run fewer messages"
_SETS = "tracker.filter, join or group for operations on sets"
_BOLT = "tracker.flat_map_arrow for functions of record batches"
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
    "Generate": "tracker.explode or a bolt for several rows of one",
    "Unpivot": "tracker.explode or a bolt for several rows of one",
    "Union": "tracker.union_by_name for unions",
    **dict.fromkeys(("Intersect", "IntersectAll", "Except", "ExceptAll"), _SETS),
    **dict.fromkeys(
        ("MapInArrow", "MapInPandas", "MapPartitions", "FlatMapGroupsInPandas", "FlatMapGroupsInArrow"), _BOLT
    ),
    **dict.fromkeys(("LogicalRDD", "LogicalRelation", "DataSourceV2Relation"), _CUT),
}
"""Nodes of a plan that may drop or copy rows -> what to use."""


@dataclass(frozen=True)
class Change:
    """An operator of the user's.

    Attributes:
        what: it is, as Spark's plan has it.
        below: the tracker's operator whose rows it takes.
        above: the one that takes its rows.
        instead: what to use.
    """

    what: str
    below: str
    above: str
    instead: str

    def __str__(self) -> str:
        return f"{self.what}, between {self.below!r} and {self.above!r}"


def advice(changes: Sequence[Change]) -> str:
    """What changed the rows, and what to use instead."""
    told = "; ".join(map(str, changes[:_MOST]))
    more = f" and {len(changes) - _MOST} more" if len(changes) > _MOST else ""
    verb = "may drop or copy" if len(changes) == 1 else "each may drop or copy"
    instead = "; ".join(dict.fromkeys(change.instead for change in changes[:_MOST]))
    return f"{told}{more} {verb} rows where only the tracker may: use {instead}."


def each(sequence: JavaObject) -> Iterator[Any]:
    """The items of a Scala collection."""
    items = sequence.iterator()
    while items.hasNext():
        yield items.next()


def is_cached(query: JavaObject) -> bool:
    """Whether an execution read tracked rows from a cache."""
    below = [query.withCachedData()]
    while below:
        plan = below.pop()
        if plan.nodeName().startswith("InMemoryRelation") and _share(plan) is not None:
            return True
        below += each(plan.children())
    return False


def changes(query: JavaObject, meter: str, sink: str) -> list[Change]:
    """The user's operators that may have dropped or copied rows in an execution, from the sink down.

    Args:
        query: the execution.
        meter: of the sink, in its plan.
        sink: its name.
    """
    walk = _Walk(sink)
    walk.find(query.analyzed(), meter)
    return list(dict.fromkeys(walk.found))  # the way to a frame that has two consumers comes twice


@dataclass
class _Walk:
    sink: str
    found: list[Change] = field(default_factory=list)

    def find(self, plan: JavaObject, meter: str) -> bool:
        """Go down to the sink's meter, and on from there."""
        kind = plan.nodeName()
        if kind == _METER and plan.name() == meter:
            self.below(plan, None, self.sink)
            return True
        is_there = any(self.find(child, meter) for child in each(plan.children()))
        if is_there and kind in _LIMITS:  # the rest of the rows never came to the meter
            self.found.append(Change(_told(plan), self.sink, self.sink, _PART))
        return is_there

    def below(self, plan: JavaObject, here: str | None, above: str) -> None:
        """Go down from a node of the tracker's frame `here`, which `above` takes."""
        share = _share(plan)
        text = plan.simpleString(200)
        is_ours = _OURS in text or _OURS in plan.output().toString()
        if share is None and not is_ours:
            return  # rows that aren't tracked, or not yet
        node = None if share is None else node_in(share.metadata().json())
        if node is not None and here is not None and node != here:
            above = here
        here = node or here
        kind = plan.nodeName().replace(" ", "")
        is_half = kind == "LocalLimit" and self.found and self.found[-1].what.startswith("GlobalLimit")
        if kind in _INSTEAD and not is_ours and node is not None and not is_half:  # our unions have no equation yet
            self.found.append(Change(_told(plan), node, above, _INSTEAD[kind]))
        for child in each(plan.children()):
            self.below(child, here, above)


def _share(plan: JavaObject) -> JavaObject | None:
    """The column of shares among those that a node gives."""
    output = plan.output()
    if f"{SHARE}#" not in output.toString():
        return None
    return next((one for one in each(output) if one.name() == SHARE), None)


def _told(plan: JavaObject) -> str:
    """A node as a plan prints it, without the numbers of its columns."""
    text = _CAST.sub(r"\1", re.sub(r"#\d+L?", "", plan.simpleString(8))).strip()
    kind, _, rest = text.partition(" ")
    if rest.startswith("(") and rest.endswith(")"):
        rest = rest[1:-1]
    text = f"{kind} ({rest})" if rest else kind
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}..."
