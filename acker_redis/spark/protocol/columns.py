"""Names of the columns that the tracker adds to DataFrames. Driver and Python workers agree on them here."""

import pyarrow as pa

SHARE = "_share"
"""bigint, 61 bits, null as 0: the row's part of the emission, see `shares`."""

ROOTS = "_roots"
"""array<bigint>: the roots that the row came from; null or empty for none."""

OUT = "_acker_out"
"""bigint, made by Python operators: what the row is.

`STAYS`: a row of theirs. Others are dropped above the operator, after their shares were metered: `CHILDLESS`, the sum of the
input rows that gave none; more than that, the sum of the rows that failed: the number of the report that names them.
"""

STAYS = 0
CHILDLESS = 1

ROWS = "rows"
"""bigint: the rows that a step which ends at a sink has consumed."""

PAIRS = "_acker_pairs"
"""array<bigint>: root, share, root, share ...: what an exported row has to be acked with."""

VALUE = "value"
"""Column that an array of simple values is exploded to."""

TRACKING = (SHARE, ROOTS)
"""What every tracked frame has."""

ARROW_SHARE = pa.field(SHARE, pa.int64())
ARROW_ROOTS = pa.field(ROOTS, pa.list_(pa.field("element", pa.int64())))
ARROW_OUT = pa.field(OUT, pa.int64())
ARROW_ROWS = pa.field(ROWS, pa.int64())
ARROW_PAIRS = pa.field(PAIRS, pa.list_(pa.field("element", pa.int64())))


def is_own(column: str) -> bool:
    """Whether a name, in any case, is one of the tracker's: no column of the user's may have it."""
    return column.lower() in (SHARE, ROOTS) or column.lower().startswith("_acker_")
