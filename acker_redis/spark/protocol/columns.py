"""Names of the columns that the tracker adds to DataFrames. Driver and Python workers agree on them here."""

import pyarrow as pa

SHARE = "_share"
"""bigint, 61 bits, null as 0: the row's part of the emission, see `shares`."""

ROOTS = "_roots"
"""array<bigint>: the roots that the row came from; null or empty for none."""

OUT = "_acker_out"
"""bigint, made by Python operators: what the row is.

`STAYS`: a row of theirs. Others stand for rows that were removed, with the sum of their shares, and are dropped above the
operator, after they were metered. `CHILDLESS`: for the input rows without children. A greater number: for the rows that
failed; it is the number of the failure that names them.
"""

STAYS = 0
CHILDLESS = 1

ROWS = "rows"
"""bigint: how many rows a sink in Python has consumed."""

ANCHORS = "_acker_anchors"
"""array<bigint>: root, edge, root, edge ...: the anchors of an exported row, which other applications ack."""

VALUE = "value"
"""Column that an array of simple values is exploded to."""

TRACKING = (SHARE, ROOTS)
"""What every tracked frame has."""

ARROW_SHARE = pa.field(SHARE, pa.int64())
ARROW_ROOTS = pa.field(ROOTS, pa.list_(pa.field("element", pa.int64())))
ARROW_OUT = pa.field(OUT, pa.int64())
ARROW_ROWS = pa.field(ROWS, pa.int64())
ARROW_ANCHORS = pa.field(ANCHORS, pa.list_(pa.field("element", pa.int64())))


def is_own(column: str) -> bool:
    """Whether a name, in any case, is one of the tracker's: no column of the user's may have it."""
    return column.lower() in (SHARE, ROOTS) or column.lower().startswith("_acker_")
