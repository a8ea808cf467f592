"""Topologies on Spark whose messages are the rows of micro-batches: Spark commits a batch once all of it is done."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from acker_redis import Acker, OffsetFile
from acker_redis.errors import BadConfigError, InvalidTopologyError, JobFailedError, PipelineError
from acker_redis.spark import MessageIds
from acker_redis.storm import BatchSpout, Bolt, DataFrameSpout, Topology, TopologyBuilder
from acker_redis.testing import wait_until
from tests.storm.turns import parts
from tests.storm.turns.batch_parts import ByNumber, LastOne, LastThree
from tests.storm.turns.parts import AT_ONCE, Does, Heard, HearsOfRows, Passing, chain
from tests.storm.turns.state_parts import CountsNumbers
from tests.storm.turns.test_state import state_of
from tests.support.spark import parquet
from tests.support.spark.faults import evict

pytestmark = pytest.mark.classic("over Spark Connect foreachBatch runs in another process")

NOW = {"availableNow": True}


class Hears(HearsOfRows, BatchSpout):
    def __init__(self, stream: Any, checkpoint: Path, heard: Heard, **options: Any) -> None:
        super().__init__(stream, str(checkpoint), **{"ids": "v", "retry": AT_ONCE, "trigger": NOW, **options})
        self.heard = heard


class ClassOnly(BatchSpout):
    outputs = ["v"]

    def __init__(self) -> None: ...


class Source:
    """Stream of files with a number per line. Each file is a batch."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark, self.folder, self.checkpoint = spark, folder / "in", folder / "checkpoint"
        self.folder.mkdir()
        self._files = 0

    def add(self, *values: int) -> None:
        self._files += 1
        part = self.folder / f".{self._files}"
        part.write_text("".join(json.dumps({"v": value}) + "\n" for value in values))
        part.rename(self.folder / f"{self._files}.json")

    def stream(self) -> Any:
        read = self.spark.readStream.schema("v bigint").option("maxFilesPerTrigger", 1)
        return read.json(str(self.folder))

    def spout(self, heard: Heard, **options: Any) -> Hears:
        return Hears(self.stream(), self.checkpoint, heard, **options)

    @property
    def committed(self) -> list[int]:
        return sorted(int(path.name) for path in (self.checkpoint / "commits").glob("[0-9]*"))


@contextmanager
def in_thread(topology: Topology, spark: Any, acker: Acker, stop: threading.Event | None = None) -> Iterator[Any]:
    """Run a topology beside the test. Yields its future."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(topology.run, spark, acker=acker, stop=stop, turn_secs=60)


@pytest.fixture
def source(spark: Any, tmp_path: Path) -> Source:
    return Source(spark, tmp_path)


def test_two_spouts_with_one_checkpoint_are_refused(run: Any, spark: Any, tmp_path: Path) -> None:
    """Spark ends the query of one of them without an error, so its rows would be in no tuple."""
    builder, source = TopologyBuilder(), Source(spark, tmp_path)
    source.add(1, 2)
    (tmp_path / "link").symlink_to(tmp_path)
    for name, checkpoint in (("a", tmp_path / "checkpoint"), ("b", tmp_path / "link" / "checkpoint")):
        builder.set_spout(name, BatchSpout(source.stream(), f"{checkpoint}/", ids="v", trigger=NOW))
    builder.set_bolt("bolt", Passing).shuffle_grouping("a").shuffle_grouping("b")
    with pytest.raises(BadConfigError, match=r"'a' and 'b' have the same checkpoint .* a checkpoint of its own"):
        run(builder.create_topology("two"))


def test_rows_of_each_batch_are_acked_and_then_the_batch_is_committed(run: Any, source: Source) -> None:
    heard = Heard()
    source.add(*range(40))
    source.add()
    source.add(*range(40, 60))
    result = run(chain(source.spout(heard), Passing, Passing))
    assert sorted(heard.acked) == list(range(60)) and source.committed == [0, 1, 2]
    assert (result.acked, result.failed, result.unfinished) == (60, 0, 0)
    assert result.metrics["b"].executed == {"a:default": 60}
    source.add(60, 61)
    assert run(chain(source.spout(heard), Passing)).acked == 2, "the next run begins behind the last batch"
    assert sorted(heard.acked) == list(range(62)) and source.committed == [0, 1, 2, 3]


def test_a_batch_is_larger_than_the_bound_and_its_rows_go_to_a_sink(
    run: Any, source: Source, spark: Any, tmp_path: Path
) -> None:
    heard = Heard()
    source.add(*range(50))
    source.add(*range(50, 70))
    out = str(tmp_path / "out")
    builder = TopologyBuilder()
    builder.set_spout("rows", source.spout(heard))
    builder.set_bolt("seen", parts.Seen, par=2).shuffle_grouping("rows")
    topology = builder.create_topology("sunk", {"topology.max.spout.pending": 20})
    run(topology, sinks={"seen": lambda writer: writer.mode("append").parquet(out)})
    assert sorted(heard.acked) == list(range(70)) and source.committed == [0, 1]
    assert sorted(int(v) for (v,) in parquet.rows(out, "v")) == list(range(70))


def test_rows_of_batches_are_counted_in_a_state_and_written(
    run: Any, source: Source, acker: Acker, spark: Any, tmp_path: Path
) -> None:
    """The job of a turn, its commit and its sink run in the session of the query."""
    heard, out = Heard(), str(tmp_path / "out")
    source.add(*range(10), 20)
    source.add(*range(10))
    builder = TopologyBuilder()
    builder.set_spout("rows", source.spout(heard))
    builder.set_bolt("count", CountsNumbers, par=2).fields_grouping("rows", "v")
    run(
        builder.create_topology("words", {"topology.max.spout.pending": 6}),
        sinks={"count": lambda writer: writer.mode("append").parquet(out)},
    )
    assert Counter(heard.acked) == {**dict.fromkeys(range(10), 2), 20: 1} and source.committed == [0, 1]
    state = {key: n for key, n in state_of(acker).items() if isinstance(key, int)}
    assert state == {**dict.fromkeys(range(10), 2), 20: 1}
    assert Counter(n for (n,) in parquet.rows(out, "n")) == {1: 11, 2: 10}


def test_a_failed_row_is_read_again_and_dead_lettered_before_its_batch_ends(
    run: Any, source: Source, acker: Acker
) -> None:
    heard = Heard()
    source.add(1, 2, 3)
    source.add(4)
    result = run(chain(source.spout(heard, dead_letter_bytes=100), Does("fail_at", 2)))
    assert sorted(heard.acked) == [1, 3, 4] and result.dead_letters == 1 and source.committed == [0, 1]
    assert heard.failed.keys() == {2} and result.failed == 2
    assert heard.acked[-1] == 4, "the next batch comes behind the last attempt"
    (letter,) = acker.dead_letters.read()
    assert letter.attempts == 2 and json.loads(letter.payload or b"")["row"] == {"v": 2}
    assert acker.dead_letters.replay() == 1
    source.add(2)
    run(chain(source.spout(heard), Passing))
    assert acker.dead_letters.count() == 1, "the row of the letter is gone, and the letter stays"


@pytest.mark.parametrize("bolt", [ByNumber, LastOne])
def test_batches_by_number_are_processed_at_the_end_of_each_micro_batch(
    run: Any, source: Source, bolt: type[Bolt]
) -> None:
    """No row waits for the next one, because the run has nothing else to do, or because each is a window of its own."""
    heard = Heard()
    source.add(10, 11, 12, 13)
    source.add(14, 15)
    run(chain(source.spout(heard), bolt, par=1))
    assert sorted(heard.acked) == list(range(10, 16)) and source.committed == [0, 1]


def test_windows_that_wait_for_the_next_micro_batch_are_refused_before_the_query_starts(
    run: Any, spark: Any, source: Source
) -> None:
    source.add(1)
    with pytest.raises(InvalidTopologyError, match="'a' holds rows of BatchSpout 'spout'"):
        run(chain(source.spout(Heard()), LastThree))
    assert not source.checkpoint.exists() and not spark.streams.active


def test_a_forgotten_row_times_out_and_its_batch_ends(run: Any, source: Source) -> None:
    heard = Heard()
    source.add(0, 1, 2)
    config = {"topology.message.timeout.secs": 1}
    result = run(chain(source.spout(heard), Does("forget_odd", auto_ack=False), config=config))
    assert sorted(heard.acked) == [0, 2] and heard.failed == {1: "timeout"}
    assert result.dead_letters == 1 and source.committed == [0]


def test_batches_mix_with_another_stream_a_dataframe_and_the_driver(
    run: Any, source: Source, spark: Any, tmp_path: Path
) -> None:
    """Each query has a session of its own, and a turn has rows of all."""
    (tmp_path / "other").mkdir()
    other = Source(spark, tmp_path / "other")
    heard = [Heard() for _ in range(4)]
    source.add(*range(20))
    other.add(*range(5))
    builder = TopologyBuilder()
    builder.set_spout("one", source.spout(heard[0]))
    builder.set_spout("two", other.spout(heard[1]))
    builder.set_spout("three", DataFrameSpout(spark.range(9).selectExpr("id AS v"), ids="v"))
    builder.set_spout("four", parts.spout_of([(number, number) for number in range(7)], heard[3]))
    bolt = builder.set_bolt("bolt", Passing, par=2)
    for name in ("one", "two", "three", "four"):
        bolt.shuffle_grouping(name)
    result = run(builder.create_topology("mixed"), sinks=None)
    counts = {"one": 20, "two": 5, "three": 9, "four": 7}
    assert result.metrics["bolt"].executed == {f"{name}:default": count for name, count in counts.items()}
    assert result.acked == 41 and source.committed == other.committed == [0]


def test_a_stopped_run_commits_no_batch_that_isnt_done(
    spark: Any, acker: Acker, source: Source, tmp_path: Path
) -> None:
    heard, stop = Heard(), threading.Event()
    source.add(*range(6))
    bolt = Does("wait_at", 0, str(tmp_path))
    topology = chain(source.spout(heard, trigger=None), bolt, config={"topology.max.spout.pending": 3})
    with in_thread(topology, spark, acker, stop) as going:
        wait_until((tmp_path / "began").exists, "a turn runs", 60)
        stop.set()
        (tmp_path / "enough").touch()
        result = going.result()
    assert sorted(heard.acked) == [0, 1, 2] and result.unfinished == 0, "it is drained"
    assert source.committed == [] and not spark.streams.active
    chain(source.spout(heard), Passing).run(spark, acker=acker)
    assert source.committed == [0]
    assert Counter(heard.acked) == {**dict.fromkeys(range(3), 2), **dict.fromkeys(range(3, 6), 1)}


def test_a_query_that_is_stopped_from_outside_ends_the_run(
    spark: Any, acker: Acker, source: Source, tmp_path: Path
) -> None:
    heard = Heard()
    source.add(*range(6))
    topology = chain(
        source.spout(heard, trigger=None), Does("wait_at", 0, str(tmp_path)), config={"topology.max.spout.pending": 3}
    )
    with in_thread(topology, spark, acker) as going:
        wait_until((tmp_path / "began").exists, "a turn runs", 60)
        (query,) = spark.streams.active
        stopper = threading.Thread(target=query.stop)
        stopper.start()
        wait_until(lambda: not query.isActive, "the query is being stopped", 60)
        (tmp_path / "enough").touch()
        result = going.result()
        stopper.join(60)
    assert not stopper.is_alive() and sorted(heard.acked) == [0, 1, 2] and source.committed == []
    assert result.unfinished == 0


def test_a_batch_that_is_done_when_the_run_is_stopped_is_committed(
    spark: Any, acker: Acker, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run waits for the commit, on a busy machine for longer than is usual."""
    monkeypatch.setattr("acker_redis.storm.turns.micro_batches._COMMIT_SECS", 150.0)
    stop = threading.Event()

    class Stops(Hears):
        def ack(self, tup_id: int) -> None:
            super().ack(tup_id)
            stop.set()

    heard = Heard()
    source.add(1, 2, 3)
    topology = chain(Stops(source.stream(), source.checkpoint, heard, trigger=None), Passing)
    result = topology.run(spark, acker=acker, stop=stop)
    assert sorted(heard.acked) == [1, 2, 3] and result.unfinished == 0
    assert source.committed == [0] and not spark.streams.active


def test_a_batch_whose_kept_rows_are_lost_is_read_from_its_source_again(run: Any, spark: Any, source: Source) -> None:
    class Evicts(Hears):
        def ack(self, tup_id: int) -> None:
            super().ack(tup_id)
            evict(spark.sparkContext)

    heard = Heard()
    source.add(*range(12))
    run(chain(Evicts(source.stream(), source.checkpoint, heard), Passing), turn_tuples=5)
    assert sorted(heard.acked) == list(range(12)) and source.committed == [0]


def test_an_error_of_the_run_ends_the_query(spark: Any, acker: Acker, source: Source) -> None:
    class Raises(Hears):
        def ack(self, tup_id: int) -> None:
            raise LookupError(tup_id)

    source.add(1)
    spout = Raises(source.stream(), source.checkpoint, Heard(), trigger=None)
    with pytest.raises(LookupError, match="1"):
        chain(spout, Passing).run(spark, acker=acker)
    assert not spark.streams.active and source.committed == [] and acker.pending() == 0


@pytest.mark.parametrize(
    ("values", "text"), [((1, 2, 2), "1 rows repeat the id"), ((1, None), "1 message has a null id")]
)
def test_ids_that_name_no_row_end_query_and_run(
    run: Any, spark: Any, source: Source, values: tuple[Any, ...], text: str
) -> None:
    heard = Heard()
    source.add(0)
    source.add(*values)
    with pytest.raises(PipelineError, match=text):
        run(chain(source.spout(heard), Passing))
    assert heard.acked == [0] and source.committed == [0] and not spark.streams.active


def test_an_error_of_the_query_ends_the_run(run: Any, spark: Any, source: Source) -> None:
    heard = Heard()
    source.add(1)
    stream = source.stream().selectExpr("v", "raise_error('broken source') AS w")
    with pytest.raises(JobFailedError, match=r"^The query of BatchSpout 'spout' failed: [^\n]*broken source[^\n]*$"):
        run(chain(Hears(stream, source.checkpoint, heard), Passing))
    assert not heard and not spark.streams.active


def test_a_paused_app_holds_the_query(spark: Any, acker: Acker, source: Source) -> None:
    heard, stop = Heard(), threading.Event()
    source.add(1)
    acker.admin.pause(reason="a test")
    with in_thread(chain(source.spout(heard), Passing), spark, acker, stop) as going:
        wait_until(lambda: acker.admin.paused() is not None, "the app is paused", 60)
        acker.admin.resume()
        wait_until(lambda: source.committed == [0], "the batch is committed", 60)
        stop.set()
        assert going.result().acked == 1 and heard.acked == [1]


@pytest.mark.parametrize(
    ("options", "config", "text"),
    [
        ({"ids": MessageIds.offsets("v", "v", offset_file=OffsetFile("p"))}, {}, "the checkpoint keeps the progress"),
        ({"trigger": {"often": True}}, {}, r"The trigger \{'often': True\} of BatchSpout 'spout' is invalid"),
        ({}, {"topology.acker.executors": 0}, "'spout' needs ackers"),
        ({"ids": 7}, {}, "BatchSpout 'spout': ids=7 is not a source"),
    ],
)
def test_settings_that_a_stream_cant_have_are_refused(
    run: Any, spark: Any, source: Source, options: Any, config: Any, text: str
) -> None:
    source.add(1)
    with pytest.raises(BadConfigError, match=text):
        run(chain(source.spout(Heard(), **options), Passing, config=config))
    assert not source.checkpoint.exists() and not spark.streams.active


def test_a_spout_of_batches_needs_a_stream_and_a_checkpoint(spark: Any, source: Source, acker: Acker) -> None:
    with pytest.raises(BadConfigError, match="is not the DataFrame of a stream"):
        BatchSpout(spark.range(3), "checkpoint")
    with pytest.raises(BadConfigError, match="checkpoint_location=None is not a path"):
        BatchSpout(source.stream(), None)  # type: ignore[arg-type]
    with pytest.raises(BadConfigError, match="trigger=7 is not a dict"):
        BatchSpout(source.stream(), "checkpoint", trigger=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidTopologyError, match="'spout' is a class of BatchSpout"):
        chain(ClassOnly, Passing).run(spark, acker=acker)
    with pytest.raises(InvalidTopologyError, match="'spout' emits rows of a DataFrame"):
        chain(source.spout(Heard()), Passing).run_local(acker)
