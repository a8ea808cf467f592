"""Rows that SQL fails: their shares, roots and reasons are all that comes to the Python worker."""

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
    """Make the function for `arrow_udf` that gives each row its `OUT`: 0 if it stays, else the number of the failure.

    Its arguments are share, `ROOTS_AS_TEXT` and reason, and the payload if rows are messages that bring it along; each is
    null where the row stays. The reason decides. The failure is sent when the input has ended.

    Args:
        component: name of the operator.
        operator: its tag in failures.
        failures: takes the failure.
        retry: whether the messages are to be emitted again.
    """

    def fail_where(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:  # Spark reads the annotations
        collector = FailureCollector(operator, component, failures)
        for share, roots, reason, *payload in batches:
            fails = reason.is_valid()
            if fails.true_count:
                failed_shares = shares.from_arrow(share.filter(fails))
                failed_roots = _parse_roots(roots.filter(fails))
                reasons = [Reason(text, retry) for text in reason.filter(fails).to_pylist()]
                collector.add_rows(failed_shares, failed_roots, reasons)
                for payloads in payload:
                    collector.add_payloads(failed_roots.flatten().to_numpy(), payloads.filter(fails).to_pylist())
            yield pa.array(np.where(fails.to_numpy(zero_copy_only=False), collector.number, STAYS), pa.int64())
        collector.send()

    return fail_where


def _parse_roots(texts: pa.StringArray) -> pa.ListArray:
    """Read the arrays that `ROOTS_AS_TEXT` made texts of; null where there is none."""
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    return pc.split_pattern(texts, ",").cast(pa.list_(pa.int64()))
