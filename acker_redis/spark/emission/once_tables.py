"""Stages and tables of a run whose rows a publish log accepts."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

from pyspark.sql import SparkSession

from acker_redis.errors import AckerError, BadConfigError, LogLostError
from acker_redis.model.arrays import Int64Array
from acker_redis.publishing.disk import make_folder, sync, sync_tree
from acker_redis.publishing.files import LocalFiles, check_partitions, check_rename, files_below, local_folder
from acker_redis.publishing.log_folder import STAGE
from acker_redis.publishing.log_state import LogState
from acker_redis.publishing.records import Staged
from acker_redis.spark.emission.outages import patiently
from acker_redis.spark.emission.run_log import RunLog
from acker_redis.spark.proof.blame import line_of
from acker_redis.spark.sinks.delta_tables import DeltaTables, all_of_stage, is_delta_table, location_of
from acker_redis.spark.sinks.outputs import Outputs
from acker_redis.spark.sinks.staged_writes import DELTA, StagedTarget, Staging
from acker_redis.spout.in_flight import Emission


@dataclass
class OnceTables:
    """Put rows into stages, and from there into tables.

    Attributes:
        session: Spark session of the run.
        run: log of the run.
        folder: folder in which Spark looks for tables with a relative path.
        root: folder of the log, and of those of other data.
        files: what moves staged files into tables, once a run has begun.
        delta: what appends staged rows to Delta tables, once a run has begun.
    """

    session: SparkSession
    run: RunLog
    folder: Path
    root: Path
    files: LocalFiles = field(init=False)
    delta: DeltaTables = field(init=False)
    _numbers: Iterator[int] = field(default_factory=count, init=False)
    _targets: dict[tuple[str, str], str] = field(default_factory=dict, init=False)
    _sinks_of_delta: dict[str, str] = field(default_factory=dict, init=False)

    def begin(self) -> None:
        """Complete what earlier runs have accepted, and remove what they have left in stages.

        Raises:
            Exception: as `publish`.
        """
        state = self.run.publish_log.state
        self._set_log(state)
        self.publish()
        for stage in self._stages.glob("[0-9]*"):
            if int(stage.name) < state.epoch:
                shutil.rmtree(stage, ignore_errors=True)

    def check_known(self, state: LogState) -> None:
        """Check that the tables of a log have no rows that it doesn't know.

        Raises:
            LogLostError: one has.
        """
        self._set_log(state)
        for target in sorted(state.tables):
            self.check_log(target, state.newest_accepted, is_delta=is_delta_table(self.session, target))

    def _set_log(self, state: LogState) -> None:
        self.files, self.delta = LocalFiles(state.name), DeltaTables(self.session, state.name)

    def outputs_of(self, emission: Emission) -> Outputs:
        """Return the sinks of an emission, which write into stages."""
        return Outputs("once", new_stage=partial(self.new_stage, emission))

    def new_stage(self, emission: Emission, sink: str, target: StagedTarget) -> Path:
        """Check a table, and return a stage for it."""
        self._target_of(sink, target)
        return self._new_folder(emission)

    def drop_stages(self, emission: Emission) -> None:
        """Remove the stages of an emission that has ended. A stage stays that a record may have."""
        if not self.run.publish_log.may_need(folder := self._folder_of(emission)):
            self.delta.forget(folder)
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def _stages(self) -> Path:
        return self.run.location / STAGE

    def _folder_of(self, emission: Emission) -> Path:
        return self._stages / str(self.run.publish_log.state.epoch) / str(emission.number)

    def _new_folder(self, emission: Emission) -> Path:
        """Return a folder for a stage, which doesn't exist yet. Its parent does."""
        make_folder(parent := self._folder_of(emission))
        return parent / str(next(self._numbers))

    def staged(self, emission: Emission, sink: Staging, left_out: Int64Array) -> Staged:
        """Stage the rows of a sink, except those of messages with some roots, and put them on the disk."""
        place = self._target_of(sink.name, sink.target)
        staged = sink.stage(self._new_folder(emission), left_out) if len(left_out) else sink.all_rows
        folder = staged.folder
        if sink.target.format == DELTA:
            sync_tree(folder, all_of_stage(folder))
            sync(folder.parent)
            return Staged(sink.name, DELTA, place, str(folder), staged.files, staged.rows, sink.target.options)
        target = Path(place)
        example = next(files_below(target), None)
        if example is not None and staged.files:
            check_partitions(sink.name, target, example.relative_to(target), Path(staged.files[0]))
        # An empty file is only good for showing the columns of a table that has no other.
        files = staged.files if staged.rows or example is None else ()
        if files:  # on the disk before the record is, which may be all that a loss of power leaves
            sync_tree(folder, files)
            sync(folder.parent)
        return Staged(sink.name, "files", place, str(folder), files, staged.rows)

    def check_sinks(self, sinks: Sequence[Staging]) -> None:
        """Check that the sinks are those of the messages that were accepted before.

        A stream has no end of its data, so it may have others from a start on. All that was accepted before is published.

        Raises:
            BadConfigError: they aren't.
        """
        state, now = (
            self.run.publish_log.state,
            {sink.name: self._target_of(sink.name, sink.target) for sink in sinks},
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

    def _target_of(self, sink: str, target: StagedTarget) -> str:
        """Return the whole path or URI of a sink's table, which was checked once."""
        is_of_delta = target.format == DELTA
        given = (target.folder, sink if is_of_delta else "")
        if given not in self._targets:
            if is_of_delta:
                place = location_of(self.session, sink, target.folder)
            else:
                place = str(local_folder(target.folder, f"{sink!r}: the table", self.folder))
            real, log = Path(place).resolve(), self.root.resolve()
            if real.is_relative_to(log) or log.is_relative_to(real):
                raise BadConfigError(
                    f"{sink!r}: the table {place} and the publish log {self.root} are in each other. Readers of the "
                    "table would read what is staged. Choose another folder for the log."
                )
            if not is_of_delta and Path(place, "_delta_log").exists():
                raise BadConfigError(
                    f"{sink!r}: {place} is a Delta table, whose readers don't see other files. Write with "
                    "format('delta'), or to another folder."
                )
            if is_of_delta and (other := self._sinks_of_delta.setdefault(place, sink)) != sink:
                raise BadConfigError(
                    f"{sink!r}: the sink {other!r} writes to the Delta table {place}, too. Each would be checked "
                    "against a table without the rows of the other. Unite the rows before one sink, or write to two tables."
                )
            self.check_log(place, self.run.publish_log.state.newest_accepted, is_delta=is_of_delta)
            if not is_of_delta:
                self.run.wait_for(partial(check_rename, self._stages, Path(place)))
            self._targets[given] = place
        return self._targets[given]

    def check_log(self, target: str, known: int, *, is_delta: bool) -> None:
        """Check that a table has no rows of a record behind the newest one with rows that is known.

        Raises:
            LogLostError: it has.
        """
        newest = (self.delta if is_delta else self.files).newest_number(target)
        if newest > known:
            raise LogLostError(
                f"The table {target} has rows of record {newest} of the publish log, whose newest record with rows is "
                f"{known}. So the log was lost or set back, and rows would be written twice. Empty the folder "
                f"{self.run.location}, and restore the newest log into it."
            )

    def publish(self) -> None:
        """Publish what is accepted, up to the first error.

        Raises:
            FilesNotMovedError: staged files are gone, or stand where they shouldn't.
            AckerError: rows can't be published. The error names the record and the sink.
        """
        at: list[object] = [0, ""]

        def publish(number: int, staged: Staged) -> None:
            at[:] = number, staged.name
            (self.delta if staged.kind == DELTA else self.files).publish(number, staged)

        try:
            patiently(lambda: self.run.publish_log.publish(publish), self.run.outage_secs, "table")
        except AckerError:
            raise
        except Exception as exc:
            raise AckerError(
                f"Rows of record {at[0]} of the publish log {self.run.location} can't be put into the table of the sink "
                f"{at[1]!r}: {line_of(exc)}. They are accepted, so they must get there before anything else does, and nothing "
                "more was acked. Repair the cause, and run again. The next run puts them there."
            ) from None  # its cause would be taken for an outage or for the fault of a row
