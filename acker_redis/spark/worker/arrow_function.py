"""flat_map_arrow in a Python worker: derive rows with a function of record batches."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from acker_redis.errors import PipelineError, RowFailedError
from acker_redis.model.arrays import Int64Array
from acker_redis.spark.protocol import shares
from acker_redis.spark.protocol.columns import (
    ARROW_FAILURE,
    ARROW_OUT,
    ARROW_ROOTS,
    ARROW_SHARE,
    CHILDLESS,
    FAILED,
    ROOTS,
    SHARE,
    STAYS,
)
from acker_redis.spark.worker.failures import FailureCollector, as_reason, naming
from acker_redis.spark.worker.process import keep_imports


class FlatMapOutput(NamedTuple):
    """The rows that a flat_map_arrow function derived from one record batch.

        def double(batch):
            twice = batch.set_column(0, "id", pc.multiply(batch["id"], 2))
            return FlatMapOutput(twice, np.arange(batch.num_rows))

    Attributes:
        rows: output rows, with the columns of the operator's schema.
        parents: index of the input row that each output row came from, in any order.
        failed: index of each failed input row -> reason, or a `RowFailedError`. The output rows of failed rows are dropped.
    """

    rows: pa.RecordBatch
    parents: Int64Array
    failed: Mapping[int, str | RowFailedError] | None = None


Execute: TypeAlias = Callable[[pa.RecordBatch], FlatMapOutput]


@dataclass(frozen=True)
class FlatMapStep:
    """Function for `mapInArrow` from rows with share and roots to rows with share, roots, `OUT` and `FAILURE`.

    The children of a row split its share and have its roots. After the last row of the partition come rows that represent
    removed ones: one for the input rows without children, and one for those that failed. Each holds the sum of their shares.
    The user's columns are null in it, and the roots column holds their number.

    Attributes:
        component: name of the operator.
        execute: the user's function.
        schema: the user's output columns.
        max_failure_bytes: limit on the failure of a task.
        columns: names of the input columns if Spark uses other names here; empty if it doesn't.
    """

    component: str
    execute: Execute
    schema: pa.Schema
    max_failure_bytes: int
    columns: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on one partition.

        Raises:
            PipelineError: the function returned rows with other columns, or parents or failed rows that don't exist.
        """
        keep_imports()
        collector = FailureCollector(self.max_failure_bytes)
        schema = self._output_schema()
        salt = shares.salt_of(self.component)
        childless_sum = childless_count = 0
        for spark_batch in batches:
            batch = spark_batch.rename_columns(list(self.columns)) if self.columns else spark_batch
            input_shares, input_roots = shares.from_arrow(batch.column(SHARE)), batch.column(ROOTS)
            with naming(self.component):
                output = self.execute(batch.drop_columns([SHARE, ROOTS]))
            rows, parents, failed = self._checked(output, batch.num_rows)
            is_childless = np.ones(batch.num_rows, np.bool_)
            if len(failed):
                reasons = [as_reason(reason) for reason in (output.failed or {}).values()]
                collector.add_rows(input_shares[failed], input_roots.take(pa.array(failed)), reasons)
                stays = ~np.isin(parents, failed)
                rows, parents = rows.filter(pa.array(stays)), parents[stays]
                is_childless[failed] = False
            is_childless[parents] = False
            childless_sum += shares.total(input_shares[is_childless])
            childless_count += int(np.count_nonzero(is_childless))
            if rows.num_rows:
                tracking = [
                    pa.array(_split_shares(input_shares, parents, salt)),
                    input_roots.take(pa.array(parents)).cast(ARROW_ROOTS.type),
                    pa.array(np.full(len(parents), STAYS)),
                    pa.nulls(len(parents), pa.string()),
                ]
                yield pa.RecordBatch.from_arrays([*rows.columns, *tracking], schema=schema)
        removed: list[tuple[int, int, int, str | None]] = []
        if childless_count:
            removed.append((CHILDLESS, childless_sum & shares.MASK, childless_count, None))
        if (failed_rows := collector.failed_rows()) is not None:
            removed.append((FAILED, *failed_rows))
        if removed:
            outs, sums, counts, failures = zip(*removed, strict=True)
            nulls = [pa.nulls(len(removed), kind) for kind in self.schema.types]
            tracking = [
                pa.array(sums, pa.int64()),
                pa.array([[count] for count in counts], ARROW_ROOTS.type),
                pa.array(outs, pa.int64()),
                pa.array(failures, pa.string()),
            ]
            yield pa.RecordBatch.from_arrays([*nulls, *tracking], schema=schema)

    def _output_schema(self) -> pa.Schema:
        """Return the output schema.

        All user columns are nullable, because they are null in rows that represent removed ones.
        """
        user_columns = (column.with_nullable(True) for column in self.schema)
        return pa.schema([*user_columns, ARROW_SHARE, ARROW_ROOTS, ARROW_OUT, ARROW_FAILURE])

    def _checked(self, output: FlatMapOutput, inputs: int) -> tuple[pa.RecordBatch, Int64Array, Int64Array]:
        """Check an output. Return its rows in the declared types, their parents, and the failed rows."""
        rows = self._conform(output.rows)
        parents = self._row_numbers(output.parents, "parents", inputs)
        failed = self._row_numbers([*(output.failed or ())], "failed", inputs)
        if len(parents) != rows.num_rows:
            raise PipelineError(
                f"flat_map_arrow {self.component!r}: {rows.num_rows} output rows have {len(parents)} parents. Return "
                "one parent per output row."
            )
        return rows, parents, failed

    def _conform(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.schema.names != self.schema.names:
            raise PipelineError(
                f"flat_map_arrow {self.component!r}: the output rows have columns {rows.schema.names}, but the schema has "
                f"{self.schema.names}. Return the columns of the schema, in its order."
            )
        return rows if rows.schema.types == self.schema.types else rows.cast(self.schema)

    def _row_numbers(self, numbers: npt.ArrayLike, attribute: str, inputs: int) -> Int64Array:
        rows = np.asarray(numbers)
        if len(rows) and rows.dtype.kind not in "iu":
            raise PipelineError(
                f"flat_map_arrow {self.component!r}: {attribute} has values of type {rows.dtype}. Return indexes of input "
                "rows, which are integers."
            )
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= inputs):
            raise PipelineError(
                f"flat_map_arrow {self.component!r}: {attribute} names a row outside the {inputs} rows of the input batch. "
                "Count rows from 0 in each batch."
            )
        return rows.astype(np.int64)


def _split_shares(input_shares: Int64Array, parents: Int64Array, salt: int) -> Int64Array:
    """Compute the share of each output row.

    The children of one parent may be anywhere, but their order counts.
    """
    split = shares.split(input_shares, np.bincount(parents, minlength=len(input_shares)), salt)
    if bool((parents[1:] >= parents[:-1]).all()):
        return split
    children = np.empty_like(split)
    children[np.argsort(parents, kind="stable")] = split
    return children
