"""A bolt in a Python worker: rows derived from rows by a function of record batches."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.accumulators import Accumulator

from acker_redis.errors import FailedError, PipelineError
from acker_redis.model.arrays import Int64Array
from acker_redis.spark.protocol import shares
from acker_redis.spark.protocol.columns import ANCHORS, ARROW_ANCHORS, ARROW_EDGE, ARROW_OUT, CHILDLESS, EDGE, STAYS
from acker_redis.spark.worker.failures import Failures, Report, as_reason
from acker_redis.spark.worker.process import keep_imports


class BoltOutput(NamedTuple):
    """What a bolt made of one record batch.

        def double(batch):
            twice = batch.set_column(0, "id", pc.multiply(batch["id"], 2))
            return BoltOutput(twice, np.arange(batch.num_rows))

    Attributes:
        rows: output rows, of the columns that the bolt was declared with.
        parents: for each output row the index of the input row it came from, in any order.
        failed: input rows that failed, with the reason, or a `FailedError`; their output rows are left out.
    """

    rows: pa.RecordBatch
    parents: Int64Array
    failed: Mapping[int, str | FailedError] | None = None


Execute: TypeAlias = Callable[[pa.RecordBatch], BoltOutput]


@dataclass(frozen=True)
class BoltStep:
    """The function for `mapInArrow`: input rows with edge and anchors to output rows with edge, anchors and `OUT`.

    The children of a row share its edge, and have its anchors. Behind the last row of the partition come the sums of what
    has no children: one row for the input rows that gave none, one for those that failed; the user's columns are null
    there, and the anchors hold their number.

    Attributes:
        stage: name of the operator.
        operator: its tag in reports.
        execute: the function.
        schema: the user's output columns.
        reports: where failed rows are reported, once the partition was consumed to its end.
        columns: names that the input columns have here, where Spark gives them others; none: as they are.
    """

    stage: str
    operator: str
    execute: Execute
    schema: pa.Schema
    reports: Accumulator[list[Report]] = field(repr=False)
    columns: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on one partition.

        Raises:
            PipelineError: the function gave rows of other columns, or parents or failed rows that are not there.
        """
        keep_imports()
        failures = Failures(self.operator, self.stage, self.reports)
        schema = self._output_schema()
        salt = shares.salt_of(self.stage)
        parts = childless = 0
        for given in batches:
            batch = given.rename_columns(list(self.columns)) if self.columns else given
            own, anchors = shares.from_arrow(batch.column(EDGE)), batch.column(ANCHORS)
            output = self.execute(batch.drop_columns([EDGE, ANCHORS]))
            rows, parents, failed = self._checked(output, batch.num_rows)
            gone = np.ones(batch.num_rows, np.bool_)
            if len(failed):
                reasons = [as_reason(reason) for reason in (output.failed or {}).values()]
                failures.add(own[failed], anchors.take(pa.array(failed)), reasons)
                stays = ~np.isin(parents, failed)
                rows, parents = rows.filter(pa.array(stays)), parents[stays]
                gone[failed] = False
            gone[parents] = False
            parts += shares.total(own[gone])
            childless += int(np.count_nonzero(gone))
            if rows.num_rows:
                children = [
                    pa.array(_children_of(own, parents, salt)),
                    anchors.take(pa.array(parents)).cast(ARROW_ANCHORS.type),
                    pa.array(np.full(len(parents), STAYS)),
                ]
                yield pa.RecordBatch.from_arrays([*rows.columns, *children], schema=schema)
        residue = [(CHILDLESS, parts & shares.MASK, childless)] if childless else []
        if (of_failed := failures.residue()) is not None:
            residue.append(of_failed)
        if residue:
            outs, sums, counts = zip(*residue, strict=True)
            nulls = [pa.nulls(len(residue), kind) for kind in self.schema.types]
            anchors = pa.array([[count] for count in counts], ARROW_ANCHORS.type)
            yield pa.RecordBatch.from_arrays(
                [*nulls, pa.array(sums, pa.int64()), anchors, pa.array(outs, pa.int64())], schema=schema
            )

    def _output_schema(self) -> pa.Schema:
        """Null in a column of the user's is what the residue has."""
        return pa.schema([*(one.with_nullable(True) for one in self.schema), ARROW_EDGE, ARROW_ANCHORS, ARROW_OUT])

    def _checked(self, output: BoltOutput, inputs: int) -> tuple[pa.RecordBatch, Int64Array, Int64Array]:
        """Rows of the declared types, parents, and the failed rows."""
        rows = self._conform(output.rows)
        parents = self._rows_of(output.parents, "parents", inputs)
        failed = self._rows_of([*(output.failed or ())], "failed", inputs)
        if len(parents) != rows.num_rows:
            raise PipelineError(
                f"bolt {self.stage!r}: {rows.num_rows} output rows but {len(parents)} parents: give one parent per row"
            )
        return rows, parents, failed

    def _conform(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.schema.names != self.schema.names:
            raise PipelineError(
                f"bolt {self.stage!r}: rows have columns {rows.schema.names}, its schema says {self.schema.names}"
            )
        return rows if rows.schema.types == self.schema.types else rows.cast(self.schema)

    def _rows_of(self, given: npt.ArrayLike, what: str, inputs: int) -> Int64Array:
        rows = np.asarray(given)
        if len(rows) and rows.dtype.kind not in "iu":
            raise PipelineError(f"bolt {self.stage!r}: {what}: expected numbers of input rows, got {rows.dtype}")
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= inputs):
            raise PipelineError(f"bolt {self.stage!r}: {what} names a row outside the {inputs} rows of its input batch")
        return rows.astype(np.int64)


def _children_of(own: Int64Array, parents: Int64Array, salt: int) -> Int64Array:
    """The edge of each output row. The children of one parent may stand anywhere; their order counts."""
    split = shares.split(own, np.bincount(parents, minlength=len(own)), salt)
    if bool((parents[1:] >= parents[:-1]).all()):
        return split
    children = np.empty_like(split)
    children[np.argsort(parents, kind="stable")] = split
    return children
