"""Stages and tables of a run whose rows a publish log accepts."""

import logging
import shutil
import uuid
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

from pyspark.sql import SparkSession

from acker_redis.errors import AckerError, BadConfigError, LogLostError, UnprovenEmissionError
from acker_redis.model.arrays import Int64Array
from acker_redis.publishing.disk import make_folder
from acker_redis.publishing.files import check_rename
from acker_redis.publishing.log_state import LogState
from acker_redis.publishing.object_store import is_in_object_store
from acker_redis.publishing.records import FILES, Staged
from acker_redis.spark.emission.outages import patiently
from acker_redis.spark.emission.run_log import RunLog
from acker_redis.spark.proof.blame import line_of
from acker_redis.spark.runtime.jvm import java_context
from acker_redis.spark.sinks.delta_tables import DELTA, DeltaTables
from acker_redis.spark.sinks.file_tables import FileTables
from acker_redis.spark.sinks.iceberg_tables import ICEBERG, IcebergTables
from acker_redis.spark.sinks.outputs import Outputs
from acker_redis.spark.sinks.staged_tables import Stage, StagedTables, StagedTarget, StagingSink
from acker_redis.spark.sinks.store_tables import STORE, StoreTables, UnknownStoreError
from acker_redis.spark.worker.staged_parts import PublishParts
from acker_redis.spout.in_flight import Emission

log = logging.getLogger("acker_redis.spark")

_DEFAULT_FS = "fs.defaultFS"


@dataclass
class OnceTables:
    """Put rows into stages, and from there into tables.

    Attributes:
        session: Spark session of the run.
        run: log of the run.
        folder: folder in which Spark looks for tables with a relative path.
        root: folder of the log, and of those of other data.
        stages: folder of the stages. Only this process has it if the log is in an object store, and removes it.
        publishers: sink -> function that publishes its rows, if the user has given one.
    """

    session: SparkSession
    run: RunLog
    folder: Path
    root: str
    stages: Path
    publishers: dict[str, PublishParts] = field(default_factory=dict, init=False)
    _caches: bool = field(default=False, init=False)
    _kinds: dict[str, StagedTables] = field(default_factory=dict, init=False)
    _log: str = field(default="", init=False)
    _numbers: Iterator[int] = field(default_factory=count, init=False)
    _places: dict[tuple[str, str], str] = field(default_factory=dict, init=False)
    _first_sinks: dict[str, tuple[str, str]] = field(default_factory=dict, init=False)

    def begin(self) -> None:
        """Complete what earlier runs have accepted, and remove what they have left in stages.

        Raises:
            Exception: as `publish`.
        """
        state = self.run.publish_log.state
        self._set_log(state)
        if is_in_object_store(self.root):
            weakref.finalize(self, shutil.rmtree, self.stages, ignore_errors=True)
        if not self.publish_known():
            return  # a stage may be needed
        for stage in self.stages.glob("[0-9]*"):
            if int(stage.name) < state.epoch:
                self._remove(stage, "*/*")

    def check_known(self, state: LogState) -> None:
        """Check that the tables of a log have no rows that it doesn't know.

        Raises:
            LogLostError: one has.
        """
        self._set_log(state)
        for place in sorted(state.tables):
            for tables in self._kinds.values():
                self._check_log(tables, place, state.newest_accepted)

    def _set_log(self, state: LogState) -> None:
        if not self._kinds or self._log != state.name:
            self._log = state.name
            self._kinds = {
                FILES: FileTables(state.name, self.folder, self._probe, self.session.catalog.refreshByPath),
                DELTA: DeltaTables(self.session, state.name),
                ICEBERG: IcebergTables(self.session, state.name, self._waiting),
                STORE: StoreTables(self.publishers),
            }

    def _probe(self, place: Path) -> None:
        self.run.wait_for(partial(check_rename, self.stages, place))

    def _waiting(self) -> list[Staged]:
        return [staged for accepted in self.run.publish_log.state.to_publish.values() for staged in accepted.staged]

    def outputs_of(self, emission: Emission) -> Outputs:
        """Return the sinks of an emission, which write into stages."""
        stage = partial(self.new_stage, emission)
        return Outputs("once", new_stage=stage, caches=self._caches, publishers=self.publishers)

    def new_stage(self, emission: Emission, sink: str, target: StagedTarget) -> Stage:
        """Check a table, and return a stage for it."""
        place, epoch, number = self._place_of(sink, target), self.run.publish_log.state.epoch, next(self._numbers)
        make_folder(parent := self._folder_of(emission))
        key = f"{self._log}-{epoch:08}-{emission.number:08}-{number:06}-{uuid.uuid4().hex[:12]}"
        return Stage(parent / str(number), place, self._kinds[target.kind], key)

    def drop_stages(self, emission: Emission) -> None:
        """Remove the stages of an emission that has ended. A stage stays that a record may have."""
        if not self.run.publish_log.may_need(folder := self._folder_of(emission)):
            self._remove(folder, "*")

    def _remove(self, folder: Path, stages: str) -> None:
        """Remove stages below a folder, and what they have left elsewhere."""
        for stage in folder.glob(stages):
            for tables in self._kinds.values():
                tables.forget(stage)
        shutil.rmtree(folder, ignore_errors=True)

    def _folder_of(self, emission: Emission) -> Path:
        return self.stages / str(self.run.publish_log.state.epoch) / str(emission.number)

    def staged(self, emission: Emission, sink: StagingSink, left_out: Int64Array) -> Staged:
        """Stage the rows of a sink, except those of messages with some roots, and put them on the disk.

        Raises:
            UnprovenEmissionError: the stage has other rows than it should, or rows can't be computed again. Try it again.
            PipelineError: the table can't take the rows.
            Exception: a job failed.
        """
        stage = self.new_stage(emission, sink.name, sink.target)
        try:
            staged = sink.stage(stage, left_out) if len(left_out) else sink.all_rows
        except Exception as exc:
            if sink.is_cached:
                raise
            self._caches = True
            raise UnprovenEmissionError(
                f"{sink.name!r}: the rows can't be computed again without those of failed messages: {line_of(exc)}. The "
                "pipeline has returned, so something that they need may be gone. They are cached from now on, so this is "
                "retried."
            ) from None  # its cause would be taken for the fault of a row
        return stage.tables.keep(sink.name, sink.target, stage.place, staged)

    def check_sinks(self, sinks: Sequence[StagingSink]) -> None:
        """Check that the sinks are those of the messages that were accepted before.

        A stream has no end of its data, so it may have others from a start on. All that was accepted before is published.

        Raises:
            BadConfigError: they aren't.
        """
        state, now = (
            self.run.publish_log.state,
            {sink.name: self._place_of(sink.name, sink.target) for sink in sinks},
        )
        before = {} if self.run.spout.goes_on and state.newest_accepted < state.epoch else state.sinks
        if before and before != now:
            changed = sorted(dict(before.items() ^ now.items()))
            until = (
                "until the next start" if self.run.spout.goes_on else "until all of the data is done, or other data="
            )
            raise BadConfigError(
                f"{', '.join(map(repr, changed))}: these sinks are new, missing, or have another folder than those of the "
                f"messages that the log {self.run.location} has accepted. So tables would lack messages. Use the same sinks "
                f"and folders {until}."
            )

    def _place_of(self, sink: str, target: StagedTarget) -> str:
        """Return the whole path or URI of a sink's table, which was checked once."""
        given = (sink, target.path)
        if given not in self._places:
            tables = self._kinds[target.kind]
            if tables.are_folders:
                self._check_disk(sink)
            place = tables.place_of(sink, target.path)
            if tables.are_folders:
                self._check_folder(sink, target, place)
            self._check_log(tables, place, self.run.publish_log.state.newest_accepted)
            self._places[given] = place
        return self._places[given]

    def _check_disk(self, sink: str) -> None:
        """Check that a stage is where Spark's executors write a path without a scheme.

        Raises:
            BadConfigError: it isn't.
        """
        if is_in_object_store(self.root):
            raise BadConfigError(
                f"{sink!r}: files and Delta tables can't be staged, because the publish log {self.root} is in an object "
                "store. Their rows wait in a folder beside the log. Put the log on a disk that driver and executors share, "
                "or append to an Iceberg table."
            )
        default = str(java_context(self.session.sparkContext).hadoopConfiguration().get(_DEFAULT_FS, "file:///"))
        if not default.startswith("file:"):
            raise BadConfigError(
                f"{sink!r}: Spark writes paths without a scheme to {default}, and the rows of files and Delta tables have to "
                "wait on a local disk. Set spark.hadoop.fs.defaultFS to file:///, or append to an Iceberg table."
            )

    def _check_folder(self, sink: str, target: StagedTarget, place: str) -> None:
        """Check a folder against the log and the folders of other sinks.

        Raises:
            BadConfigError: one is in the other, or sinks can't share a folder.
        """
        real, log = Path(place).resolve(), Path(self.root).resolve()
        if real.is_relative_to(log) or log.is_relative_to(real):
            raise BadConfigError(
                f"{sink!r}: the table {place} and the publish log {self.root} are in each other. Readers of the "
                "table would read what is staged. Choose another folder for the log."
            )
        kind, other = self._first_sinks.setdefault(str(real), (target.kind, sink))
        if kind != target.kind:
            raise BadConfigError(
                f"{sink!r}: the sink {other!r} writes to the folder {place}, too, and only one of them writes a Delta "
                "table. Readers would see the rows of one sink. Write to two folders."
            )
        if self._kinds[target.kind].one_sink_each and other != sink:
            raise BadConfigError(
                f"{sink!r}: the sink {other!r} writes to the table {place}, too. Each would be checked "
                "against a table without the rows of the other. Unite the rows before one sink, or write to two tables."
            )

    def _check_log(self, tables: StagedTables, place: str, known: int) -> None:
        """Check that a table has no rows of a record behind the newest one with rows that is known.

        Raises:
            LogLostError: it has.
        """
        newest = tables.newest_number(place)
        if newest > known:
            raise LogLostError(
                f"The table {place} has rows of record {newest} of the publish log, whose newest record with rows is "
                f"{known}. So the log was lost or set back, and rows would be written twice. Empty the folder "
                f"{self.run.location}, and restore the newest log into it."
            )

    def publish_known(self) -> bool:
        """Publish as `publish` does. Return False if rows wait for a function that the pipeline hasn't given yet."""
        try:
            self._publish()
        except UnknownStoreError as exc:
            log.info("rows wait for the pipeline to call a sink sink=%r log=%s", str(exc), self.run.location)
            return False
        return True

    def publish(self) -> None:
        """Publish what is accepted, up to the first error.

        Raises:
            AckerError: rows wait for a sink that the pipeline doesn't call.
            Exception: as `_publish`.
        """
        try:
            self._publish()
        except UnknownStoreError as exc:
            raise AckerError(
                f"Accepted rows of the publish log {self.run.location} wait for the sink {str(exc)!r}, and the pipeline calls "
                "no tracker.write_staged of that name. Nothing behind them was published or acked. Call it again, or give "
                "the rows up by acker-redis once skip."
            ) from None

    def _publish(self) -> None:
        """Publish what is accepted, up to the first error.

        Raises:
            UnknownStoreError: rows wait for a function that the pipeline hasn't given.
            FilesNotMovedError: staged files are gone, or stand where they shouldn't.
            AckerError: rows can't be published. The error names the record and the sink.
        """
        at: list[object] = [0, ""]

        def publish(number: int, staged: Staged) -> None:
            at[:] = number, staged.name
            self._kinds[staged.kind].publish(number, staged)

        try:
            patiently(lambda: self.run.publish_log.publish(publish), self.run.outage_secs, "table")
        except (AckerError, UnknownStoreError):
            raise
        except Exception as exc:
            raise AckerError(
                f"Rows of record {at[0]} of the publish log {self.run.location} can't be put into the table of the sink "
                f"{at[1]!r}: {line_of(exc)}. They are accepted, so they must get there before anything else does, and nothing "
                "more was acked. Repair the cause, and run again. The next run puts them there."
            ) from None  # its cause would be taken for an outage or for the fault of a row
