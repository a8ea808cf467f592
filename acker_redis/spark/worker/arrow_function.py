"""A bolt in a Python worker: rows derived from rows by a function of record batches."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.accumulators import Accumulator

from acker_redis.errors import PipelineError, RowFailedError
from acker_redis.model.arrays import Int64Array
from acker_redis.spark.protocol import shares
from acker_redis.spark.protocol.columns import ARROW_OUT, ARROW_ROOTS, ARROW_SHARE, CHILDLESS, ROOTS, SHARE, STAYS
from acker_redis.spark.worker.failures import Failure, FailureCollector, as_reason
from acker_redis.spark.worker.process import keep_imports


class FlatMapOutput(NamedTuple):
    """What a bolt made of one record batch.

        def double(batch):
            twice = batch.set_column(0, "id", pc.multiply(batch["id"], 2))
            return FlatMapOutput(twice, np.arange(batch.num_rows))

    Attributes:
        rows: output rows, of the columns that the bolt was declared with.
        parents: for each output row the index of the input row it came from, in any order.
        failed: input rows that failed, with the reason, or a `RowFailedError`; their output rows are left out.
    """

    rows: pa.RecordBatch
    parents: Int64Array
    failed: Mapping[int, str | RowFailedError] | None = None


Execute: TypeAlias = Callable[[pa.RecordBatch], FlatMapOutput]


@dataclass(frozen=True)
class FlatMapStep:
    """The function for `mapInArrow`: input rows with share and anchors to output rows with share, anchors and `OUT`.

    The children of a row share its share, and have its anchors. Behind the last row of the partition come the sums of what
    has no children: one row for the input rows that gave none, one for those that failed; the user's columns are null
    there, and the anchors hold their number.

    Attributes:
        component: name of the operator.
        operator: its tag in failures.
        execute: the function.
        schema: the user's output columns.
        failures: where failed rows are reported, once the partition was consumed to its end.
        columns: names that the input columns have here, where Spark gives them others; none: as they are.
    """

    component: str
    operator: str
    execute: Execute
    schema: pa.Schema
    failures: Accumulator[list[Failure]] = field(repr=False)
    columns: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on one partition.

        Raises:
            PipelineError: the function gave rows of other columns, or parents or failed rows that are not there.
        """
        keep_imports()
        collector = FailureCollector(self.operator, self.component, self.failures)
        schema = self._output_schema()
        salt = shares.salt_of(self.component)
        parts = childless = 0
        for given in batches:
            batch = given.rename_columns(list(self.columns)) if self.columns else given
            own, anchors = shares.from_arrow(batch.column(SHARE)), batch.column(ROOTS)
            output = self.execute(batch.drop_columns([SHARE, ROOTS]))
            rows, parents, failed = self._checked(output, batch.num_rows)
            gone = np.ones(batch.num_rows, np.bool_)
            if len(failed):
                reasons = [as_reason(reason) for reason in (output.failed or {}).values()]
                collector.add(own[failed], anchors.take(pa.array(failed)), reasons)
                stays = ~np.isin(parents, failed)
                rows, parents = rows.filter(pa.array(stays)), parents[stays]
                gone[failed] = False
            gone[parents] = False
            parts += shares.total(own[gone])
            childless += int(np.count_nonzero(gone))
            if rows.num_rows:
                children = [
                    pa.array(_children_of(own, parents, salt)),
                    anchors.take(pa.array(parents)).cast(ARROW_ROOTS.type),
                    pa.array(np.full(len(parents), STAYS)),
                ]
                yield pa.RecordBatch.from_arrays([*rows.columns, *children], schema=schema)
        residue = [(CHILDLESS, parts & shares.MASK, childless)] if childless else []
        if (of_failed := collector.residue()) is not None:
            residue.append(of_failed)
        if residue:
            outs, sums, counts = zip(*residue, strict=True)
            nulls = [pa.nulls(len(residue), kind) for kind in self.schema.types]
            anchors = pa.array([[count] for count in counts], ARROW_ROOTS.type)
            yield pa.RecordBatch.from_arrays(
                [*nulls, pa.array(sums, pa.int64()), anchors, pa.array(outs, pa.int64())], schema=schema
            )

    def _output_schema(self) -> pa.Schema:
        """Null in a column of the user's is what the residue has."""
        return pa.schema([*(one.with_nullable(True) for one in self.schema), ARROW_SHARE, ARROW_ROOTS, ARROW_OUT])

    def _checked(self, output: FlatMapOutput, inputs: int) -> tuple[pa.RecordBatch, Int64Array, Int64Array]:
        """Rows of the declared types, parents, and the failed rows."""
        rows = self._conform(output.rows)
        parents = self._rows_of(output.parents, "parents", inputs)
        failed = self._rows_of([*(output.failed or ())], "failed", inputs)
        if len(parents) != rows.num_rows:
            raise PipelineError(
                f"bolt {self.component!r}: {rows.num_rows} output rows but {len(parents)} parents: give one parent per row"
            )
        return rows, parents, failed

    def _conform(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.schema.names != self.schema.names:
            raise PipelineError(
                f"bolt {self.component!r}: rows have columns {rows.schema.names}, its schema says {self.schema.names}"
            )
        return rows if rows.schema.types == self.schema.types else rows.cast(self.schema)

    def _rows_of(self, given: npt.ArrayLike, what: str, inputs: int) -> Int64Array:
        rows = np.asarray(given)
        if len(rows) and rows.dtype.kind not in "iu":
            raise PipelineError(f"bolt {self.component!r}: {what}: expected numbers of input rows, got {rows.dtype}")
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= inputs):
            raise PipelineError(
                f"bolt {self.component!r}: {what} names a row outside the {inputs} rows of its input batch"
            )
        return rows.astype(np.int64)


def _children_of(own: Int64Array, parents: Int64Array, salt: int) -> Int64Array:
    """The share of each output row. The children of one parent may stand anywhere; their order counts."""
    split = shares.split(own, np.bincount(parents, minlength=len(own)), salt)
    if bool((parents[1:] >= parents[:-1]).all()):
        return split
    children = np.empty_like(split)
    children[np.argsort(parents, kind="stable")] = split
    return children
