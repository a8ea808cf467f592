"""Sources of rows: DataFrames that are read whole, with their progress, and the choice of a source for each spout."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
from pyspark.sql import SparkSession

from acker_redis.errors import BadConfigError
from acker_redis.spark.emission.messages import not_done
from acker_redis.spark.runs.dataframe import SAVE_SECS
from acker_redis.spark.runtime.jobs import described
from acker_redis.spark.runtime.worker_errors import own_errors
from acker_redis.spark.sources.files import check_outside
from acker_redis.storm.components.batch_spout import BatchSpout
from acker_redis.storm.components.dataframe import DataFrameSpout, is_dataframe_spout
from acker_redis.storm.definition import settings
from acker_redis.storm.definition.graph import Graph
from acker_redis.storm.turns.frames import FrameSource, TurnRows, kind_of
from acker_redis.storm.turns.micro_batches import BatchSource

log = logging.getLogger("acker_redis.storm")


class WholeFrame(FrameSource):
    """DataFrame whose rows are all known when the run begins.

    It is computed for the ids, and once more for the rows. If a turn reads only some of them, Spark keeps all for later turns.
    """

    def _check(self, spout: DataFrameSpout, *, is_tracking: bool) -> None:
        if spout.frame.isStreaming:
            raise BadConfigError(
                f"The DataFrame of spout {self.name!r} is a stream, which can't be read twice. Use BatchSpout, or pass the "
                "rows of a table or of files."
            )
        self._offsets = self._ids_from.offset_file
        if self._offsets is not None and not is_tracking:
            raise BadConfigError(
                f"The ids of spout {self.name!r} have an offset_file, but {settings.ACKER_EXECUTORS} is 0, so that nothing "
                "tells which rows are done. Omit one of them."
            )
        level = spout.frame.storageLevel
        self._is_kept = self._is_of_user = level.useDisk or level.useMemory
        self._was_read = False
        self._done: list[int] = []
        self._saved_at = 0.0

    @contextmanager
    def opened(self, app: str) -> Iterator[None]:
        """Read the ids of all rows that aren't done. At the end, save the progress and drop what Spark keeps."""
        offsets, of = self._offsets, self._ids_from
        with nullcontext() if offsets is None else offsets.open(app, of.partition, of.offset):
            messages = self._messages
            if offsets is not None:
                check_outside(messages.frame, of.partition, offsets.path)
                with own_errors():
                    messages.frame = not_done(messages.frame, offsets, of.partition, of.offset)
            with own_errors(), described(messages.frame.sparkSession, f"message ids of spout {self.name!r}"):
                self._ids = messages.read_ids(offsets, of.partition, of.offset)
            try:
                yield
            finally:
                self._drop()
                self._save()

    def take(self) -> TurnRows:
        """Begin the turn. Returns its rows."""
        if not self._is_kept and (self._was_read or len(self) < len(self._ids)):
            self._messages.frame.persist()
            self._is_kept = True
        self._was_read = True
        return super().take()

    def note_done(self, message_id: int) -> None:
        """Note that a row's message was acked, or that its dead letter was written."""
        if self._offsets is not None:
            self._done.append(message_id)

    def settle(self) -> int:
        """Save the progress if that is due."""
        if self._done and time.monotonic() - self._saved_at >= SAVE_SECS:
            self._save()
        return 0

    def _save(self) -> None:
        if self._offsets is not None:
            done, self._done = self._done, []
            self._offsets.complete(np.array(done, np.int64))
            self._offsets.save()
            self._saved_at = time.monotonic()

    def _drop(self) -> None:
        if self._is_kept and not self._is_of_user:
            try:
                self._messages.frame.unpersist()
            except Exception:  # of a session that is gone, with all that it kept
                log.debug("rows not dropped spout=%r", self.name, exc_info=True)


def frame_sources(graph: Graph, spark: SparkSession) -> dict[str, FrameSource]:
    """Check the DataFrames of a topology's spouts. Returns their sources by the spouts' names."""
    is_tracking = graph.config.get(settings.ACKER_EXECUTORS) != 0
    found: dict[str, FrameSource] = {}
    for component in graph.spouts:
        if is_dataframe_spout(component.maker):
            kind = BatchSource if kind_of(component) == BatchSpout.__name__ else WholeFrame
            found[component.name] = kind(component, spark, is_tracking=is_tracking)
    _check_checkpoints([source for source in found.values() if isinstance(source, BatchSource)])
    return found


def _check_checkpoints(sources: list[BatchSource]) -> None:
    """Check that no two queries have one checkpoint: Spark ends the first of them without an error.

    Raises:
        BadConfigError: two have.
    """
    spouts: dict[str, str] = {}
    for source in sources:
        other = spouts.setdefault(source.checkpoint, source.name)
        if other != source.name:
            raise BadConfigError(
                f"The BatchSpouts {other!r} and {source.name!r} have the same checkpoint {source.checkpoint}. Spark would end "
                "the query of one of them, and its rows would never be emitted. Give each spout a checkpoint of its own."
            )
