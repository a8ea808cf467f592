"""Fail rows that SQL selects. Only their shares, roots and reasons reach the Python worker."""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.accumulators import Accumulator

from acker_redis.spark.protocol import shares
from acker_redis.spark.protocol.columns import ROOTS, STAYS
from acker_redis.spark.worker.failures import Failure, FailureCollector, Reason

ROOTS_AS_TEXT = f"array_join({ROOTS}, ',', '0')"
"""SQL for the roots of a row as a text. PySpark spends far more on an array per row, also for rows that don't fail."""


def failing(
    component: str, operator: str, failures: Accumulator[list[Failure]], *, retry: bool
) -> Callable[[Iterator[tuple[pa.Array, ...]]], Iterator[pa.Array]]:
    """Return a function for `arrow_udf` that computes `OUT`: `STAYS`, or the number of the failure.

    Its arguments are share, `ROOTS_AS_TEXT`, reason, and the payload if the rows are messages with one. All are null in a row
    that stays; the reason decides. The failure is sent at the end of the input.

    Args:
        component: name of the operator.
        operator: tag of the operator in failures.
        failures: accumulator for the failure.
        retry: whether to emit the messages again.
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
    """Parse the texts that `ROOTS_AS_TEXT` made of arrays; null if there was no array."""
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    return pc.split_pattern(texts, ",").cast(pa.list_(pa.int64()))
