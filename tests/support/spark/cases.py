"""A run of a pipeline on real Spark and a real server, what became of its messages, and what is really in its sinks."""

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameWriter

from acker_redis import Acker, AckerConfig, InexactPipelineError, RowFailedError, UnprovenEmissionError
from acker_redis.ledger.outcomes.outcome import OutcomeBatch
from acker_redis.model.roots import root_ids
from acker_redis.spark import Once, Pipeline, RunResult, Tracker, run_tracked
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.spout.retry import RetryPolicy
from acker_redis.store.dead_letter import DeadLetter
from tests.support.spark import parquet

CONFIG = AckerConfig(app="spark", shards=2)
CHILD = "id bigint, child int"
IDS = "id bigint"

Row: TypeAlias = tuple[Any, ...]
Truth: TypeAlias = Mapping[int, Iterable[Row]]
"""Message id -> the rows that must be in the sinks when it is done."""


class Watched(Acker):
    """Notes each outcome that it takes."""

    outcomes: list[tuple[int, str]]

    def poll_batches(self, *args: Any, **options: Any) -> list[OutcomeBatch]:
        packed = super().poll_batches(*args, **options)
        for one in packed:
            self.outcomes += [(root, one.kind) for root in one.roots.tolist()]
        return packed


@dataclass
class Ended:
    """What became of the messages of one run.

    Attributes:
        error: that ended the run, if one did.
        result: of the run; None if it raised.
        emissions: how often the pipeline was called.
        kinds: message -> the outcome of each of its roots, in order.
        notified: message ids as `on_messages_done` was told of them.
        letters: dead letters by message id.
    """

    error: Exception | None = None
    result: RunResult | None = None
    emissions: int = 0
    kinds: dict[int, list[str]] = field(default_factory=dict)
    notified: list[int] = field(default_factory=list)
    letters: dict[int, DeadLetter] = field(default_factory=dict)

    @property
    def acked(self) -> set[int]:
        """Messages with a root that was acked."""
        return {message for message, kinds in self.kinds.items() if "ack" in kinds}

    @property
    def reasons(self) -> Counter[tuple[str | None, str | None]]:
        """Detail and last stage of dead letters."""
        return Counter((letter.detail, letter.last_component) for letter in self.letters.values())

    def check(self, truth: Truth, written: Iterable[Row]) -> None:
        """No false completion, no dead letter whose rows were all written, one outcome per root and message."""
        there = Counter(written)
        for message in self.acked:
            missing = Counter(truth.get(message, ())) - there
            assert not missing, f"message {message} was acked without {missing}"
        for message in self.letters:
            assert Counter(truth.get(message, ())) - there, f"message {message} is a dead letter, all of it was written"
        for message, kinds in self.kinds.items():
            assert "ack" not in kinds[:-1], f"message {message} was emitted again after it was acked: {kinds}"
        assert not self.acked & self.letters.keys()
        assert len(self.notified) == len(set(self.notified))
        here = self.acked | self.letters.keys()
        before = 0 if self.result is None else self.result.accepted_before + self.result.dead_before
        assert self.error is not None or (here <= set(self.notified) and len(self.notified) <= len(here) + before)


class Case:
    """Messages 0 ... n-1 in an app of their own, and a folder that sinks write to.

    Attributes:
        messages: one column, `id`.
        folder: of this case.
        once: log that decides what its runs write; None: sinks write themselves.
    """

    once: Once | None = None

    def __init__(self, spark: Any, url: str, folder: Path, n: int = 200, partitions: int = 2, **config: Any) -> None:
        self.spark, self.url, self.folder, self.n = spark, url, folder, n
        self.acker = Watched.connect(
            url, AckerConfig(app=f"spark-{uuid.uuid4().hex}", shards=2, message_timeout_secs=600, **config)
        )
        self.acker.outcomes = []
        self.messages: DataFrame = spark.range(0, n, 1, partitions)

    @property
    def out(self) -> str:
        """A folder for Spark's writers."""
        return str(self.folder / "out")

    def run(self, pipeline: Pipeline, messages: DataFrame | None = None, **options: Any) -> Ended:
        """Run to the end. An error is in what is returned; `done` raises it."""
        ended = Ended()
        emitted: list[Tracker] = []
        frame = self.messages if messages is None else messages

        def noting(tracker: Tracker, rows: DataFrame) -> None:
            emitted.append(tracker)
            pipeline(tracker, rows)

        def note_done(ids: npt.NDArray[np.int64]) -> None:
            ended.notified += ids.tolist()

        retry = RetryPolicy(max_attempts=2, first_delay_secs=0)
        given: dict[str, Any] = {"ids": "id", "retry": retry, "once": self.once, **options}
        column = given["ids"] if isinstance(given["ids"], str) else "id"
        is_own = messages is None and column == "id"
        ids = set(range(self.n)) if is_own else {row[0] for row in frame.select(column).collect()} - {None}
        try:
            ended.result = run_tracked(frame, noting, acker=self.acker, on_messages_done=note_done, **given)
        except Exception as exc:
            ended.error = exc
        while outcomes := self.acker.poll_batches():
            self.acker.confirm_batches(outcomes)
        ended.emissions = len(emitted)
        runs = {tracker.run_id for tracker in emitted}
        ended.letters = {one.message_id: one for one in self.acker.dead_letters.read() if one.run_id in runs}
        known = np.array(sorted(ids), np.int64)
        message_of: dict[int, int] = {}
        # Behind the last ones may be emissions of messages that were done already, for which no pipeline runs.
        behind = {(one.run_id, one.emission + more) for one in emitted for more in range(3)}
        for run_id, emission in behind:
            roots = root_ids(self.acker.config.app, run_id, known, emission)
            message_of.update(zip(roots.tolist(), known.tolist(), strict=True))
        told_roots = Counter(root for root, _ in self.acker.outcomes)
        assert not told_roots or max(told_roots.values()) == 1, "a root has two outcomes"
        for root, kind in self.acker.outcomes:
            ended.kinds.setdefault(message_of[root], []).append(kind)
        self.acker.outcomes.clear()
        return ended

    def done(self, pipeline: Pipeline, messages: DataFrame | None = None, **options: Any) -> Ended:
        """Run to the end, which has to be a good one: nothing is left in the ledger."""
        ended = self.run(pipeline, messages, **options)
        if ended.error is not None:
            raise ended.error
        assert self.acker.stats().pending == 0
        return ended

    def complete(self, pipeline: Pipeline, messages: DataFrame | None = None, **options: Any) -> Ended:
        """Run to the end, with one emission of which every message is acked."""
        ended = self.done(pipeline, messages, **options)
        assert ended.letters == {}, ended.reasons
        assert ended.emissions == 1
        assert set(ended.notified) == ended.acked
        return ended

    def refused(
        self, pipeline: Pipeline, kind: type[Exception], messages: DataFrame | None = None, **options: Any
    ) -> str:
        """Run into an error of a kind, at once and with nothing acked; returns what it says.

        Over Spark Connect, the pipeline runs twice for a wrong sum. A sum that stays unknown ends the run after three
        emissions, each of which runs the pipeline twice unless rows were exported.
        """
        ended = self.run(pipeline, messages, **{"retry": RetryPolicy(max_attempts=1, first_delay_secs=0), **options})
        if is_connect(self.spark) and kind is InexactPipelineError and "3 emissions in a row" in str(ended.error):
            assert ended.error is not None
            assert type(ended.error.__cause__) is UnprovenEmissionError
            assert "It is unknown" in str(ended.error)
            assert ended.emissions in (3, 6)
        else:
            assert type(ended.error) is kind, ended.error
            assert ended.emissions <= 1 + is_connect(self.spark)
        assert (ended.acked, ended.notified, self.acker.stats().acked) == (set(), [], 0)
        return str(ended.error)

    def append(self, name: str = "out") -> Callable[[DataFrameWriter], object]:
        """For `Tracker.write`: into a folder of this case."""
        path = str(self.folder / name)
        return lambda writer: writer.mode("append").parquet(path)

    def partition_files(self, tracker: Tracker, bad: Callable[[Row], bool] | None = None, name: str = "rows") -> Any:
        """For `Tracker.write_partitions`: a file per partition and emission; a partition with a bad row can't be written."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return partial(write_rows, folder, f"{tracker.run_id}-{tracker.emission}", bad)

    def written(self, *columns: str, name: str = "out") -> list[Row]:
        """Rows that are in the folder of a sink."""
        path = self.folder / name
        if not path.exists():
            return []
        if any(path.glob("*.rows")):
            found = [tuple(row) for file in path.glob("*.rows") for row in json.loads(file.read_text())]
            return [tuple(v for v in row) for row in found]
        if not any(path.rglob("*.parquet")):
            return []
        if (rows := parquet.read(path, *columns)) is not None:
            return rows
        frame = self.spark.read.parquet(str(path))
        return [tuple(row) for row in frame.select(*(columns or frame.columns)).collect()]


def write_rows(
    folder: Path, emission: str, bad: Callable[[Row], bool] | None, batches: Iterator[pa.RecordBatch], partition: int
) -> None:
    """A whole file or none."""
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    if bad is not None and any(map(bad, rows)):
        raise RowFailedError("can't be written")
    unfinished = folder / f"{emission}-{partition}.{uuid.uuid4().hex}"
    unfinished.write_text(json.dumps(rows, default=str))
    unfinished.rename(folder / f"{emission}-{partition}.rows")


def by_message(rows: Iterable[Row], *columns: int) -> dict[int, list[Row]]:
    """Rows by the message ids in some of their columns, the first if none is named."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        for message in {row[column] for column in columns or (0,)} - {None}:
            found.setdefault(message, []).append(row)
    return found


MakeCase: TypeAlias = Callable[..., Case]


def consume(batches: Iterator[pa.RecordBatch], partition: int) -> None:
    for _ in batches:
        pass
