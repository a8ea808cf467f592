"""The tracker of one emission: operators that keep the sum of shares, and sinks that prove it.

Spark's own operators are allowed in between; `docs/guides/operators.md` says of each whether it keeps the sum. Spark may
evaluate a frame once or five times: that changes nothing in the ledger, as the driver closes the roots when the pipeline has
returned. Only an export acks from the workers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, DataFrameWriter
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import LongType, StructField, StructType

from acker_redis.errors import PipelineError
from acker_redis.spark.operators import groups, joins, rows, tracking
from acker_redis.spark.operators.map_in_arrow import map_in_arrow
from acker_redis.spark.proof.equation import Equation, is_tracked, with_equation
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.proof.received_failures import failures_accumulator
from acker_redis.spark.protocol import anchor_codec, arguments, shares
from acker_redis.spark.protocol.columns import OUT, ROOTS, SHARE, TRACKING
from acker_redis.spark.sinks import checkpoints, exports, partitions, writers
from acker_redis.spark.sinks.exports import Origin
from acker_redis.spark.sinks.output_modes import Outputs
from acker_redis.spark.worker.arrow_function import Execute, FlatMapOutput, FlatMapStep
from acker_redis.spark.worker.fail_where import ROOTS_AS_TEXT, failing
from acker_redis.spark.worker.failures import NoRetry, OnError
from acker_redis.spark.worker.partitions import Write
from acker_redis.spark.worker.row_function import RowByRow, RowFunction, RowFunctionStep

__all__ = ["FlatMapOutput", "Tracker"]


@dataclass(frozen=True)
class Tracker:
    """The operators and sinks that a pipeline is given with the messages of an emission.

    Every operator takes a tracked DataFrame first, so that it can be given to `DataFrame.transform`, and a name last, which
    shows as `last_component` and in errors; without one it is called like the function it runs, or like the operator,
    numbered.

    Attributes:
        run_id: unique per run of the program.
        emission: number of the emission in the run, never used again. Name files by it that are written one by one, so that
            those of a replay stand beside them; a message may be in several.
        batch_id: Spark's number of the micro-batch, in `TrackedBatches`: the same when Spark gives the batch again. None
            elsewhere.
    """

    run_id: str
    emission: int
    batch_id: int | None = None
    _proof: Proof = field(kw_only=True, repr=False)
    _origin: Origin | None = field(kw_only=True, repr=False)
    _id_column: str = field(kw_only=True, repr=False, default="")
    _outputs: Outputs = field(kw_only=True, repr=False, default_factory=Outputs)

    def __getstate__(self) -> dict[str, object]:
        """Leave out what can't go to workers, whose functions may hold a tracker for its numbers."""
        return {"run_id": self.run_id, "emission": self.emission, "batch_id": self.batch_id}

    def filter(self, tracked: DataFrame, condition: str | Column, *, name: str | None = None) -> DataFrame:
        """Keep rows that meet a condition, in SQL; the others are done. A null condition is not met.

            paid = tracker.filter(orders, "paid")
            large = orders.transform(tracker.filter, F.col("price") > 1000)

        Args:
            tracked: rows.
            condition: an expression, or a column.
            name: of the operator.
        """
        node, equation, meter = self._add_operator("filter", tracked, name)
        return rows.filtered(tracked, condition, meter, equation.without(meter, node))

    def fail_where(
        self,
        tracked: DataFrame,
        condition: str | Column,
        reason: str | Column,
        *,
        retry: bool = True,
        name: str | None = None,
    ) -> DataFrame:
        """Fail the messages of rows that meet a condition, in SQL; the other rows go on. A null condition is not met.

            known = tracker.fail_where(orders, "customer IS NULL", "no such customer")

        Args:
            tracked: rows.
            condition: of those that fail.
            reason: a text that says what is wrong with them, or a column of texts.
            retry: whether to emit the messages again. False: that can't help, and they are dead letters at once.
            name: of the operator.
        """
        if not isinstance(reason, Column) and (not isinstance(reason, str) or not reason):
            raise PipelineError(f"fail_where: reason={reason!r}: give a text that says what is wrong with the rows")
        return self._fail_where(tracked, condition, reason, retry=retry, name=name)

    def _fail_where(
        self,
        tracked: DataFrame,
        condition: str | Column,
        reason: str | Column,
        *,
        retry: bool,
        name: str | None,
        payload: Column | None = None,
    ) -> DataFrame:
        """Do as `fail_where` says; `payload` goes along with the rows that fail, which are messages."""
        node, equation, meter = self._add_operator("fail_where", tracked, name, has_failures=True)
        bad = F.coalesce(F.expr(condition) if isinstance(condition, str) else condition, F.lit(False))
        text = reason if isinstance(reason, Column) else F.lit(reason)
        step = failing(node, meter, failures_accumulator(tracked.sparkSession.sparkContext), retry=retry)
        marked = tracked.withColumns({"_acker_bad": bad, SHARE: equation.without(meter, node).share_column(SHARE)})
        values = (
            F.when(F.col("_acker_bad"), value)
            for value in (
                F.col(SHARE),
                F.expr(ROOTS_AS_TEXT),
                F.coalesce(text.cast("string"), F.lit("")),
                *(() if payload is None else (payload,)),
            )
        )
        failure = F.arrow_udf(step, LongType()).asNondeterministic()  # type: ignore[attr-defined]
        failed = marked.withColumn(OUT, failure(*values)).drop("_acker_bad")
        return rows.without_failed(failed, meter)

    def explode(self, tracked: DataFrame, children: str | Column, *, name: str | None = None) -> DataFrame:
        """Derive rows in SQL: one per element of an array expression; none of a row whose array is empty or null.

            words = tracker.explode(lines, "transform(split(text, ' '), w -> struct(line, w AS word))")

        Args:
            tracked: rows.
            children: an array of structs, whose fields become the columns, or of values, in a column `value`.
            name: of the operator.
        """
        node, equation, meter = self._add_operator("explode", tracked, name)
        return rows.exploded(tracked, children, node, meter, equation.without(meter, node))

    def flat_map(
        self,
        tracked: DataFrame,
        execute: RowFunction | RowFunctionStep,
        schema: str | StructType,
        *,
        on_error: OnError = "fail",
        no_retry: NoRetry = (),
        name: str | None = None,
    ) -> DataFrame:
        """Turn rows into derived rows, one by one in Python.

            items = orders.transform(tracker.flat_map, split, "order bigint, item string")

        Args:
            tracked: rows.
            execute: a function of one row (a dict) that returns or yields derived rows (dicts, or values in the order of
                the schema), or an object with `execute(row, collector)`. A row it raises `RowFailedError` for fails
                with that reason, while the others go on.
            schema: of the derived rows; DDL or StructType.
            on_error: what another exception does, and a derived row that does not fit the schema: `fail` fails the row it
                came from, with a text that says why; `raise` fails the task, and Spark tries it again.
            no_retry: exceptions that trying again can't change: they fail the row, in both cases, and its message is a dead
                letter at once, as after `RowFailedError(..., retry=False)`.
            name: of the operator.
        """
        arguments.check_on_error(on_error, "flat_map")
        arguments.check_no_retry(no_retry, "flat_map")
        if not callable(execute) and not isinstance(execute, RowFunctionStep):
            raise PipelineError("flat_map: give a function of one row, or an object with execute(row, collector)")
        output = arguments.struct(schema, "flat_map")
        by_row = RowByRow(execute, arguments.arrow_schema(output), on_error, no_retry)
        return self._flat_map(tracked, by_row, output, name, _name_of(execute, "flat_map"))

    def flat_map_arrow(
        self, tracked: DataFrame, execute: Execute, schema: str | StructType, *, name: str | None = None
    ) -> DataFrame:
        """Turn rows into derived rows by a function of record batches, which says which row each derived row came from.

            each_once = lambda batch: FlatMapOutput(double(batch), np.arange(len(batch)))
            doubled = tracker.flat_map_arrow(orders, each_once, schema)

        Args:
            tracked: rows.
            execute: called with each record batch, without the tracker's columns; gives `FlatMapOutput`. Runs in the
                workers.
            schema: of the derived rows; DDL or StructType.
            name: of the operator.
        """
        arguments.check_function(execute, "flat_map_arrow", "a function of a record batch that gives FlatMapOutput")
        output = arguments.struct(schema, "flat_map_arrow")
        return self._flat_map(tracked, execute, output, name, _name_of(execute, "flat_map_arrow"))

    def join(
        self,
        left: DataFrame,
        right: DataFrame,
        on: str | Sequence[str],
        how: str = "inner",
        *,
        partial: bool = False,
        name: str | None = None,
    ) -> DataFrame:
        """Join on equal columns, in SQL. Each row belongs to the messages of all rows it was made of.

            priced = tracker.join(orders, prices, "item")

        Args:
            left: a tracked DataFrame.
            right: another tracked DataFrame of the emission, or one that isn't tracked, such as a reference table.
            on: column or columns both have; compared, and given, as Spark's own join does. Null is equal to nothing.
            how: `inner` or `left`; if both are tracked `right` and `full`, too. Rows that are left out are done. A row has
                to be in one task with all its matches, so a key with very many needs memory.
            partial: let rows of several messages meet, if both are tracked: by other keys than the message id. A message
                that is emitted again doesn't meet those that were acked before. Not needed with `output="whole"`.
            name: of the operator.

        Raises:
            PipelineError: both are tracked, and rows of several messages would meet.
        """
        keys = [on] if isinstance(on, str) else list(on)
        both = is_tracked(right)
        arguments.check_join(left, right, keys, how, ("inner", "left", "right", "full") if both else ("inner", "left"))
        if not both:
            join, equation, meter = self._add_operator("join", left, name)
            equation = equation.without(meter, join)
            return joins.looked_up(left, right, keys, join, meter, equation, keep_unmatched=how == "left")
        by_message = self._check_partial("join", keys, partial=partial)
        equations = [self._proof.equation_of(frame, "join") for frame in (left, right)]
        node = self._proof.add_operator("join", name, [equation.node for equation in equations])
        meter = self._proof.add_meter(node)
        (left, right), (first, second) = self._scaled([left, right], equations)
        equation = first.plus(second, node.name).without(meter, node.name)
        matches = joins.matched(left, right, keys, how, node.name, meter, equation)
        return groups.of_one_message(matches, node.name, equation) if by_message else matches

    def group_by(
        self,
        tracked: DataFrame,
        keys: str | Column | Sequence[str | Column],
        aggregates: Column | Sequence[Column],
        *,
        partial: bool = False,
        name: str | None = None,
    ) -> DataFrame:
        """Aggregate groups, in SQL: one row per group, which belongs to the messages of all rows of the group.

            totals = tracker.group_by(items, ["order", "customer"], F.sum("price").alias("price"))

        A message that is emitted again makes groups without those that were acked before, so by message a group has to be of
        one: the keys contain the message id, as `order` above. See "Aggregates and overwriting" in the documentation.

        Args:
            tracked: rows.
            keys: columns or expressions to group by; an empty list makes one group.
            aggregates: one or several.
            partial: let groups hold what this emission's messages have for them. They can't simply be added up in the
                sink, as an emission may be repeated. Not needed with `output="whole"`.
            name: of the operator.

        Raises:
            PipelineError: groups of several messages would be partial.
        """
        equation = self._proof.equation_of(tracked, "group_by")
        node = self._proof.add_operator("group_by", name, [equation.node]).name
        keys = [keys] if isinstance(keys, (str, Column)) else list(keys)
        by = [arguments.quoted(key) if isinstance(key, str) and key in tracked.columns else key for key in keys]
        aggregates = [aggregates] if isinstance(aggregates, Column) else list(aggregates)
        names = [key for key in keys if isinstance(key, str)]
        if len(names) < len(keys) and not (partial or self._outputs.output == "whole"):
            names = tracked.select(*by).columns
        if self._check_partial(node, names, partial=partial):
            grouped = groups.grouped_by_message(tracked, by, aggregates, node, equation.at(node).with_roots())
        else:
            grouped = groups.grouped(tracked, by, aggregates, equation.at(node).with_roots())
        arguments.check_column_names([column for column in grouped.columns if column not in TRACKING], node)
        return grouped

    def union_by_name(self, first: DataFrame, *others: DataFrame, name: str | None = None) -> DataFrame:
        """Unite the rows of several tracked DataFrames, whose columns are matched by name.

            paid, unpaid = tracker.filter(orders, "paid"), tracker.filter(orders, "NOT paid")
            every = tracker.union_by_name(paid, unpaid.withColumn("text", F.lit("please pay")))

        Args:
            first: rows.
            others: one or several, with the same columns in any order.
            name: of the operator.
        """
        if not others:
            raise PipelineError("union_by_name: give two or more tracked DataFrames")
        equations = [self._proof.equation_of(frame, "union_by_name") for frame in (first, *others)]
        node = self._proof.add_operator("union_by_name", name, [equation.node for equation in equations]).name
        frames, equations = self._scaled([first, *others], equations)
        united, equation = frames[0], equations[0]
        for frame, other in zip(frames[1:], equations[1:], strict=True):
            united, equation = united.unionByName(frame), equation.plus(other, node)
        return with_equation(united, equation.at(node))

    def checkpoint(self, tracked: DataFrame, *, name: str | None = None) -> DataFrame:
        """Compute rows now and keep them in the checkpoint directory; runs its own action.

            spark.sparkContext.setCheckpointDir("checkpoints")
            heavy = tracker.checkpoint(tracker.flat_map(orders, enrich, schema))

        What follows begins with these rows, which outlive their executors.

        Args:
            tracked: rows.
            name: of the operator.

        Raises:
            NotExactError: not all rows are there, or rows are twice.
        """
        return checkpoints.checkpoint(self._proof, tracked, name, is_local=False)

    def local_checkpoint(self, tracked: DataFrame, *, name: str | None = None) -> DataFrame:
        """Compute rows now and keep them in the executors' own storage; runs its own action.

            heavy = tracker.local_checkpoint(tracker.flat_map(orders, enrich, schema))

        What follows begins with these rows. Faster than `checkpoint`, but rows are lost with their executor.

        Args:
            tracked: rows.
            name: of the operator.

        Raises:
            NotExactError: not all rows are there, or rows are twice.
        """
        return checkpoints.checkpoint(self._proof, tracked, name, is_local=True)

    def discard(self, tracked: DataFrame) -> None:
        """Declare the rows of a frame done, with which nothing is to be done; a frame without a sink is an error otherwise.

            rejected = tracker.filter(orders, "NOT paid")
            tracker.discard(rejected)

        Args:
            tracked: rows, of which some may go on elsewhere.
        """
        self._proof.discard(self._proof.equation_of(tracked, "discard").node)

    def write(
        self,
        tracked: DataFrame,
        write: Callable[[DataFrameWriter], object],
        *,
        on_error: OnError = "raise",
        allow_overwrite: bool = False,
        name: str | None = None,
    ) -> None:
        """Write with Spark's own writers. Runs the action, and proves that it wrote every row.

            tracker.write(items, lambda writer: writer.mode("append").parquet(path))

        By message, a writer has to append: messages that failed are emitted again without the others, so any other mode
        would replace what was written, or leave out what is to be. With `output="whole"` it has to overwrite, and runs
        when all messages that are left have come through; see "Aggregates and overwriting" in the documentation.

        Args:
            tracked: rows.
            write: called with the `DataFrameWriter` of the rows without the tracker's columns; has to call one of its
                methods that write, once. Should be idempotent: messages are emitted again where something fails. With
                `output="whole"` it is called twice: before anything runs, with a writer that writes nothing, and to write.
            on_error: if a job of it fails: `raise` ends the emission with the error; `fail` fails the messages of the
                rows. An error of the driver's own, such as a missing class, ends the run in both cases.
            allow_overwrite: let it overwrite, by message, as where each message has a partition of its own.
            name: of the sink.

        Raises:
            PipelineError: it writes in a mode that it may not.
        """
        writers.write(self._proof, self._outputs, tracked, write, on_error, name, allow_overwrite=allow_overwrite)

    def write_dataframe(
        self,
        tracked: DataFrame,
        write: Callable[[DataFrame], object],
        *,
        on_error: OnError = "raise",
        name: str | None = None,
    ) -> None:
        """Write by a function of the DataFrame, such as a MERGE. Runs the action.

            tracker.write_dataframe(items, lambda rows: rows.writeTo("items").append())

        The proof is that one action took every row from the DataFrame that the function is given. It doesn't cover what the
        function does with them: one that filters, or that joins rows away, loses them unseen. Nor is its mode checked: by
        message it has to add or merge, as failed messages are written again without the others; with `output="whole"` it has
        to replace the earlier output, and runs when all messages that are left have come through. The run is refused where a
        variable that it uses has changed by then.
        """
        writers.write_dataframe(self._proof, self._outputs, tracked, write, on_error, name)

    def write_data_source(
        self,
        tracked: DataFrame,
        source: type[DataSource],
        *,
        mode: str = "append",
        options: dict[str, str] | None = None,
        on_error: OnError = "raise",
        allow_overwrite: bool = False,
        name: str | None = None,
    ) -> None:
        """Write with a Python data source. Runs the action.

            tracker.write_data_source(items, MyStore, options={"table": "items"})

        Args:
            tracked: rows.
            source: class whose `writer` gives a `DataSourceWriter` or `DataSourceArrowWriter`. A writer that returns before
                it has taken all rows of its partition ends with an error.
            mode: `append` or `overwrite`; see `write` for which is allowed.
            options: of the data source.
            on_error: as for `write`.
            allow_overwrite: as for `write`.
            name: of the sink.
        """
        writers.write_data_source(
            self._proof,
            self._outputs,
            tracked,
            source,
            mode,
            options or {},
            on_error,
            name,
            allow_overwrite=allow_overwrite,
        )

    def write_partitions(
        self,
        tracked: DataFrame,
        write: Write,
        *,
        on_error: OnError = "raise",
        no_retry: NoRetry = (),
        name: str | None = None,
    ) -> int:
        """Write by a function of each partition, in Python. Runs the action; returns how many rows there were.

            tracker.write_partitions(items, lambda batches, partition: store.put(partition, batches))

        Args:
            tracked: rows.
            write: called with the record batches of one partition, without the tracker's columns, and the partition's
                number; has to consume them all, and to be idempotent: a partition may be written again.
            on_error: if `write` raises: `raise` fails the task, which Spark tries again; `fail` fails the messages of the
                partition's rows, with the error's text as reason, or of the rows only that a `RowsRefusedError` names;
                20 bytes and more of each row are kept for this until the partition ends.
            no_retry: with `fail`, exceptions that trying again can't change: the messages are dead letters at once.
            name: of the sink.
        """
        return partitions.write_partitions(
            self._proof, self._outputs, tracked, write, on_error, no_retry, _name_of(write, "write_partitions"), name
        )

    def export(
        self,
        tracked: DataFrame,
        write: Callable[[DataFrameWriter], object],
        *,
        encoding: anchor_codec.Encoding = "binary",
        column: str = "anchors",
        name: str | None = None,
    ) -> None:
        """Write rows for other programs to carry on: their messages are done when those are done with the rows, too.

            tracker.export(items, lambda writer: writer.parquet(path))

        Runs the action. Each row gets anchors: pairs of a root and a fresh edge, which the workers introduce to the acker
        before the action ends. `run_exported` carries the rows on in Spark; any other program carries them on by acking the
        edges with a bare `Acker` of the same app. Each row is to be taken over once: one that is acked twice times out, and
        its message is emitted again.

        Args:
            tracked: rows.
            write: as for `write`.
            encoding: of the column: `binary`, `json` or `array`; see `protocol.anchor_codec`.
            column: name of the column with the anchors.
            name: of the sink.
        """
        exports.export(self._proof, self._origin, self._outputs, tracked, write, encoding, column, name)

    def _flat_map(
        self, tracked: DataFrame, execute: Execute, output: StructType, name: str | None, kind: str
    ) -> DataFrame:
        node, equation, meter = self._add_operator(kind, tracked, name, has_failures=True)
        failures = failures_accumulator(tracked.sparkSession.sparkContext)
        schema = arguments.arrow_schema(output)
        columns = [StructField(column.name, column.dataType, True, column.metadata) for column in output.fields]
        share = StructField(SHARE, LongType(), True, equation.without(meter, node).metadata)
        columns += [share, tracked.schema[ROOTS], StructField(OUT, LongType(), False)]
        output_rows = map_in_arrow(
            tracked, lambda names: FlatMapStep(node, meter, execute, schema, failures, names), StructType(columns)
        )
        return rows.without_removed_in_python(output_rows, meter)

    def _add_operator(
        self, kind: str, tracked: DataFrame, name: str | None, *, has_failures: bool = False
    ) -> tuple[str, Equation, str]:
        """Add an operator over one frame; give its name, the frame's equation, and a meter."""
        equation = self._proof.equation_of(tracked, kind if name is None else name)
        node = self._proof.add_operator(kind, name, [equation.node])
        return node.name, equation, self._proof.add_meter(node, has_failures=has_failures)

    def _check_partial(self, operator: str, keys: Sequence[str], *, partial: bool) -> bool:
        """Check whether rows that come together have to be of one message.

        Raises:
            PipelineError: rows of several would, without `partial`.
        """
        if partial or self._outputs.output == "whole":
            return False
        if self._id_column.lower() not in [key.lower() for key in keys]:
            raise PipelineError(
                f"{operator!r}: rows of several messages would come together, but only of those in this emission: one that "
                "failed is emitted again without the others, and finds none of them. Use "
                f'{self._id_column!r}, the message id, as one of the keys; or run_tracked(..., output="whole"); or '
                "partial=True where rows that hold this emission's messages are what you want"
            )
        return True

    def _scaled(self, frames: list[DataFrame], equations: list[Equation]) -> tuple[list[DataFrame], list[Equation]]:
        """Scale the shares of frames that come together, each by another weight.

        So a row that is lost in one and copied in another shows.
        """
        exponents = [self._proof.next_exponent() for _ in frames]
        scaled = [tracking.scaled(frame, exponent) for frame, exponent in zip(frames, exponents, strict=True)]
        weights = [shares.weight(exponent) for exponent in exponents]
        return scaled, [equation.scaled(weight) for equation, weight in zip(equations, weights, strict=True)]


def _name_of(function: Any, kind: str) -> str:
    """Take an operator's name from a function; that of a partial from the function it calls; `kind` for a lambda."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__name__", type(function).__name__)
    return kind if name == "<lambda>" else name
