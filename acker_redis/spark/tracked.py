"""Tracked DataFrames: spout, bolt and sink over Spark's own operators.

A tracked DataFrame is an ordinary one with a column of anchors (see `anchors`). Acks go out from the Python workers, once
per partition, under tokens that a task retry, a stage retry and a speculative copy share, so none of them counts twice.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Self
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from acker_redis.acker import Acker
from acker_redis.config import AckerConfig
from acker_redis.errors import BadBatchError, FailedError, LedgerLostError, NotExactError
from acker_redis.pending import Emission
from acker_redis.spark import anchors as anchor_column
from acker_redis.spark import checks, lineage, sql, transport
from acker_redis.spark.data_source import Committing, acking
from acker_redis.spark.operators import (
    DROPPED,
    BoltStep,
    Chain,
    DropStep,
    Execute,
    ExplodeStep,
    FanOutStep,
    OnWriteError,
    Origin,
    SinkStep,
    SpoutStep,
    Step,
    Write,
)
from acker_redis.spark.rows import OnError, RowBolt, RowByRow, RowFunction
from acker_redis.spout import Spout


class Written(NamedTuple):
    """What a sink did, over all partitions of one run of it."""

    rows: int
    updates: int


log = logging.getLogger("acker_redis.spark")

_chains: WeakKeyDictionary[DataFrame, tuple[DataFrame, Chain]] = WeakKeyDictionary()
"""What a tracked DataFrame was made of: where it began, and the steps since. The next step joins them in one worker."""


@dataclass(frozen=True)
class Tracker:
    """Makes DataFrames tracked by one acker.

    Attributes:
        url: Redis, as the executors reach it.
        config: the app.
        run_id: unique per run of the program (`Spout.run_id`); part of every root and token.
        emission: number of the emission the DataFrame is made of (`Spout.next_emission`); part of every token. A batch
            that is computed again must have the number it had, another batch must have another. In `foreachBatch` it is
            the batch id; a streaming DataFrame itself has no such number and is refused.
        task: the spout task that will be told the outcomes (`Spout.task`).
    """

    url: str = field(repr=False)
    config: AckerConfig
    run_id: str
    emission: int
    task: int = 0
    _acker: Acker | None = field(default=None, repr=False, compare=False)
    _producers: dict[str, None] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, url: str, spout: Spout, emission: Emission) -> Self:
        """The tracker of one emission of a spout; `url` is the server as the executors reach it."""
        return cls(url, spout.acker.config, spout.run_id, emission.number, spout.task, spout.acker)

    def __getstate__(self) -> dict[str, object]:
        """Functions that run in workers may hold a tracker, for its run id and emission; a connection can't go there."""
        return {**self.__dict__, "_acker": None}

    @property
    def unconsumed(self) -> list[str]:
        """Operators whose rows no operator consumes; nothing acks those, so their roots can't complete."""
        return lineage.unconsumed(self._producers)

    def spout(
        self,
        messages: DataFrame,
        message_id: str,
        attempt: str,
        name: str = "spout",
        payload: str | None = None,
        payload_bytes: int = 0,
    ) -> DataFrame:
        """Make every row a tracked root, initialised by the executors.

        Args:
            messages: one row per message. Must give the same rows in the same partitions when a task runs again, as
                files do; after an unordered shuffle of something random they would not.
            message_id: bigint column, distinct over the emission (noticed within a partition only: ids that stand in two
                partitions share one root, whose outcome then says nothing). A row where it is null stays untracked.
            attempt: bigint column: 0 for a first emission.
            name: of the spout, unique among the operators of the emission.
            payload: column of structs to be kept in Redis for replay, before the row's root is initialised; null keeps
                nothing. The column is left out of the tracked rows. See `payloads.Payloads` and `kept_rows`.
            payload_bytes: what is longer is not kept.

        Raises:
            BadBatchError: a column is missing or not an integer, or the DataFrame is tracked already.
            NotExactError: the DataFrame is a stream, or the name belongs to other messages of this emission.
        """
        if lineage.is_tracked(messages):
            raise BadBatchError(f"spout {name!r}: the DataFrame is tracked already; drop its anchors to begin anew")
        if messages.isStreaming:
            raise NotExactError(
                f"spout {name!r}: a stream has many micro-batches and one emission number: use foreachBatch, and a Tracker "
                "whose emission is the batch id"
            )
        checks.column_names(messages.columns, name, (attempt, payload))
        id_column, attempt_column = (checks.integer_column(messages, c, name) for c in (message_id, attempt))
        if payload is not None and (
            payload not in messages.columns or not isinstance(messages.schema[payload].dataType, StructType)
        ):
            raise BadBatchError(f"spout {name!r}: payload {payload!r}: give a column of structs")
        lineage.claim_name(f"{self.run_id}:{self.emission}", name, f"messages of {lineage.source(messages)}")
        step = SpoutStep(name, self.task, id_column, attempt_column, payload, payload_bytes)
        return self._with_step(messages, step, StructType([f for f in messages.schema if f.name not in step.left_out]))

    def fan_out(self, tracked: DataFrame, *branches: str, name: str = "fan-out") -> list[DataFrame]:
        """The same rows once per branch, each with edges of its own, for DataFrames that go several ways.

        A tracked DataFrame has one consumer: its edges are acked once. A root completes when all branches have acked; a
        branch that is never run leaves its roots to time out.

        Args:
            tracked: a tracked DataFrame.
            branches: names, two or more.
            name: unique among the operators of the emission.
        """
        if len(branches) < 2 or len(set(branches)) != len(branches):
            raise BadBatchError(f"fan_out {name!r}: give two or more different branch names, got {branches!r}")
        source, chain = self._consume(tracked, name)
        output = lineage.without_anchors(tracked.schema)
        return [
            self._make(source, chain.then(FanOutStep(name, branches, branch)), output, f"{name}/{branch}")
            for branch in branches
        ]

    def bolt(self, tracked: DataFrame, execute: Execute, schema: str | StructType, name: str) -> DataFrame:
        """Turn rows into derived rows, vectorised: `execute` gets record batches and says which row each came from.

        The input rows are acked with their children folded in. `execute` should be deterministic: where it isn't, a task
        that runs again can leave trees that time out and are replayed; none completes falsely.

        Args:
            tracked: a tracked DataFrame.
            execute: called with each record batch, without the anchors; runs in the Python workers.
            schema: of its output rows, without anchors; DDL or StructType.
            name: of the bolt, unique among the operators of the emission; shows as `last_stage`.
        """
        output = checks.struct(schema, name)
        return self._with_step(tracked, BoltStep(name, execute, checks.arrow_schema(output)), output)

    def bolt_rows(
        self,
        tracked: DataFrame,
        execute: RowFunction | RowBolt,
        schema: str | StructType,
        name: str,
        on_error: OnError = "fail",
    ) -> DataFrame:
        """Turn rows into derived rows, one by one in Python; otherwise as `bolt`.

        Args:
            tracked: a tracked DataFrame.
            execute: a function of one row (a dict) that returns or yields derived rows (dicts, or values in the order of
                the schema), or an object with `execute(row, collector)`. A row it gives nothing for is acked. A row it
                raises `FailedError` for fails with that reason, while the others go on.
            schema: of the output rows; DDL or StructType.
            name: of the bolt, unique among the operators of the emission; shows as `last_stage`.
            on_error: what another exception does, and a derived row that does not fit the schema: `fail` fails the row it
                came from, with a text that says why, while the others go on; `raise` fails the task.
        """
        checks.on_error(on_error, ("fail", "raise"), name)
        if not callable(execute) and not isinstance(execute, RowBolt):
            raise BadBatchError(f"bolt {name!r}: give a function of one row, or an object with execute(row, collector)")
        output = checks.struct(schema, name)
        return self.bolt(tracked, RowByRow(execute, checks.arrow_schema(output), on_error), output, name)

    def filter(self, tracked: DataFrame, condition: str | Column, name: str) -> DataFrame:
        """Keep rows that meet a condition, in SQL; the others are acked. A null condition is not met."""
        return self._kept(tracked, condition, name)

    def fail(self, tracked: DataFrame, condition: str | Column, reason: str, name: str) -> DataFrame:
        """Fail the roots of rows that meet a condition, in SQL; the others go on. A null condition is not met."""
        if not isinstance(reason, str) or not reason:
            raise BadBatchError(f"fail {name!r}: reason={reason!r}: give a text that says what is wrong with the rows")
        good = ~F.coalesce(F.expr(condition) if isinstance(condition, str) else condition, F.lit(False))
        return self._kept(tracked, good, name, reason)

    def explode(self, tracked: DataFrame, children: str | Column, name: str) -> DataFrame:
        """Derive rows in SQL: one per element of an array expression; a row whose array is empty or null is acked.

        Any one-to-many expression is an array: `transform(split(text, ' '), w -> struct(line, w AS word))`. No Python runs
        per row and no update is sent for the derived rows: an edge is split among the children (see `sql`). So this bolt
        does not show as `last_stage`, nor refresh a root under the clock `last_update`. Right behind a spout, but for
        filters, it is a bolt like any other, in the worker that makes the roots: SQL makes the arrays, and the worker takes
        them apart, many at a time.

        Args:
            tracked: a tracked DataFrame.
            children: an array; of structs, whose fields become the columns, or of values, in a column `value`.
            name: unique among the operators of the emission.
        """
        source, chain = self._consume(tracked, name)
        if chain.spout is not None and sql.is_of_one_row(tracked, children):
            try:
                messages = sql.with_children(source, children, chain.spout.columns, name)
            except AnalysisException:  # bound to columns of this DataFrame
                pass
            else:
                element = sql.child(messages, name)
                if sql.crosses_to_python(element):
                    output = sql.columns_of(element)
                    step = ExplodeStep(name, checks.arrow_schema(output))
                    return self._make(messages, chain.then(step), output, name)
        exploded = self._sql(tracked, lambda frame: sql.exploded(frame, children, name), name)
        lineage.claim_first(f"{self.run_id}:{self.emission}", name, "SQL")  # where its edges are others
        return exploded

    def join(
        self, left: DataFrame, right: DataFrame, on: str | Sequence[str], name: str, how: str = "inner"
    ) -> DataFrame:
        """Join on equal columns, in SQL. Each row is anchored to all it was made of; a row that is left out is acked.

        Args:
            left: a tracked DataFrame.
            right: another tracked DataFrame, or one that isn't, such as a reference table. Tracked ones have to come from
                different operators: fan one out before it is joined with itself.
            on: column or columns both have. Null is equal to nothing.
            name: unique among the operators of the emission.
            how: `inner` or `left`; if both are tracked `right` and `full` too. A tracked row has to be in one task with
                all its matches, so a key with very many on both sides needs memory.

        Raises:
            BadBatchError: a column is missing, or both sides have a column of one name besides `on`.
            NotExactError: as for any operator.
        """
        keys = [on] if isinstance(on, str) else list(on)
        both = lineage.is_tracked(right)
        checks.join(left, right, keys, how, ("inner", "left", "right", "full") if both else ("inner", "left"), name)
        if not both:
            keep = how == "left"
            return self._sql(left, lambda frame: sql.looked_up(frame, right, keys, name, keep_unmatched=keep), name)
        producers = [lineage.check(frame, name) for frame in (left, right)]
        lineage.claim(f"{self.run_id}:{self.emission}", producers, name)
        return self._after_sql(sql.matched(left, right, keys, how, name), [], name)

    def group(
        self, tracked: DataFrame, keys: str | Column | Sequence[str | Column], aggregates: Sequence[Column], name: str
    ) -> DataFrame:
        """Aggregate groups, in SQL: one row per group, anchored to all rows of the group (Storm: multi-anchoring).

        A group's row carries one anchor per root it came from: 16 bytes each, so groups of millions need memory.

        Args:
            tracked: a tracked DataFrame.
            keys: columns or expressions to group by.
            aggregates: such as `F.sum("bytes").alias("bytes")`.
            name: unique among the operators of the emission.
        """
        producer = lineage.check(tracked, name)
        lineage.claim(f"{self.run_id}:{self.emission}", [producer], name)
        given = [keys] if isinstance(keys, (str, Column)) else list(keys)
        by = [checks.quoted(key) if isinstance(key, str) and key in tracked.columns else key for key in given]
        return lineage.marked(sql.grouped(tracked, by, list(aggregates)), self._producer(name))

    def union(self, *tracked: DataFrame, name: str) -> DataFrame:
        """The rows of several tracked DataFrames, matched by column name."""
        if len(tracked) < 2:
            raise BadBatchError(f"union {name!r}: give two or more tracked DataFrames")
        producers = [lineage.check(frame, name) for frame in tracked]
        lineage.claim(f"{self.run_id}:{self.emission}", producers, name)
        together = tracked[0]
        for frame in tracked[1:]:
            together = together.unionByName(frame)
        return lineage.marked(together, self._producer(name))

    def hand_over(
        self, tracked: DataFrame, name: str, form: transport.Form = "binary", column: str = "anchors"
    ) -> DataFrame:
        """Rows for another application: an ordinary DataFrame, whose anchors are in `column` in one of three forms.

        Nothing is acked: the roots stay pending until whoever calls `take_over` has acked what it makes of the rows. Each
        row must be taken over once: if it is written twice and both are read, the root may complete too early.

        Args:
            tracked: a tracked DataFrame.
            name: unique among the operators of the emission.
            form: `binary`, `json` or `array`; see `transport`.
            column: name of the column.
        """
        if form not in transport.FORMS:
            raise BadBatchError(f"hand_over {name!r}: form={form!r}: use one of {', '.join(transport.FORMS)}")
        checks.column_names([*lineage.without_anchors(tracked.schema).names, column], name)
        producer = lineage.check(tracked, name)
        lineage.claim(f"{self.run_id}:{self.emission}", [producer], name)
        return tracked.withColumn(column, transport.packed(form)).drop(anchor_column.COLUMN)

    def take_over(self, rows: DataFrame, name: str, column: str = "anchors") -> DataFrame:
        """Carry on the trees of rows that another application handed over; they need the same acker, so the same config.

        Rows that are read again after a crash should be read under the run id and emission they had, as long as tokens live
        (1.5 message timeouts): then what was acked already is left out. Otherwise their roots may time out and be replayed.
        None completes falsely.

        Args:
            rows: as they were handed over; must give the same rows in the same partitions when a task runs again.
            name: unique among the operators of the emission.
            column: binary, string (JSON) or array; null makes an untracked row.
        """
        if lineage.is_tracked(rows):
            raise BadBatchError(f"take_over {name!r}: the DataFrame is tracked already")
        anchors = transport.unpacked(rows, column, name)
        lineage.claim_name(f"{self.run_id}:{self.emission}", name, f"rows of {lineage.source(rows)}")
        return lineage.marked(rows.withColumn(anchor_column.COLUMN, anchors).drop(column), self._producer(name))

    def write(
        self, tracked: DataFrame, save: Callable[[DataFrame], object], name: str, on_error: OnWriteError = "timeout"
    ) -> Written:
        """Write with Spark's own writers, and ack all rows after `save` returned. Runs the job.

        The rows are persisted meanwhile, so that those acked are those written. Two jobs: `save`'s, and one that acks.

        Args:
            tracked: a tracked DataFrame.
            save: called with the DataFrame without its anchors, such as `lambda df: df.write.parquet(path)`. Has to write
                all of it, and to be idempotent.
            name: of the sink, unique among the operators of the emission; shows as `last_stage`.
            on_error: if `save` raises, `timeout` raises it too and leaves the roots to time out, `fail` fails them.
        """
        checks.on_error(on_error, ("timeout", "fail"), name)
        lineage.claim(f"{self.run_id}:{self.emission}", [lineage.check(tracked, name)], name)
        was_cached = tracked.is_cached
        tracked.persist()
        try:
            step = SinkStep(name, _drain)
            try:
                save(tracked.drop(anchor_column.COLUMN))
            except Exception as exc:
                if on_error == "timeout":
                    raise
                step = SinkStep(name, partial(_raise, f"{type(exc).__name__}: {exc}"), "fail")
            return self._run(tracked.select(anchor_column.COLUMN), Chain(self._origin, (step,)), name)
        finally:
            if not was_cached:
                tracked.unpersist()

    def save(
        self,
        tracked: DataFrame,
        source: type[DataSource],
        name: str,
        on_error: OnWriteError = "timeout",
        mode: str = "append",
        **options: str,
    ) -> None:
        """Write with a Python data source, and ack all rows after its writer's `commit` returned. Runs the job.

        Args:
            tracked: a tracked DataFrame.
            source: class whose `writer` gives a `DataSourceWriter` or `DataSourceArrowWriter`, which see no anchors.
            name: of the sink, unique among the operators of the emission; shows as `last_stage`.
            on_error: if a write or `commit` raises, the job fails. `timeout` leaves the roots to time out; `fail` fails
                those of the partitions that were written, the others time out.
            mode: `append` or `overwrite`.
            options: of the data source.
        """
        checks.on_error(on_error, ("timeout", "fail"), name)
        lineage.claim(f"{self.run_id}:{self.emission}", [lineage.check(tracked, name)], name)
        self._name_stage(name)
        made = acking(source, Committing(self._origin, name, on_error))
        tracked.sparkSession.dataSource.register(made)
        tracked.write.format(made.name()).mode(mode).options(**options).save()

    def sink(self, tracked: DataFrame, write: Write, name: str, on_error: OnWriteError = "timeout") -> Written:
        """Write every partition, and ack its rows after `write` returned. Runs the job.

        Args:
            tracked: a tracked DataFrame.
            write: called with the record batches of one partition, without anchors, and the partition's number; has to
                consume them all, and to be idempotent: a partition may be written again.
            name: of the sink, unique among the operators of the emission; shows as `last_stage`.
            on_error: if `write` raises, nothing of the partition is acked. `timeout`: the task fails, is tried again by
                Spark, and what never gets written times out. `fail`: the roots of the partition fail at once.
        """
        checks.on_error(on_error, ("timeout", "fail"), name)
        source, chain = self._consume(tracked, name)
        return self._run(source, chain.then(SinkStep(name, write, on_error)), name)

    def _run(self, source: DataFrame, chain: Chain, name: str) -> Written:
        self._claim_chain(chain)
        done = _map_in_arrow(source, chain, "rows bigint, updates bigint").toArrow()
        written = Written(sum(done["rows"].to_pylist()), sum(done["updates"].to_pylist()))
        if written.rows and not written.updates:
            log.warning(
                "sink %r wrote %d rows and acked none: they are untracked, or were acked under this name before",
                name, written.rows,
            )  # fmt: skip
        return written

    def _with_step(self, frame: DataFrame, step: SpoutStep | BoltStep, output: StructType) -> DataFrame:
        if isinstance(step, SpoutStep):
            source, chain = frame, Chain(self._origin, ())
        else:
            source, chain = self._consume(frame, step.name)
        return self._make(source, chain.then(step), output, step.name)

    def _kept(self, tracked: DataFrame, condition: str | Column, name: str, reason: str | None = None) -> DataFrame:
        """Rows that meet a condition; the others are acked, or failed with a reason.

        A spout's own rows are filtered where they come from, which saves them a way to Python and back.
        """
        source, chain = self._consume(tracked, name)
        if chain.spout is not None:
            try:
                return self._after_sql(sql.filtered(source, condition, name), chain.steps, name, reason)
            except AnalysisException:  # bound to columns of this DataFrame
                pass
        return self._sql(tracked, lambda frame: sql.filtered(frame, condition, name), name, reason)

    def _sql(
        self, tracked: DataFrame, change: Callable[[DataFrame], DataFrame], name: str, reason: str | None = None
    ) -> DataFrame:
        source, chain = self._consume(tracked, name)
        earlier = [step for step in chain.steps if isinstance(step, DropStep)]
        if earlier and len(earlier) == len(chain.steps):  # SQL on SQL, which still has its dropped rows
            try:
                return self._after_sql(change(source), earlier, name, reason)
            except AnalysisException:  # bound to columns of this DataFrame
                pass
        return self._after_sql(change(tracked), [], name, reason)

    def _after_sql(
        self, changed: DataFrame, earlier: Sequence[Step], name: str, reason: str | None = None
    ) -> DataFrame:
        """The rows that operators in SQL left, and the steps that ack or fail those they dropped."""
        left_out = {DROPPED, *(column for step in earlier if isinstance(step, SpoutStep) for column in step.left_out)}
        output = lineage.without_anchors(StructType([f for f in changed.schema if f.name not in left_out]))
        steps = (
            *(replace(step, last=False) if isinstance(step, DropStep) else step for step in earlier),
            DropStep(name, True, reason),
        )
        return self._make(changed, Chain(self._origin, steps), output, name)

    def _make(self, source: DataFrame, chain: Chain, output: StructType, producer: str) -> DataFrame:
        self._claim_chain(chain)
        made = _map_in_arrow(source, chain, lineage.with_anchors(output, self._producer(producer)))
        _chains[made] = (source, chain)
        return made

    def _consume(self, frame: DataFrame, name: str) -> tuple[DataFrame, Chain]:
        """Where the steps of `frame` begin, and the steps so far; refuses what could not be exact."""
        producer = lineage.check(frame, name)
        lineage.claim(f"{self.run_id}:{self.emission}", [producer], name)
        known = _chains.get(frame)
        if known is None or known[1].origin != self._origin or frame.is_cached:
            return frame, Chain(self._origin, ())
        return known

    def _claim_chain(self, chain: Chain) -> None:
        """Updates that are folded are cut into calls along the first step's; so a step has to stay behind the same one."""
        for step in chain.steps:
            if not isinstance(step, SpoutStep):
                self._name_stage(step.name)
        folded = [step.name for step in chain.steps if not isinstance(step, DropStep)]
        for name in folded:
            lineage.claim_first(f"{self.run_id}:{self.emission}", name, folded[0])

    def _producer(self, name: str) -> str:
        producer = f"{self.run_id}:{self.emission}:{name}"
        self._producers[producer] = None
        return producer

    def _name_stage(self, name: str) -> None:
        """Have an operator's name numbered now, where this process can: workers would learn late that there are too many."""
        if self._acker is not None:
            with suppress(LedgerLostError):  # the spout recovers, and so does each worker
                self._acker.ledger.stage_number(name)

    @property
    def _origin(self) -> Origin:
        return Origin(self.url, self.config, self.run_id, self.emission)


def _map_in_arrow(source: DataFrame, chain: Chain, output: StructType | str) -> DataFrame:
    """The rows of a chain. PySpark's own function takes a dot or backtick in a name for something else (4.3)."""
    if any(char in name for name in source.columns for char in ".`"):
        plain = (name if name == anchor_column.COLUMN else f"_{i}" for i, name in enumerate(source.columns))
        source, chain = source.toDF(*plain), replace(chain, columns=tuple(source.columns))
    return source.mapInArrow(chain, output)


def _drain(batches: Iterator[pa.RecordBatch], partition: int) -> None:
    for _ in batches:
        pass


def _raise(reason: str, batches: Iterator[pa.RecordBatch], partition: int) -> None:
    raise FailedError(reason)
