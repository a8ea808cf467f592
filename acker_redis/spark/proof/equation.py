"""What the shares of a tracked frame must sum to, carried in the metadata of its column `_share`.

    sum of shares  =  a · E  -  sum over meters of b · removed  -  removed before        (modulo 2^61)

E is the sum of the shares of all messages of the emission. Removed is the sum of the shares of the rows that an operator has
dropped or failed, metered there; removed before is that of operators whose meters are behind a checkpoint. Spark's operators
hand metadata on with a column, and lose it where they compute another. The column `_roots` carries which operator made it,
so that no other column is taken for it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from acker_redis.errors import NotExactError, PipelineError
from acker_redis.spark.protocol.columns import ROOTS, SHARE
from acker_redis.spark.protocol.shares import MASK

_KEY = "acker"


@dataclass(frozen=True)
class Equation:
    """The equation of one frame.

    Attributes:
        emission: whose frames these are; those of two emissions don't mix.
        node: the operator that made the frame.
        total: a, modulo 2^61.
        removed: meter -> b, modulo 2^61.
        removed_before: the sum behind checkpoints, modulo 2^61.
        roots_node: the operator that made the roots column.
    """

    emission: str
    node: str
    total: int = 1
    removed: Mapping[str, int] = field(default_factory=dict)
    removed_before: int = 0
    roots_node: str = "spout"

    @property
    def metadata(self) -> dict[str, str]:
        """The equation as metadata of the share column."""
        return {_KEY: json.dumps(asdict(self))}

    def share_column(self, share: str) -> Column:
        """Make a share column, in SQL, that carries the equation; made along with others, it costs no plan."""
        return F.expr(share).alias(SHARE, metadata=self.metadata)

    @property
    def roots_metadata(self) -> dict[str, str]:
        """The operator that made the roots column, as metadata of it."""
        return {_KEY: f"{self.emission} {self.roots_node}"}

    def roots_column(self, roots: str) -> Column:
        """Make a roots column, in SQL, that carries which operator made it."""
        return F.expr(roots).alias(ROOTS, metadata=self.roots_metadata)

    def without(self, meter: str, node: str) -> "Equation":
        """Derive the equation of the rows that are left behind a meter of removed rows."""
        return replace(self, node=node, removed={**self.removed, meter: 1})

    def at(self, node: str) -> "Equation":
        """Derive the same equation, for another operator's frame."""
        return replace(self, node=node)

    def with_roots(self) -> "Equation":
        """Derive the same equation, where its operator makes the roots column, too."""
        return replace(self, roots_node=self.node)

    def behind_checkpoint(self, removed: int) -> "Equation":
        """Derive the equation of rows that are proven, given the sum that `Proof.prove` returned: it needs no meters."""
        return replace(self, removed={}, removed_before=(self.removed_before + removed) & MASK)

    def scaled(self, weight: int) -> "Equation":
        """Derive the equation of rows whose shares were multiplied."""
        removed = {meter: b * weight & MASK for meter, b in self.removed.items()}
        before = self.removed_before * weight & MASK
        return replace(self, total=self.total * weight & MASK, removed=removed, removed_before=before)

    def plus(self, other: "Equation", node: str) -> "Equation":
        """Derive the equation of the rows of both, by an operator that makes their roots column."""
        removed = dict(self.removed)
        for meter, b in other.removed.items():
            removed[meter] = (removed.get(meter, 0) + b) & MASK
        total, before = (self.total + other.total) & MASK, (self.removed_before + other.removed_before) & MASK
        return Equation(self.emission, node, total, removed, before, roots_node=node)

    def removed_sum(self, metered: Mapping[str, int]) -> int:
        """Weigh the sums of removed rows, by meter, and add them up."""
        return sum(b * metered[meter] for meter, b in self.removed.items())

    def expected(self, total: int, metered: Mapping[str, int]) -> int:
        """Compute what the rows must sum to, given E and the sums of removed rows by meter."""
        return (self.total * total - self.removed_sum(metered) - self.removed_before) & MASK


def equation_of(frame: DataFrame, emission: str, operator: str) -> Equation:
    """Read the equation of a tracked frame.

    Raises:
        PipelineError: the frame isn't tracked, or by another emission's tracker.
        NotExactError: its shares or roots were computed by something else than a tracker.
    """
    fields = {column.name: column for column in frame.schema.fields}
    for name in fields:
        for own in (SHARE, ROOTS):
            if name.lower() == own and own not in fields:
                raise PipelineError(
                    f"{operator!r}: the column {own} is spelled {name!r}, and Python workers know it by its name only: "
                    f"rename it to {own}"
                )
    if SHARE not in fields:
        raise PipelineError(
            f"{operator!r}: the DataFrame has no column {SHARE}, so it isn't tracked: keep the column in selects, use the "
            "tracker's group_by and join where rows are aggregated, or begin with the messages that the pipeline is given"
        )
    carried = fields[SHARE].metadata.get(_KEY)
    if carried is None:
        raise NotExactError(
            f"{operator!r}: the column {SHARE} was computed by something else than the tracker, or its rows come from a file "
            "or table: keep the column as it is; use tracker.checkpoint to cut a plan, and tracker.group_by, join or "
            "union_by_name to combine rows"
        )
    equation = Equation(**json.loads(carried))
    if equation.emission != emission:
        raise PipelineError(
            f"{operator!r}: the DataFrame belongs to another emission: make what a pipeline writes of the messages that it is "
            "given, each time it is called"
        )
    if ROOTS not in fields:
        raise PipelineError(
            f"{operator!r}: the column {ROOTS} is missing, by which the tracker fails messages: keep it in selects; Spark "
            "reads it only where it is needed"
        )
    if fields[ROOTS].metadata.get(_KEY) != equation.roots_metadata[_KEY]:
        raise NotExactError(
            f"{operator!r}: the column {ROOTS} was computed by something else than the tracker, or comes from another "
            "frame, so rows that fail would fail other messages, or none: keep the column as it is; use tracker.group_by, "
            "join or union_by_name to combine rows"
        )
    return equation


def node_in(metadata: str) -> str | None:
    """Read the operator in the metadata of a share column, which is JSON; None: there is no equation in it."""
    carried = json.loads(metadata).get(_KEY)
    return None if carried is None else str(json.loads(carried)["node"])


def with_equation(frame: DataFrame, equation: Equation) -> DataFrame:
    """Attach an equation to a frame."""
    return frame.withColumns({SHARE: equation.share_column(SHARE), ROOTS: equation.roots_column(ROOTS)})


def is_tracked(frame: DataFrame) -> bool:
    """Tell whether a frame has a share column, in any case."""
    return any(column.lower() == SHARE for column in frame.columns)
