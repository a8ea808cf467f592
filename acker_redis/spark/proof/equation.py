"""The expected sum of a tracked frame's shares, carried in the metadata of its column `_share`.

    sum of shares  =  a · E  -  sum over meters of b · removed  -  removed before        (modulo 2^61)

E is the sum of the shares of all messages of the emission. Removed is the sum of the shares of the rows that an operator has
dropped or failed, metered at that operator. Removed before is the same for operators whose meters are before a checkpoint.
Spark's operators preserve the metadata of a column, and lose it where they compute another one. The metadata of `_roots` names
the operator that made it, so that no other column passes for it. Both columns have the same metadata, because each object of
Java's costs two calls.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from weakref import WeakKeyDictionary

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from acker_redis.errors import InexactPipelineError, PipelineError
from acker_redis.spark.protocol.columns import ROOTS, SHARE
from acker_redis.spark.protocol.shares import MASK
from acker_redis.spark.runtime import frames

_KEY, _ROOTS_KEY = "acker", "acker_roots"

_known: "WeakKeyDictionary[DataFrame, Equation]" = WeakKeyDictionary()
"""Frame that an operator has made -> its equation, so that Spark isn't asked for the frame's columns."""


@dataclass(frozen=True)
class Equation:
    """The equation of one frame.

    Attributes:
        emission: emission that the frame belongs to. Frames of two emissions don't mix.
        node: operator that made the frame.
        total: a, modulo 2^61.
        removed: meter -> b, modulo 2^61.
        removed_before: sum of the rows removed before checkpoints, modulo 2^61.
        roots_node: operator that made the roots column.
    """

    emission: str
    node: str
    total: int = 1
    removed: Mapping[str, int] = field(default_factory=dict)
    removed_before: int = 0
    roots_node: str = "spout"

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata of both columns: the equation, for the shares, and the operator that made the roots."""
        return {_KEY: json.dumps(asdict(self)), _ROOTS_KEY: self.maker_of_roots}

    def share_column(self, share: str) -> Column:
        """Create a share column from SQL, with the equation, for a select."""
        return F.expr(share).alias(SHARE, metadata=self.metadata)

    @property
    def maker_of_roots(self) -> str:
        """The operator that made the roots column, with its emission."""
        return f"{self.emission} {self.roots_node}"

    def roots_column(self, roots: str) -> Column:
        """Create a roots column from SQL, with the name of the operator that made it, for a select or an aggregate."""
        return F.expr(roots).alias(ROOTS, metadata=self.metadata)

    def without(self, meter: str, node: str) -> "Equation":
        """Derive the equation of the rows that remain after a meter of removed rows."""
        return replace(self, node=node, removed={**self.removed, meter: 1})

    def at(self, node: str) -> "Equation":
        """Derive the same equation for another operator's frame."""
        return replace(self, node=node)

    def with_roots(self) -> "Equation":
        """Derive the same equation for an operator that makes the roots column, too."""
        return replace(self, roots_node=self.node)

    def behind_checkpoint(self, removed: int) -> "Equation":
        """Derive the equation of proven rows, which needs no meters.

        Args:
            removed: result of `Proof.prove`.
        """
        return replace(self, removed={}, removed_before=(self.removed_before + removed) & MASK)

    def scaled(self, weight: int) -> "Equation":
        """Derive the equation of rows whose shares were multiplied."""
        removed = {meter: b * weight & MASK for meter, b in self.removed.items()}
        before = self.removed_before * weight & MASK
        return replace(self, total=self.total * weight & MASK, removed=removed, removed_before=before)

    def plus(self, other: "Equation", node: str) -> "Equation":
        """Derive the equation of both sides' rows, for an operator that makes their roots column."""
        removed = dict(self.removed)
        for meter, b in other.removed.items():
            removed[meter] = (removed.get(meter, 0) + b) & MASK
        total, before = (self.total + other.total) & MASK, (self.removed_before + other.removed_before) & MASK
        return Equation(self.emission, node, total, removed, before, roots_node=node)

    def removed_sum(self, metered: Mapping[str, int]) -> int:
        """Return the weighted total of the sums of removed rows per meter."""
        return sum(b * metered[meter] for meter, b in self.removed.items())

    def expected(self, total: int, metered: Mapping[str, int]) -> int:
        """Compute the expected sum of the rows from E and the sums of removed rows per meter."""
        return (self.total * total - self.removed_sum(metered) - self.removed_before) & MASK


def equation_of(frame: DataFrame, emission: str, operator: str) -> Equation:
    """Read the equation of a tracked frame.

    Raises:
        PipelineError: the frame isn't tracked, or belongs to another emission.
        InexactPipelineError: its shares or roots were not computed by a tracker.
    """
    known = _known.get(frame)
    if known is not None and known.emission == emission:
        return known
    fields = {column.name: column for column in frame.schema.fields}
    for name in fields:
        for own in (SHARE, ROOTS):
            if name.lower() == own and own not in fields:
                raise PipelineError(
                    f"{operator!r}: the column {own} is spelled {name!r}, but Python workers need its exact name. "
                    f"Rename it to {own}."
                )
    if SHARE not in fields:
        raise PipelineError(
            f"{operator!r}: the DataFrame has no column {SHARE}, so it isn't tracked. Derive it from the messages that the "
            "pipeline receives. Keep the column in selects, and use tracker.group_by and tracker.join to combine rows."
        )
    carried = fields[SHARE].metadata.get(_KEY)
    if carried is None:
        raise InexactPipelineError(
            f"{operator!r}: the column {SHARE} was not computed by the tracker, or its rows come from a file or table. Keep "
            "the column as it is. Use tracker.checkpoint to cut a plan, and tracker.group_by, join or union_by_name to "
            "combine rows."
        )
    equation = Equation(**json.loads(carried))
    if equation.emission != emission:
        raise PipelineError(
            f"{operator!r}: the DataFrame comes from another emission. Derive every DataFrame from the messages that the "
            "pipeline receives, inside the pipeline function."
        )
    if ROOTS not in fields:
        raise PipelineError(
            f"{operator!r}: the column {ROOTS} is missing, which the tracker needs to fail messages. Keep it in selects; "
            "Spark reads it only if it is needed."
        )
    if fields[ROOTS].metadata.get(_ROOTS_KEY) != equation.maker_of_roots:
        raise InexactPipelineError(
            f"{operator!r}: the column {ROOTS} was not computed by the tracker, or comes from another frame. Failed rows "
            "would fail other messages, or none. Keep the column as it is, and use tracker.group_by, join or union_by_name "
            "to combine rows."
        )
    return equation


def node_in(metadata: str) -> str | None:
    """Return the operator in a share column's metadata (JSON), or None if it has no equation."""
    carried = json.loads(metadata).get(_KEY)
    return None if carried is None else str(json.loads(carried)["node"])


def note(frame: DataFrame, equation: Equation) -> DataFrame:
    """Remember the equation of a frame that has both of the tracker's columns, with their metadata."""
    _known[frame] = equation
    return frame


def with_equation(frame: DataFrame, equation: Equation) -> DataFrame:
    """Attach an equation to a frame."""
    return note(with_columns(frame, {SHARE: SHARE, ROOTS: ROOTS}, equation), equation)


def with_columns(frame: DataFrame, columns: Mapping[str, str | Column], equation: Equation) -> DataFrame:
    """Add or replace columns. Share and roots, where they are among them, get the equation.

    Created along with other columns, it costs no extra plan.
    """
    return frames.with_columns(frame, columns, equation.metadata, SHARE, ROOTS)


def is_tracked(frame: DataFrame) -> bool:
    """Return True if a frame has a share column, in any case."""
    return any(column.lower() == SHARE for column in frame.columns)
