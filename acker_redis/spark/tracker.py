"""The tracker of one emission: its operators and sinks.

Operators preserve the sum of shares, and sinks prove it. You may use Spark's own operators in between;
`docs/guides/operators.md` says which of them preserve the sum. Spark may evaluate a frame once or five times. The ledger
doesn't change either way, because the driver closes the roots after the pipeline has returned. Only an export acks from the
workers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from pyspark.sql import Column, DataFrame, DataFrameWriter, DataFrameWriterV2
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import LongType, StringType, StructField, StructType

from acker_redis.errors import PipelineError
from acker_redis.spark import checks, sql
from acker_redis.spark.operators import generators, groups, joins, rows, tracking
from acker_redis.spark.operators.map_in_arrow import map_in_arrow
from acker_redis.spark.proof import meters
from acker_redis.spark.proof.equation import Equation, is_tracked, note, with_equation
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.protocol import anchor_codec, shares
from acker_redis.spark.protocol.columns import FAILURE, OUT, ROOTS, SHARE, TRACKING
from acker_redis.spark.sinks import checkpoints, exports, partitions, stores, writers
from acker_redis.spark.sinks import kafka as kafka_sink
from acker_redis.spark.sinks.exports import Origin
from acker_redis.spark.sinks.outputs import Outputs
from acker_redis.spark.worker.arrow_function import Execute, FlatMapOutput, FlatMapStep
from acker_redis.spark.worker.failures import NoRetry, OnError
from acker_redis.spark.worker.partitions import Write
from acker_redis.spark.worker.row_function import RowByRow, RowFunction, RowFunctionStep
from acker_redis.spark.worker.staged_parts import PublishParts, StagePart

__all__ = ["FlatMapOutput", "Tracker"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _in_any_thread(action: "Callable[Concatenate[Tracker, _P], _T]") -> "Callable[Concatenate[Tracker, _P], _T]":
    """Make the emission wait for an action, in whatever thread the pipeline calls it."""

    @wraps(action)
    def call(self: "Tracker", /, *args: _P.args, **options: _P.kwargs) -> _T:
        with self._proof.action():
            return action(self, *args, **options)

    return call


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
    _id_columns: tuple[str, ...] = field(kw_only=True, repr=False, default=("",))
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
        generators.refuse(tracked, node, "condition", [condition])
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
            reason: text that says what is wrong with the rows, or a column of such texts. The first 200 characters are
                kept. If an emission has more than 100,000 messages, only a part of the different texts is kept.
            retry: whether to emit the messages again. If False, because a retry can't help, they become dead letters at once.
            name: name of the operator.
        """
        if not isinstance(reason, Column) and (not isinstance(reason, str) or not reason):
            raise PipelineError(
                f"fail_where: reason={reason!r} must be a non-empty text. Say what is wrong with the rows."
            )
        reads = partial(meters.read_failed, retry=retry)
        node, equation, meter = self._add_operator("fail_where", tracked, name, reads=reads)
        generators.refuse(tracked, node, "condition", [condition])
        if isinstance(reason, Column):
            generators.refuse(tracked, node, "reason", [reason])
        text = reason if isinstance(reason, Column) else F.lit(reason)
        remaining = equation.without(meter, node)
        return rows.without_failed(tracked, condition, text, meter, remaining, self._proof.know_ids())

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
        generators.refuse(tracked, node, "children", [children])
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
        checks.check_on_error(on_error, "flat_map")
        checks.check_no_retry(no_retry, "flat_map")
        if not callable(execute) and not isinstance(execute, RowFunctionStep):
            raise PipelineError(
                f"flat_map: execute={execute!r} can't be called. Pass a function of one row, or an object with "
                "execute(row, collector)."
            )
        output = checks.struct(schema, "flat_map")
        by_row = RowByRow(execute, checks.arrow_schema(output), on_error, no_retry)
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
        checks.check_function(execute, "flat_map_arrow", "a function of a record batch that returns FlatMapOutput")
        output = checks.struct(schema, "flat_map_arrow")
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
        checks.check_join(left, right, keys, how, ("inner", "left", "right", "full") if both else ("inner", "left"))
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
        by = [sql.quoted(key) if isinstance(key, str) and key in tracked.columns else key for key in keys]
        aggregates = [aggregates] if isinstance(aggregates, Column) else list(aggregates)
        generators.refuse(tracked, node, "keys", [key for key in keys if isinstance(key, Column)])
        generators.refuse(tracked, node, "aggregates", aggregates)
        names = [key for key in keys if isinstance(key, str)]
        if len(names) < len(keys) and not (partial or self._outputs.output == "whole"):
            names = tracked.select(*by).columns
        if self._check_partial(node, names, partial=partial):
            grouped = groups.grouped_by_message(tracked, by, aggregates, node, equation.at(node).with_roots())
        else:
            grouped = groups.grouped(tracked, by, aggregates, equation.at(node).with_roots())
        checks.check_column_names([column for column in grouped.columns if column not in TRACKING], node)
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

    @_in_any_thread
    def checkpoint(self, tracked: DataFrame, *, name: str | None = None) -> DataFrame:
        """Compute rows now and keep them in the checkpoint directory. Runs its own action.

            spark.sparkContext.setCheckpointDir("checkpoints")
            heavy = tracker.checkpoint(tracker.flat_map(orders, enrich, schema))

        The next operators start from these rows, which outlive their executors.

        Args:
            tracked: tracked rows.
            name: name of the operator.

        Raises:
            InexactPipelineError: rows are missing or duplicated.
        """
        return checkpoints.checkpoint(self._proof, self._outputs, tracked, name, is_local=False)

    @_in_any_thread
    def local_checkpoint(self, tracked: DataFrame, *, name: str | None = None) -> DataFrame:
        """Compute rows now and keep them in the executors' own storage. Runs its own action.

            heavy = tracker.local_checkpoint(tracker.flat_map(orders, enrich, schema))

        The next operators start from these rows. Faster than `checkpoint`, but rows are lost with their executor.

        Args:
            tracked: tracked rows.
            name: name of the operator.

        Raises:
            InexactPipelineError: rows are missing or duplicated.
        """
        return checkpoints.checkpoint(self._proof, self._outputs, tracked, name, is_local=True)

    def discard(self, tracked: DataFrame) -> None:
        """Declare the rows of a frame done without writing them.

            rejected = tracker.filter(orders, "NOT paid")
            tracker.discard(rejected)

        Otherwise, a frame without a sink is an error.

        Args:
            tracked: tracked rows. Other operators and sinks may use some of them, too.
        """
        self._proof.discard(self._proof.equation_of(tracked, "discard").node)

    @_in_any_thread
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
        overwrite, and it runs when all remaining messages have come through. Where the session's `partitionOverwriteMode` is
        `dynamic`, a writer of partitions must name that option itself. No sink may read what the writer replaces. See
        "Aggregates and overwriting" in the documentation.

        Args:
            tracked: tracked rows.
            write: function of a `DataFrameWriter` of the rows, without the tracker's columns. It must call one of the
                methods that write, once. Make it idempotent, because messages are emitted again after failures. With
                `output="whole"` it is called twice: before anything runs, with a writer that writes nothing, and to write.
            on_error: effect of a failed job of this sink. `raise` ends the emission with the error. `fail` fails the messages
                of the rows. An error in the driver itself, such as a missing class, ends the run in both modes.
            allow_overwrite: whether the writer may overwrite with output by message, where each message has a partition of its
                own. The write must replace single partitions: `partitionBy` with the mode `dynamic` of
                `partitionOverwriteMode`, or `insertInto` of a partitioned table while that is the session's mode.
            name: name of the sink.

        Raises:
            PipelineError: the writer uses a mode that is not allowed, would replace the rows of other messages, or uses a
                source whose writes can't be proven.
        """
        writers.write(self._proof, self._outputs, tracked, write, on_error, name, allow_overwrite=allow_overwrite)

    @_in_any_thread
    def write_table(
        self,
        tracked: DataFrame,
        table: str,
        write: Callable[[DataFrameWriterV2], object],
        *,
        on_error: OnError = "raise",
        allow_overwrite: bool = False,
        name: str | None = None,
    ) -> None:
        """Write into a table with `DataFrame.writeTo`. Runs the action and proves that it wrote every row.

            tracker.write_table(items, "sales.items", lambda writer: writer.append())

        The rules are those of `write`. With output by message, the function must call `append`. With `output="whole"` it must
        replace the output, with `createOrReplace`, `replace`, `overwrite` or `overwritePartitions`. With `once=`, the table
        must be one of Iceberg, and rows wait in a branch of it until the log has accepted their messages.

        Args:
            tracked: tracked rows.
            table: name of the table, as for `DataFrame.writeTo`.
            write: function of a `DataFrameWriterV2` of the rows, without the tracker's columns. It must call one of the
                methods that write, once. Make it idempotent, unless you write with `once=`. With that and with
                `output="whole"` it is called twice, as for `write`.
            on_error: as for `write`.
            allow_overwrite: whether the writer may overwrite with output by message, where each message has a partition of its
                own: by `overwritePartitions` of a partitioned table. For `overwrite`, you promise that its condition matches
                no row of another message.
            name: name of the sink.

        Raises:
            PipelineError: the writer uses a method that is not allowed, or would replace the rows of other messages; or the
                table has a sort order, and Spark is older than 4.3.
            BadConfigError: with `once=`, there is no Iceberg table of this name.
        """
        writers.write_table(
            self._proof, self._outputs, tracked, table, write, on_error, name, allow_overwrite=allow_overwrite
        )

    @_in_any_thread
    def write_dataframe(
        self,
        tracked: DataFrame,
        write: Callable[[DataFrame], object],
        *,
        on_error: OnError = "raise",
        name: str | None = None,
    ) -> None:
        """Write with a function of the DataFrame, such as a MERGE. Computes the rows first.

            tracker.write_dataframe(items, lambda rows: rows.foreachPartition(store.put))

        The rows are computed, kept by Spark, and proven. Then the function gets a plain DataFrame of them, and may run any
        number of actions. When it returns, the rows are done. Until the end of the emission, Spark keeps the rows in the
        executors' memory or else on their disks.

        The proof covers the rows that the function receives, not their use: a function that filters rows, or joins them
        away, loses them unseen. Only a function that runs no Spark job is an error.

        The write mode isn't checked. With output by message, the function must add or merge, because failed messages
        are written again without the others. With `output="whole"` it must replace the earlier output, and it runs when all
        remaining messages have come through. The run is rejected if a variable that the function uses has changed by then.

        Args:
            tracked: tracked rows.
            write: function of the DataFrame of the rows, without the tracker's columns. Make it idempotent, as for `write`.
            on_error: as for `write`.
            name: name of the sink.

        Raises:
            InexactPipelineError: rows are missing or duplicated, or the function ran no Spark job.
        """
        writers.write_dataframe(self._proof, self._outputs, tracked, write, on_error, name)

    @_in_any_thread
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
            allow_overwrite: whether `mode` may be `overwrite` with output by message. You promise that the data source then
                replaces no row of another message.
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

    @_in_any_thread
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
                number. It must consume all batches, and must be idempotent: a partition may be written again. A try that
                breaks off in an earlier step may end with a part of its rows, so a later try must replace them.
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

    @_in_any_thread
    def write_staged(self, tracked: DataFrame, stage: StagePart, publish: PublishParts, *, name: str) -> None:
        """Put each message's rows into any store once, with `once=`. Runs the action and proves that it staged every row.

            tracker.write_staged(items, stage_items, publish_items, name="items")

        `stage` runs in Python workers, and writes rows where no reader sees them. `publish` runs in the driver once the log
        has accepted the messages, and puts the rows of some parts into the table in one transaction. Parts that it isn't
        given are never published: their tasks ran twice, or a message failed. Only the store can tell that a log was lost.

        Args:
            tracked: tracked rows.
            stage: function of the record batches of a partition, without the tracker's columns, and the name of a part. It
                must consume all batches, and return when the store has them on its disk. No two calls have the same name.
                An exception fails the Spark task, which is retried.
            publish: function of a key and a dict from parts to their numbers of rows. It may be called again with the same
                arguments, in any process, at the same time, and must change nothing then. So it writes the key into the
                store in the same transaction, and does nothing if the key is there. Keys are given in the order of the log.
            name: name of the sink, the same in each emission and run.

        Raises:
            PipelineError: the run has no `once=`, or rows belong to no message, or to several.
            InexactPipelineError: `stage` returned before it had consumed its rows.
        """
        stores.write_staged(self._proof, self._outputs, tracked, stage, publish, name)

    @_in_any_thread
    def write_kafka(
        self,
        tracked: DataFrame,
        *,
        kafka: Mapping[str, object],
        topic: str | None = None,
        use_partition: bool = False,
        record_id: str | None = None,
        name: str | None = None,
    ) -> int:
        """Produce a record to Kafka for each row. Runs the action, which needs the extra `kafka`.

            tracker.write_kafka(items, topic="items", kafka={"bootstrap.servers": "localhost:9092"})

        The workers produce, and the broker acknowledges each record. A record that it refuses fails alone, with the broker's
        words. An outage ends the emission, which counts as no attempt. A replay writes its records again. With `record_id`
        these have the header `acker-id` of the first ones, so readers can drop repeats.

        Args:
            tracked: tracked rows. `value` is a string or binary, or null. Optional are `key`, `headers` and `timestamp`.
                Other columns are not written.
            kafka: settings of the producer, as librdkafka names them. Those that weaken the proof are refused.
            topic: name of the topic. None: the rows have it, in the column `topic`.
            use_partition: whether the column `partition` has the record's partition. False: the key chooses it, as in
                Java's and Spark's clients.
            record_id: SQL of one or more values that name a row forever, such as `order, line`. No other row of any message
                may have them. Rows of an emission with equal values fail without retry, and so do rows with a null or a
                string that isn't UTF-8 among them, or of several messages. The rows are shuffled, so that equal values meet.
                None: no record has an id.
            name: name of the sink.

        Returns:
            Number of rows.

        Raises:
            BadConfigError: a setting is unknown or not allowed.
            PipelineError: a column is missing or has another type, or the client is not installed.
            OutageError: Kafka did not acknowledge a record, and not because of the record.
        """
        return kafka_sink.write_kafka(
            self._proof, self._outputs, tracked, topic, kafka, name, use_partition=use_partition, record_id=record_id
        )

    @_in_any_thread
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

    @_in_any_thread
    def export_kafka(
        self,
        tracked: DataFrame,
        *,
        topic: str,
        group: str,
        kafka: Mapping[str, object],
        record_id: str | None = None,
        name: str | None = None,
    ) -> int:
        """Produce records for another application to process further. Runs the action.

            tracker.export_kafka(items, topic="items", group="pricing", kafka={"bootstrap.servers": "localhost:9092"})

        A message is done once the group is done with its records, too. Each record gets a header `acker-anchors`, with a root
        and a fresh edge for each message that it came from. `run_kafka` with `imports=True` reads it in another application
        of the same app. Any other consumer reads it with `Anchors`, and acks. One group can ack the records of a topic.

        Records that wait in the topic keep their messages pending, so `max_spout_pending` limits them. Nothing renews them
        there: the message timeout must be longer than they wait.

        Args:
            tracked: tracked rows. Columns are those of `write_kafka`; `topic` and `partition` are ignored.
            topic: name of the topic.
            group: consumer group that processes the records.
            kafka: as for `write_kafka`.
            record_id: as for `write_kafka`.
            name: name of the sink.

        Returns:
            Number of records, refused ones included. A message whose record the broker refuses fails alone.

        Raises:
            BadConfigError: the topic is exported for another group, or a setting is refused.
        """
        return kafka_sink.export_kafka(
            self._proof, self._origin, self._outputs, tracked, topic, group, kafka, name, record_id
        )

    def _flat_map(
        self, tracked: DataFrame, execute: Execute, output: StructType, name: str | None, kind: str
    ) -> DataFrame:
        node, equation, meter = self._add_operator(kind, tracked, name, reads=meters.read_removed_in_python)
        max_bytes = self._proof.max_failure_bytes
        schema = checks.arrow_schema(output)
        columns = [StructField(column.name, column.dataType, True, column.metadata) for column in output.fields]
        remaining = equation.without(meter, node)
        share = StructField(SHARE, LongType(), True, remaining.metadata)
        columns += [share, tracked.schema[ROOTS], StructField(OUT, LongType(), False)]
        columns += [StructField(FAILURE, StringType())]
        output_rows = map_in_arrow(
            tracked, lambda names: FlatMapStep(node, execute, schema, max_bytes, names), StructType(columns)
        )
        return note(rows.without_removed_in_python(output_rows, meter), remaining)

    def _add_operator(
        self, kind: str, tracked: DataFrame, name: str | None, *, reads: meters.ReadRemoved = meters.read_removed
    ) -> tuple[str, Equation, str]:
        """Add an operator over one frame. Return its name, the frame's equation, and a new meter."""
        equation = self._proof.equation_of(tracked, kind if name is None else name)
        node = self._proof.add_operator(kind, name, [equation.node])
        return node.name, equation, self._proof.add_meter(node, reads)

    def _check_partial(self, operator: str, keys: Sequence[str], *, partial: bool) -> bool:
        """Return True if rows that come together must belong to one message.

        Raises:
            PipelineError: rows of several messages would come together without `partial`.
        """
        if partial and self._outputs.output == "once":
            raise PipelineError(
                f"{operator!r}: partial=True unites rows of several messages. With once=, a row is written if its message is "
                'accepted, so each must have one. Add the message id to the keys, or use output="whole".'
            )
        if partial or self._outputs.output == "whole":
            return False
        if not {column.lower() for column in self._id_columns} <= {key.lower() for key in keys}:
            raise PipelineError(
                f"{operator!r}: rows of several messages would come together, but only of those in this emission. A failed "
                "message is emitted again without the others, and finds none of them. Add the message id "
                f'{", ".join(map(repr, self._id_columns))} to the keys, or use run_tracked(..., output="whole"). Pass '
                "partial=True if you want rows that hold only this emission's messages."
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
