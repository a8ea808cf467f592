"""Rows that SQL fails: their shares, anchors and reasons are all that comes to the Python worker."""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.accumulators import Accumulator

from acker_redis.spark.protocol import shares
from acker_redis.spark.protocol.columns import ROOTS, STAYS
from acker_redis.spark.worker.failures import Failure, FailureCollector, Reason

ROOTS_AS_TEXT = f"array_join({ROOTS}, ',', '0')"
"""The roots of a row in SQL, as a text: an array costs PySpark twenty times as much per row, in those that stay, too."""


def failing(
    component: str, operator: str, failures: Accumulator[list[Failure]], *, retry: bool
) -> Callable[[Iterator[tuple[pa.Array, ...]]], Iterator[pa.Array]]:
    """The function for `arrow_udf` that gives each row its `OUT`: 0 if it stays, else the number of the failure.

    Its arguments are share, `ROOTS` and reason, and the payload if rows are messages and bring it along; each is null where
    the row stays. The reason is what decides. The report is sent
    when the input has ended.

    Args:
        component: name of the operator.
        operator: its tag in failures.
        failures: where the failure goes.
        retry: whether the messages are to be emitted again.
    """

    def fail_where(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:  # Spark reads the annotations
        collector = FailureCollector(operator, component, failures)
        for share, roots, reason, *payload in batches:
            fails = reason.is_valid()
            if fails.true_count:
                own = shares.from_arrow(share.filter(fails))
                reasons = [Reason(text, retry) for text in reason.filter(fails).to_pylist()]
                anchors = _roots(roots.filter(fails))
                collector.add(own, anchors, reasons)
                for brought in payload:
                    collector.bring(anchors.flatten().to_numpy(), brought.filter(fails).to_pylist())
            yield pa.array(np.where(fails.to_numpy(zero_copy_only=False), collector.number, STAYS), pa.int64())
        collector.residue()

    return fail_where


def _roots(roots: pa.StringArray) -> pa.ListArray:
    """The arrays that `ROOTS` made texts of; null where there is none."""
    some = pc.if_else(pc.equal(roots, ""), pa.scalar(None, pa.string()), roots)
    return pc.split_pattern(some, ",").cast(pa.list_(pa.int64()))
