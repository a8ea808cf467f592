"""The tracker of one emission: its operators and sinks.

Operators preserve the sum of shares, and sinks prove it. You may use Spark's own operators in between;
`docs/guides/operators.md` says which of them preserve the sum. Spark may evaluate a frame once or five times. The ledger
doesn't change either way, because the driver closes the roots after the pipeline has returned. Only an export acks from the
workers.
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
    """Operators and sinks for the messages of one emission.

    Your pipeline function receives a tracker and the messages. The first argument of every operator is a tracked DataFrame,
    so you can pass operators to `DataFrame.transform`. The optional `name` appears as `last_component` and in errors. It
    defaults to the name of the function that the operator runs, or to the name of the operator. Repeated default names are
    numbered.

    Attributes:
        run_id: id of this run of the program, unique per run.
        emission: number of the emission in the run, never reused. Put it into the names of files that you write one by one,
            so that a replay writes its files beside the earlier ones. A message may then be in several files.
        batch_id: Spark's number of the micro-batch in `TrackedBatches`, unchanged when Spark repeats the batch. None
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
        """Pickle only the numbers: functions in workers may hold a tracker for them."""
        return {"run_id": self.run_id, "emission": self.emission, "batch_id": self.batch_id}

    def filter(self, tracked: DataFrame, condition: str | Column, *, name: str | None = None) -> DataFrame:
        """Keep the rows that meet a condition, in SQL. The other rows are done.

            paid = tracker.filter(orders, "paid")
            large = orders.transform(tracker.filter, F.col("price") > 1000)

        A null condition is not met.

        Args:
            tracked: tracked rows.
            condition: SQL expression or column.
            name: name of the operator.
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
        """Fail the messages of rows that meet a condition, in SQL. The other rows pass.

            known = tracker.fail_where(orders, "customer IS NULL", "no such customer")

        A null condition is not met.

        Args:
            tracked: tracked rows.
            condition: SQL expression or column that selects the rows to fail.
            reason: text that says what is wrong with the rows, or a column of such texts.
            retry: whether to emit the messages again. If False, because a retry can't help, they become dead letters at once.
            name: name of the operator.
        """
        if not isinstance(reason, Column) and (not isinstance(reason, str) or not reason):
            raise PipelineError(
                f"fail_where: reason={reason!r} must be a non-empty text. Say what is wrong with the rows."
            )
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
        """Implement `fail_where`; `payload` is sent along if the rows that fail are messages."""
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
        """Derive one row per element of an array expression, in SQL.

            words = tracker.explode(lines, "transform(split(text, ' '), w -> struct(line, w AS word))")

        A row whose array is empty or null derives no rows.

        Args:
            tracked: tracked rows.
            children: array of structs, whose fields become the columns, or of values, which become a column `value`.
            name: name of the operator.
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
        """Derive zero or more rows from each row with a Python function.

            items = orders.transform(tracker.flat_map, split, "order bigint, item string")

        Args:
            tracked: tracked rows.
            execute: function of one row (a dict) that returns or yields derived rows (dicts, or values in the order of
                the schema), or an object with `execute(row, collector)`. If it raises `RowFailedError`, its row fails
                with that reason, and the other rows pass.
            schema: schema of the derived rows, as DDL or StructType.
            on_error: effect of any other exception, or of a derived row that does not fit the schema. `fail` fails the input
                row, with a text that says why. `raise` fails the task, and Spark retries it.
            no_retry: exceptions that a retry can't help. They fail the row in both modes, and its message becomes a dead
                letter at once, as after `RowFailedError(..., retry=False)`.
            name: name of the operator.
        """
        arguments.check_on_error(on_error, "flat_map")
        arguments.check_no_retry(no_retry, "flat_map")
        if not callable(execute) and not isinstance(execute, RowFunctionStep):
            raise PipelineError(
                f"flat_map: execute={execute!r} can't be called. Pass a function of one row, or an object with "
                "execute(row, collector)."
            )
        output = arguments.struct(schema, "flat_map")
        by_row = RowByRow(execute, arguments.arrow_schema(output), on_error, no_retry)
        return self._flat_map(tracked, by_row, output, name, _name_of(execute, "flat_map"))

    def flat_map_arrow(
        self, tracked: DataFrame, execute: Execute, schema: str | StructType, *, name: str | None = None
    ) -> DataFrame:
        """Derive rows with a function of record batches.

            each_once = lambda batch: FlatMapOutput(double(batch), np.arange(len(batch)))
            doubled = tracker.flat_map_arrow(orders, each_once, schema)

        Args:
            tracked: tracked rows.
            execute: function of a record batch, without the tracker's columns, that returns a `FlatMapOutput`. It names
                the input row that each derived row came from. Runs in the workers.
            schema: schema of the derived rows, as DDL or StructType.
            name: name of the operator.
        """
        arguments.check_function(execute, "flat_map_arrow", "a function of a record batch that returns FlatMapOutput")
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
        """Join on equal columns, in SQL.

            priced = tracker.join(orders, prices, "item")

        Each joined row belongs to the messages of all rows it was made from.

        Args:
            left: tracked DataFrame.
            right: another tracked DataFrame of the emission, or an untracked one such as a reference table.
            on: column or columns that both sides have. They are compared and returned as in Spark's own join. Null equals
                nothing.
            how: `inner` or `left`; if both sides are tracked, also `right` or `full`. Rows that the join leaves out are
                done. One task holds a row with all its matches, so a key with very many matches needs memory.
            partial: whether rows of several messages may meet, if both sides are tracked and the keys lack the message id.
                A message that is emitted again doesn't meet those acked before. Not needed with `output="whole"`.
            name: name of the operator.

        Raises:
            PipelineError: both sides are tracked, and rows of several messages would meet.
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
        """Aggregate rows into one row per group, in SQL.

            totals = tracker.group_by(items, ["order", "customer"], F.sum("price").alias("price"))

        The aggregated row belongs to the messages of all rows of its group. A message that is emitted again forms groups
        without the messages acked before. With output by message, a group must therefore hold rows of one message only:
        include the message id in the keys, such as `order` above. See "Aggregates and overwriting" in the documentation.

        Args:
            tracked: tracked rows.
            keys: columns or expressions to group by. An empty list makes one group.
            aggregates: one or more aggregates.
            partial: whether groups may hold only the rows of this emission's messages. The sink can't simply add up such
                groups, because an emission may be repeated. Not needed with `output="whole"`.
            name: name of the operator.

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
        """Unite the rows of several tracked DataFrames, matching columns by name.

            paid, unpaid = tracker.filter(orders, "paid"), tracker.filter(orders, "NOT paid")
            every = tracker.union_by_name(paid, unpaid.withColumn("text", F.lit("please pay")))

        Args:
            first: tracked rows.
            others: one or more tracked DataFrames, with the same columns in any order.
            name: name of the operator.
        """
        if not others:
            raise PipelineError("union_by_name: there is only one DataFrame. Pass two or more tracked DataFrames.")
        equations = [self._proof.equation_of(frame, "union_by_name") for frame in (first, *others)]
        node = self._proof.add_operator("union_by_name", name, [equation.node for equation in equations]).name
        frames, equations = self._scaled([first, *others], equations)
        united, equation = frames[0], equations[0]
        for frame, other in zip(frames[1:], equations[1:], strict=True):
            united, equation = united.unionByName(frame), equation.plus(other, node)
        return with_equation(united, equation.at(node))

    def checkpoint(self, tracked: DataFrame, *, name: str | None = None) -> DataFrame:
        """Compute rows now and keep them in the checkpoint directory. Runs its own action.

            spark.sparkContext.setCheckpointDir("checkpoints")
            heavy = tracker.checkpoint(tracker.flat_map(orders, enrich, schema))

        The next operators start from these rows, which outlive their executors.

        Args:
            tracked: tracked rows.
            name: name of the operator.

        Raises:
            NotExactError: rows are missing or duplicated.
        """
        return checkpoints.checkpoint(self._proof, tracked, name, is_local=False)

    def local_checkpoint(self, tracked: DataFrame, *, name: str | None = None) -> DataFrame:
        """Compute rows now and keep them in the executors' own storage. Runs its own action.

            heavy = tracker.local_checkpoint(tracker.flat_map(orders, enrich, schema))

        The next operators start from these rows. Faster than `checkpoint`, but rows are lost with their executor.

        Args:
            tracked: tracked rows.
            name: name of the operator.

        Raises:
            NotExactError: rows are missing or duplicated.
        """
        return checkpoints.checkpoint(self._proof, tracked, name, is_local=True)

    def discard(self, tracked: DataFrame) -> None:
        """Declare the rows of a frame done without writing them.

            rejected = tracker.filter(orders, "NOT paid")
            tracker.discard(rejected)

        Otherwise, a frame without a sink is an error.

        Args:
            tracked: tracked rows. Other operators and sinks may use some of them, too.
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
        """Write with Spark's own writers. Runs the action and proves that it wrote every row.

            tracker.write(items, lambda writer: writer.mode("append").parquet(path))

        With output by message, the writer must append. Failed messages are emitted again without the others, so any other
        mode would replace rows already written, or leave out rows still to be written. With `output="whole"` the writer must
        overwrite, and it runs when all remaining messages have come through. See "Aggregates and overwriting" in the
        documentation.

        Args:
            tracked: tracked rows.
            write: function of a `DataFrameWriter` of the rows, without the tracker's columns. It must call one of the
                methods that write, once. Make it idempotent, because messages are emitted again after failures. With
                `output="whole"` it is called twice: before anything runs, with a writer that writes nothing, and to write.
            on_error: effect of a failed job of this sink. `raise` ends the emission with the error. `fail` fails the messages
                of the rows. An error in the driver itself, such as a missing class, ends the run in both modes.
            allow_overwrite: whether the writer may overwrite with output by message, for example where each message has its
                own partition.
            name: name of the sink.

        Raises:
            PipelineError: the writer uses a mode that is not allowed.
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
        """Write with a function of the DataFrame, such as a MERGE. Runs the action.

            tracker.write_dataframe(items, lambda rows: rows.writeTo("items").append())

        It is proven that one action consumed every row of the DataFrame that the function receives. The proof doesn't cover
        the use of those rows: a function that filters rows, or joins them away, loses them unseen.

        The write mode isn't checked either. With output by message, the function must add or merge, because failed messages
        are written again without the others. With `output="whole"` it must replace the earlier output, and it runs when all
        remaining messages have come through. The run is rejected if a variable that the function uses has changed by then.

        Args:
            tracked: tracked rows.
            write: function of the DataFrame of the rows, without the tracker's columns.
            on_error: as for `write`.
            name: name of the sink.
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
            tracked: tracked rows.
            source: class whose `writer` returns a `DataSourceWriter` or `DataSourceArrowWriter`. A writer that returns
                before it has consumed all rows of its partition ends with an error.
            mode: `append` or `overwrite`. See `write` for when each is allowed.
            options: options of the data source.
            on_error: as for `write`.
            allow_overwrite: as for `write`.
            name: name of the sink.
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
        """Write each partition with a Python function. Runs the action.

            tracker.write_partitions(items, lambda batches, partition: store.put(partition, batches))

        Args:
            tracked: tracked rows.
            write: function of the record batches of one partition, without the tracker's columns, and the partition's
                number. It must consume all batches, and must be idempotent: a partition may be written again.
            on_error: effect of an exception in `write`. `raise` fails the task, and Spark retries it. `fail` fails the
                messages of the partition's rows, with the error's text as reason. After a `RowsRefusedError` it fails only
                the messages of the rows that the error names. It keeps 20 bytes or more per row until the partition ends.
            no_retry: exceptions that a retry can't help, with `fail`. The messages become dead letters at once.
            name: name of the sink.

        Returns:
            Number of rows.
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
        """Write rows for other programs to process further. Runs the action.

            tracker.export(items, lambda writer: writer.parquet(path))

        A message is done once the other programs are done with its rows, too. Each row gets anchors: pairs of a root and a
        fresh edge, which the workers introduce to the acker before the action ends. `run_exported` processes the rows in
        Spark. Any other program acks the edges of the rows it has processed with a bare `Acker` of the same app. Process each
        row once: a row that is acked twice times out, and its message is emitted again.

        Args:
            tracked: tracked rows.
            write: as for `write`.
            encoding: encoding of the anchors: `binary`, `json` or `array`; see `protocol.anchor_codec`.
            column: name of the column for the anchors.
            name: name of the sink.
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
        """Add an operator over one frame. Return its name, the frame's equation, and a new meter."""
        equation = self._proof.equation_of(tracked, kind if name is None else name)
        node = self._proof.add_operator(kind, name, [equation.node])
        return node.name, equation, self._proof.add_meter(node, has_failures=has_failures)

    def _check_partial(self, operator: str, keys: Sequence[str], *, partial: bool) -> bool:
        """Return True if rows that come together must belong to one message.

        Raises:
            PipelineError: rows of several messages would come together without `partial`.
        """
        if partial or self._outputs.output == "whole":
            return False
        if self._id_column.lower() not in [key.lower() for key in keys]:
            raise PipelineError(
                f"{operator!r}: rows of several messages would come together, but only of those in this emission. A failed "
                "message is emitted again without the others, and finds none of them. Add the message id "
                f'{self._id_column!r} to the keys, or use run_tracked(..., output="whole"). Pass partial=True if you want '
                "rows that hold only this emission's messages."
            )
        return True

    def _scaled(self, frames: list[DataFrame], equations: list[Equation]) -> tuple[list[DataFrame], list[Equation]]:
        """Scale the shares of frames that come together, each by a different weight.

        A row that is lost in one frame and copied in another then shows.
        """
        exponents = [self._proof.next_exponent() for _ in frames]
        scaled = [tracking.scaled(frame, exponent) for frame, exponent in zip(frames, exponents, strict=True)]
        weights = [shares.weight(exponent) for exponent in exponents]
        return scaled, [equation.scaled(weight) for equation, weight in zip(equations, weights, strict=True)]


def _name_of(function: Any, kind: str) -> str:
    """Return the name of a function, or `kind` for a lambda.

    A partial has the name of the function that it calls.
    """
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__name__", type(function).__name__)
    return kind if name == "<lambda>" else name
