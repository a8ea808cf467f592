"""The sinks of an emission, and when they write: at once, or after the whole emission is proven."""

import logging
import threading
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from acker_redis.errors import PipelineError
from acker_redis.spark.runtime.jvm import java_errors
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.spark.sinks.output_modes import AllowedWrites, Call, Scope
from acker_redis.spark.sinks.replaced_sources import EmissionTables, ReplacedSources
from acker_redis.spark.sinks.staged_tables import NewStage, StagingSink
from acker_redis.spark.worker.staged_parts import PublishParts

log = logging.getLogger("acker_redis.spark")


class LateSink(NamedTuple):
    """A sink that has kept its rows, and writes them when all others have, too.

    Attributes:
        name: name of the sink.
        write: function that writes its rows.
        text: name of the sink for people, with its targets if they are known.
    """

    name: str
    write: Callable[[], object]
    text: str


@dataclass
class Outputs:
    """The sinks of one emission.

    Attributes:
        output: scope of the output.
        only_checked: whether nothing is written at all.
        counts: sink -> number of rows that it would have written, if nothing is written.
        late: sinks that have kept their rows, in the order in which they write.
        staging: sinks whose rows are in a stage.
        new_stage: function that makes a stage. None: nothing is staged.
        caches: whether sinks cache all rows that they stage.
        publishers: sink -> function that publishes its rows in a store of the user's.
        tables: what the sinks read and write; None: nobody compares it.
        thread: thread of the pipeline.
    """

    output: Scope = "by_message"
    only_checked: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    late: list[LateSink] = field(default_factory=list)
    staging: list[StagingSink] = field(default_factory=list)
    new_stage: NewStage | None = None
    caches: bool = False
    publishers: MutableMapping[str, PublishParts] = field(default_factory=dict)
    tables: EmissionTables | None = None
    thread: int = field(default_factory=threading.get_ident, init=False)
    _checks: list[Callable[[], object]] = field(default_factory=list)
    _kept: list[DataFrame] = field(default_factory=list)
    _cached: list[DataFrame] = field(default_factory=list)
    _sources: ReplacedSources = field(default_factory=ReplacedSources)

    @property
    def waits(self) -> bool:
        """True if sinks keep their rows first, and write them later or not at all."""
        return self.only_checked or self.output != "by_message"

    def allowed_writes(self, sink: str, *, may_overwrite: bool = False, any_mode: bool = False) -> AllowedWrites:
        """Return the writes that a sink may do."""
        return AllowedWrites(sink, self.output, may_overwrite, any_mode, tables=self.tables)

    def call_dry(
        self, write: Callable[[Any], object], make_writer: Callable[[AllowedWrites], object], writes: AllowedWrites
    ) -> list[Call]:
        """Call a function with a writer that writes nothing, and return its calls.

        Args:
            write: the function.
            make_writer: function that makes the writer for the writes that it may do.
            writes: the writes that the sink may do.

        Raises:
            PipelineError: a mode is not allowed, or a sink reads what the function replaces.
            InexactPipelineError: the function called no method that writes.
        """
        dry = replace(writes, dry=True, calls=[], targets=[])
        write(make_writer(dry))
        dry.check_any_writes()
        self._sources.add_replaced(writes.sink, dry.targets)
        writes.staged = dry.staged
        return dry.calls

    def add_sink(self, sink: str, rows: DataFrame) -> None:
        """Compare what a sink reads with where others of the run write.

        Raises:
            PipelineError: another sink writes there.
        """
        if self.tables is not None:
            self.tables.add_read(sink, rows)

    def check_read(self, reader: str, rows: DataFrame) -> None:
        """Check that a whole output doesn't read what it replaces, before the rows are computed.

        Args:
            reader: name of the sink or operator that computes the rows.
            rows: the rows.

        Raises:
            PipelineError: it does.
        """
        if self.output == "whole":
            self._sources.add_read(reader, rows)

    def keep_checkpoint(self, rows: DataFrame) -> DataFrame:
        """Register the rows of a local checkpoint, which `release` drops."""
        self._kept.append(rows)
        return rows

    def keep_cached(self, rows: DataFrame) -> DataFrame:
        """Register cached rows, which `release` drops."""
        self._cached.append(rows)
        return rows

    def write_later(self, sink: str, write: Callable[[], object], targets: Sequence[str] = ()) -> None:
        """Register a sink that has kept its rows, with the function that writes them."""
        self.late.append(LateSink(sink, write, f"{sink!r} ({', '.join(targets)})" if targets else repr(sink)))

    def check_before_writing(self, check: Callable[[], object]) -> None:
        """Register a function for `check` to call."""
        self._checks.append(check)

    def check(self) -> None:
        """Run the checks that come before anything is written."""
        for check in self._checks:
            check()

    def release(self) -> None:
        """Drop the kept rows."""
        for rows in self._kept:
            if is_connect(rows.sparkSession):
                continue  # the server drops them with the last frame over them
            try:
                rows._jdf.queryExecution().analyzed().rdd().unpersist(False)  # noqa: SLF001
            except java_errors():
                log.debug("kept rows not released, Spark will drop them", exc_info=True)
        for rows in self._cached:
            try:
                rows.unpersist()
            except java_errors():
                log.debug("cached rows not released", exc_info=True)
        self._kept.clear()
        self._cached.clear()
        self.late.clear()
        self.staging.clear()
        self._checks.clear()
        self._sources.clear()

    def refuse_on_error(self, on_error: str, sink: str) -> None:
        """Reject `on_error="fail"` for rows that are written after the emission is proven.

        Raises:
            PipelineError: `on_error` is `fail`, and the sink doesn't write at once.
        """
        if self.output == "whole" and on_error == "fail":
            raise PipelineError(
                f'{sink}: output="whole" does not support on_error="fail". The output is made from all messages, so none of '
                "them can fail for it. Omit on_error. An output that can't be written is retried."
            )
        if self.output == "once" and on_error == "fail":
            raise PipelineError(
                f'{sink}: once= does not support on_error="fail". Rows are staged once all sinks are proven, so a write that '
                "fails breaks the emission. Omit on_error. The emission is retried."
            )
