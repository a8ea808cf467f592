"""What the shares of a tracked frame must sum to, carried in the metadata of its column `_share`.

    sum of shares  =  a · E  -  sum over residues of b · residue  -  known        (modulo 2^61)

E is the sum of all messages' shares of the emission; a residue is what an operator dropped, metered where it did; known is
residue of which the meters are behind a checkpoint. Spark's operators hand metadata on with a column, and lose it where they
compute another. The column `_roots` carries which operator made it, so that no other one is taken for it.
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
        residues: meter -> b, modulo 2^61.
        known: residue behind checkpoints, modulo 2^61.
        anchors: the operator that made the column of anchors.
    """

    emission: str
    node: str
    total: int = 1
    residues: Mapping[str, int] = field(default_factory=dict)
    known: int = 0
    anchors: str = "spout"

    @property
    def metadata(self) -> dict[str, str]:
        """What the column of shares carries of it."""
        return {_KEY: json.dumps(asdict(self))}

    def column(self, share: str) -> Column:
        """A column of shares, in SQL, that says what its rows must sum to; made along with others, it costs no plan."""
        return F.expr(share).alias(SHARE, metadata=self.metadata)

    @property
    def anchors_metadata(self) -> dict[str, str]:
        """What the column of anchors carries of it."""
        return {_KEY: f"{self.emission} {self.anchors}"}

    def roots(self, anchors: str) -> Column:
        """A column of anchors, in SQL, that says who made it."""
        return F.expr(anchors).alias(ROOTS, metadata=self.anchors_metadata)

    def dropping(self, meter: str, node: str) -> "Equation":
        """The equation of what is left behind a meter of residue."""
        return replace(self, node=node, residues={**self.residues, meter: 1})

    def at(self, node: str) -> "Equation":
        """The same, for another operator's frame."""
        return replace(self, node=node)

    def anchored(self) -> "Equation":
        """The same, whose operator makes the anchors, too."""
        return replace(self, anchors=self.node)

    def weighed(self, weight: int) -> "Equation":
        """The equation of rows whose shares were multiplied."""
        residues = {meter: b * weight & MASK for meter, b in self.residues.items()}
        return replace(self, total=self.total * weight & MASK, residues=residues, known=self.known * weight & MASK)

    def plus(self, other: "Equation", node: str) -> "Equation":
        """The equation of the rows of both, by an operator that makes their anchors."""
        residues = dict(self.residues)
        for meter, b in other.residues.items():
            residues[meter] = (residues.get(meter, 0) + b) & MASK
        total, known = (self.total + other.total) & MASK, (self.known + other.known) & MASK
        return Equation(self.emission, node, total, residues, known, anchors=node)

    def expected(self, total: int, residues: Mapping[str, int]) -> int:
        """What the rows must sum to, given E and the residues that were metered."""
        gone = sum(b * residues[meter] for meter, b in self.residues.items())
        return (self.total * total - gone - self.known) & MASK


def equation_of(frame: DataFrame, emission: str, operator: str) -> Equation:
    """The equation of a tracked frame.

    Raises:
        PipelineError: the frame isn't tracked, or by another emission's tracker.
        NotExactError: its shares or anchors were computed by something else than a tracker.
    """
    fields = {found.name: found for found in frame.schema.fields}
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
            "tracker's group and join where rows are aggregated, or begin with the messages that the pipeline is given"
        )
    kept = fields[SHARE].metadata.get(_KEY)
    if kept is None:
        raise NotExactError(
            f"{operator!r}: the column {SHARE} was computed by something else than the tracker, or its rows come from a file "
            "or table: keep the column as it is; use tracker.checkpoint to cut a plan, and tracker.group_by, join or union "
            "to combine rows"
        )
    equation = Equation(**json.loads(kept))
    if equation.emission != emission:
        raise PipelineError(
            f"{operator!r}: the DataFrame belongs to another emission: make what a pipeline writes of the messages it is "
            "given, anew each time it is called"
        )
    if ROOTS not in fields:
        raise PipelineError(
            f"{operator!r}: the column {ROOTS} is missing, by which the tracker fails messages: keep it in selects; Spark "
            "reads it only where somebody needs it"
        )
    if fields[ROOTS].metadata.get(_KEY) != equation.anchors_metadata[_KEY]:
        raise NotExactError(
            f"{operator!r}: the column {ROOTS} was computed by something else than the tracker, or comes from another "
            "frame, so rows that fail would fail other messages, or none: keep the column as it is; use "
            "tracker.group_by, join "
            "or union to combine rows"
        )
    return equation


def node_in(metadata: str) -> str | None:
    """The operator named in the metadata of a column of shares, as JSON; None: there is no equation in it."""
    kept = json.loads(metadata).get(_KEY)
    return None if kept is None else str(json.loads(kept)["node"])


def with_equation(frame: DataFrame, equation: Equation) -> DataFrame:
    """The frame, which says what its rows must sum to."""
    return frame.withColumns({SHARE: equation.column(SHARE), ROOTS: equation.roots(ROOTS)})


def is_tracked(frame: DataFrame) -> bool:
    """Whether it has a column of shares, in any case."""
    return any(column.lower() == SHARE for column in frame.columns)
