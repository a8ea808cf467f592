"""Names of the tracker's columns, shared by the driver and the Python workers."""

import pyarrow as pa

SHARE = "_share"
"""bigint, 61 bits, null counts as 0: the row's part of the emission, see `shares`."""

ROOTS = "_roots"
"""array<bigint>: the roots that the row came from; null or empty if there are none."""

OUT = "_acker_out"
"""bigint, made by Python operators: the kind of the row.

`STAYS` marks an output row. Any other row represents removed rows and holds the sum of their shares; it is metered and then
dropped right after the operator. `CHILDLESS` represents the input rows without children, and `FAILED` the rows that failed,
which its `FAILURE` names.
"""

STAYS = 0
CHILDLESS = 1
FAILED = 2

FAILURE = "_acker_failure"
"""string, made by Python operators: the messages of the failed rows and the reasons, see `worker.failures`; else null."""

ROWS = "rows"
"""bigint: number of rows that a sink in Python has consumed."""

ANCHORS = "_acker_anchors"
"""array<bigint>: root, edge, root, edge ...: the anchors of an exported row, which other applications ack."""

VALUE = "value"
"""Name of the column that `explode` makes from an array of simple values."""

TRACKING = (SHARE, ROOTS)
"""Columns of every tracked frame."""

ARROW_SHARE = pa.field(SHARE, pa.int64())
ARROW_ROOTS = pa.field(ROOTS, pa.list_(pa.field("element", pa.int64())))
ARROW_OUT = pa.field(OUT, pa.int64())
ARROW_FAILURE = pa.field(FAILURE, pa.string())
ARROW_ROWS = pa.field(ROWS, pa.int64())
ARROW_ANCHORS = pa.field(ANCHORS, pa.list_(pa.field("element", pa.int64())))


def is_own(column: str) -> bool:
    """Return True if a column name, in any case, is reserved for the tracker."""
    return column.lower() in (SHARE, ROOTS) or column.lower().startswith("_acker_")
