"""Topologies on Spark whose messages are the rows of a DataFrame: each is acked, replayed, or a dead letter."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from acker_redis import Acker, OffsetFile
from acker_redis.errors import BadConfigError, InexactPipelineError, InvalidTopologyError, PipelineError
from acker_redis.spark import MessageIds, read_files
from acker_redis.storm import BatchSpout, DataFrameSpout, Grouping, TopologyBuilder
from tests.storm.turns import parts
from tests.storm.turns.parts import AT_ONCE, Does, Heard, HearsOfRows, Passing, chain


class Hears(HearsOfRows):
    def __init__(self, frame: Any, heard: Heard, **options: Any) -> None:
        super().__init__(frame, retry=AT_ONCE, **options)
        self.heard = heard


class ClassOnly(DataFrameSpout):
    outputs = ["v"]

    def __init__(self) -> None: ...


def lines(spark: Any, texts: list[str]) -> Any:
    return spark.createDataFrame([(10 * number, text) for number, text in enumerate(texts)], "id int, line string")


def test_each_row_is_acked_by_its_id_and_its_values_never_reach_the_driver(run: Any, spark: Any) -> None:
    heard = Heard()
    frame = lines(spark, [f"A b{number} C" for number in range(300)]).selectExpr("line", "id")
    result = run(chain(Hears(frame, heard, ids="ID"), parts.Split, parts.Lower, par=3), turn_tuples=90)
    assert sorted(heard.acked) == [10 * number for number in range(300)]
    assert (result.acked, result.failed, result.timed_out, result.unfinished) == (300, 0, 0, 0)
    assert result.metrics["spout"].emitted == {"default": 300}
    assert result.metrics["spout"].complete_latency["default"].count == 300
    assert result.metrics["a"].executed == {"spout:default": 300} and result.metrics["b"].acked == {"a:default": 900}


def test_maps_are_dicts_and_names_may_have_dots(run: Any, spark: Any, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    builder = TopologyBuilder()
    frame = spark.sql("SELECT id, map('a', id) AS m, array(map(id, 'b')) AS `x.y` FROM range(5)")
    builder.set_spout("spout", DataFrameSpout(frame, ids="id"))
    builder.set_bolt("bolt", parts.TakesMaps).shuffle_grouping("spout")
    sinks = {"spout": lambda writer: writer.mode("append").parquet(out)}
    result = run(builder.create_topology("maps"), sinks=sinks)
    assert (result.acked, result.failed) == (5, 0)
    rows = {row["id"]: (row["m"], row["x.y"]) for row in spark.read.parquet(out).collect()}
    assert rows == {id: ({"a": id}, [{id: "b"}]) for id in range(5)}


def test_a_failed_row_is_read_again_and_then_dead_lettered_with_its_row(run: Any, spark: Any, acker: Acker) -> None:
    heard = Heard()
    spout = Hears(lines(spark, ["a", "bad", "bad-for-ever", "c"]), heard, ids="id", dead_letter_bytes=1000)
    result = run(chain(spout, Does("take_field", 1), parts.Split, parts.Lower))
    assert sorted(heard.acked) == [0, 30]
    assert sorted(call[1:] for call in heard if call[0] == "fail") == [
        (10, "bad word"),
        (10, "bad word"),
        (20, "bad word"),
    ]
    letters = {letter.message_id: letter for letter in acker.dead_letters.read()}
    assert result.dead_letters == 2 and {key: of.attempts for key, of in letters.items()} == {10: 2, 20: 1}
    assert letters[10].last_component == "c" and letters[10].detail == "bad word"
    assert json.loads(letters[10].payload or b"")["row"] == {"id": 10, "line": "bad"}


def test_a_dead_letter_is_replayed_by_its_id_beside_the_same_row(run: Any, spark: Any, acker: Acker) -> None:
    run(chain(Hears(lines(spark, ["bad", "b"]), Heard(), ids="id"), Does("take_field", 1), parts.Split, parts.Lower))
    (letter,) = acker.dead_letters.read()
    assert letter.message_id == 0 and acker.dead_letters.replay() == 1
    heard = Heard()
    run(chain(Hears(lines(spark, ["good", "b"]), heard, ids="id"), Does("take_field", 1), parts.Split, parts.Lower))
    assert sorted(heard.acked) == [0, 0, 10], "the letter, and the rows of the second run"
    assert not acker.dead_letters.count()


def test_a_dead_letter_of_a_row_that_is_gone_stays(run: Any, spark: Any, acker: Acker) -> None:
    run(chain(Hears(lines(spark, ["a", "bad"]), Heard(), ids="id"), Does("take_field", 1), parts.Split, parts.Lower))
    (letter,) = acker.dead_letters.read()
    assert letter.message_id == 10 and acker.dead_letters.replay() == 1
    heard = Heard()
    run(chain(Hears(lines(spark, ["a"]), heard, ids="id"), Does("take_field", 1), parts.Split, parts.Lower))
    assert heard.acked == [0] and acker.dead_letters.count() == 1


def test_a_forgotten_row_times_out_and_is_a_dead_letter(run: Any, spark: Any, acker: Acker) -> None:
    heard = Heard()
    spout = Hears(spark.range(4).selectExpr("id AS v"), heard, ids="v")
    result = run(chain(spout, Does("forget_odd", auto_ack=False), config={"topology.message.timeout.secs": 1}))
    assert sorted(heard.acked) == [0, 2] and heard.failed == {1: "timeout", 3: "timeout"}
    assert result.timed_out == 4 and result.dead_letters == 2
    assert {letter.last_component for letter in acker.dead_letters.read()} == {"spout"}


def test_rows_mix_with_messages_of_the_driver_and_a_bound_holds(run: Any, spark: Any) -> None:
    heard, others = Heard(), Heard()
    builder = TopologyBuilder()
    builder.set_spout("rows", Hears(spark.range(50).selectExpr("id AS v"), heard, ids="v"))
    builder.set_spout("more", Hears(spark.range(20).selectExpr("id AS v"), heard, ids="v"))
    builder.set_spout("driver", parts.spout_of([(number, ("d", number)) for number in range(30)], others))
    bolt = builder.set_bolt("bolt", Passing, par=2)
    bolt.fields_grouping("rows", ["v"]).shuffle_grouping("more").shuffle_grouping("driver")
    result = run(builder.create_topology("mixed", {"topology.max.spout.pending": 17}))
    assert sorted(heard.acked) == sorted([*range(50), *range(20)]) and len(others.acked) == 30
    assert result.metrics["bolt"].executed == {"rows:default": 50, "more:default": 20, "driver:default": 30}


@pytest.mark.parametrize("grouping", [Grouping.ALL, Grouping.custom_object(parts.Twice())], ids=["all", "twice"])
def test_a_row_that_goes_to_several_tasks_is_acked_once_all_are_done(run: Any, spark: Any, grouping: Grouping) -> None:
    heard = Heard()
    spout = Hears(spark.range(40).selectExpr("id AS v"), heard, ids="v")
    result = run(chain(spout, Passing, Passing, grouping=grouping))
    assert sorted(heard.acked) == list(range(40)) and result.metrics["b"].executed == {"a:default": 160}


def test_rows_go_to_a_sink_without_a_bolt(run: Any, spark: Any, tmp_path: Path) -> None:
    heard = Heard()
    sql = (
        "named_struct('a', id, 'b', array(id, null)) AS nested, map('k', id) AS pairs, timestamp_seconds(id) AS at, "
        "cast(id AS decimal(20, 4)) AS money, binary('x') AS raw, cast(null AS date) AS day, id"
    )
    frame = spark.range(10).selectExpr(*_split(sql))
    builder = TopologyBuilder()
    builder.set_spout("rows", Hears(frame, heard, ids="id"))
    path = str(tmp_path / "out")
    run(builder.create_topology(), sinks={"rows": lambda writer: writer.mode("append").parquet(path)})
    assert sorted(heard.acked) == list(range(10))
    assert spark.read.parquet(path).orderBy("id").collect() == frame.orderBy("id").collect()


def test_without_ackers_rows_are_acked_at_their_emit(run: Any, spark: Any, acker: Acker) -> None:
    heard = Heard()
    spout = Hears(spark.range(12).selectExpr("id AS v"), heard, ids="v")
    result = run(chain(spout, Passing, config={"topology.acker.executors": 0}))
    assert sorted(heard.acked) == list(range(12)) and result.metrics["a"].executed == {"spout:default": 12}
    assert acker.stats().inits == 0


@pytest.mark.usefixtures("one_attempt")
def test_a_row_that_kills_its_worker_is_found_and_fails_alone(run: Any, spark: Any) -> None:
    heard = Heard()
    result = run(chain(Hears(spark.range(20).selectExpr("id AS v"), heard, ids="v"), Does("kill_at", 7)))
    assert sorted(heard.acked) == [number for number in range(20) if number != 7]
    assert heard.failed.keys() == {7} and heard.failed[7].startswith("JobFailedError") and result.dead_letters == 1


def test_a_killed_worker_costs_no_row(run: Any, spark: Any, tmp_path: Path) -> None:
    heard = Heard()
    spout = Hears(spark.range(40).repartition(3).selectExpr("id AS v"), heard, ids="v")
    run(chain(spout, Does("kill_once", str(tmp_path / "mark")), Passing))
    assert sorted(heard.acked) == list(range(40))


@pytest.mark.classic("it takes shuffle files away")
@pytest.mark.usefixtures("loses_executor")
def test_lost_shuffle_files_and_rows_that_change_cause_no_false_ack(run: Any, spark: Any, tmp_path: Path) -> None:
    """The rows are read again with other values. Trees that mix both stay open, time out, and are replayed."""
    heard = Heard()
    frame = (
        spark.range(60)
        .repartition(3)
        .selectExpr("id", "0D AS drawn")
        .mapInArrow(parts.redrawn, "id bigint, drawn double")
    )
    bolt = Does("note_drawn_and_die_once", str(tmp_path), str(spark.conf.get("spark.local.dir")))
    topology = chain(Hears(frame, heard, ids="id"), Does("draw"), bolt, config={"topology.message.timeout.secs": 1})
    result = run(topology)
    assert (tmp_path / "died").exists()
    assert len(heard.acked) == len(set(heard.acked)) and set(heard.acked) <= parts.processed_whole(tmp_path)
    assert result.acked + result.dead_letters == 60 and set(heard.failed.values()) <= {"timeout"}


def test_rows_of_a_turn_whose_ledger_is_lost_are_read_again(run: Any, spark: Any, url: str, tmp_path: Path) -> None:
    heard = Heard()
    spout = Hears(spark.range(30).selectExpr("id AS v"), heard, ids="v")
    result = run(chain(spout, Does("empty_redis_once", str(tmp_path / "mark"), url), Passing))
    assert sorted(heard.acked) == list(range(30)) and set(heard.failed.values()) <= {"lost"}
    assert result.dead_letters == 0 and result.unfinished == 0


def test_another_run_processes_the_dataframe_again(run: Any, spark: Any) -> None:
    heard = Heard()
    topology = chain(Hears(spark.range(5).selectExpr("id AS v"), heard, ids="v"), Passing)
    run(topology)
    run(topology)
    assert sorted(heard.acked) == sorted([*range(5), *range(5)])


def test_files_are_read_by_file_and_row_and_unreadable_records_are_dead_letters(
    run: Any, spark: Any, acker: Acker, tmp_path: Path
) -> None:
    heard = Heard()
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text('{"v": 1}\n{"v": oops}\n{"v": 3}\n')
    result = run(
        chain(Hears(read_files(spark, str(folder), "json", "v bigint"), heard), Does("take_field", 2), parts.Reports)
    )
    assert len(heard.acked) == 2 and result.dead_letters == 1
    (letter,) = acker.dead_letters.read()
    assert letter.attempts == 1 and letter.last_component == "spout"
    assert letter.detail is not None and "row 1 of" in letter.detail and '{"v": oops}' in letter.detail


def test_lines_of_text_files_are_messages(run: Any, spark: Any, tmp_path: Path) -> None:
    heard = Heard()
    (tmp_path / "a.txt").write_text("A b\nbad\n")
    (tmp_path / "b.txt").write_text("C d\n")
    spout = Hears(read_files(spark, str(tmp_path)), heard, ids=MessageIds.offsets())
    result = run(chain(spout, Does("take_field", 2), parts.Split, parts.Lower))
    assert len(heard.acked) == 2 and result.dead_letters == 1 and result.metrics["c"].executed == {"b:default": 6}


def test_a_dataframe_that_is_computed_differently_ends_the_run(run: Any, spark: Any) -> None:
    heard = Heard()
    frame = spark.range(200).selectExpr("id AS v").mapInArrow(parts.some, "v bigint")
    with pytest.raises(InexactPipelineError, match=r"Spout 'spout' read \d+ rows for \d+ messages"):
        run(chain(Hears(frame, heard, ids="v"), Passing))
    assert not heard


@pytest.mark.parametrize(
    ("sql", "options", "error", "text"),
    [
        ("explode(array(1, 2, 2)) AS id", {"ids": "id"}, PipelineError, "1 rows repeat the id"),
        ("explode(array(1, null)) AS id", {"ids": "id"}, PipelineError, "1 message has a null id"),
        ("'a' AS id", {"ids": "id"}, PipelineError, "DataFrameSpout 'spout': column 'id' is string"),
        ("1 AS id", {}, PipelineError, "Columns 'file' and 'row' not found"),
        ("1 AS id", {"ids": 7}, BadConfigError, "DataFrameSpout 'spout': ids=7 is not a source"),
        ("1 AS id", {"ids": "id", "dead_letter_bytes": -1}, BadConfigError, "dead_letter_bytes=-1 is not valid"),
        ("1 AS id, 2 AS _acker_x", {"ids": "id"}, PipelineError, "reserved column names: _acker_x"),
    ],
)
def test_hostile_frames_are_refused_before_anything_is_emitted(
    run: Any, spark: Any, acker: Acker, sql: str, options: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        run(chain(Hears(spark.range(1).selectExpr(*_split(sql)), Heard(), **options), Passing))
    assert acker.stats().inits == 0


@pytest.mark.parametrize("is_kept", [False, True], ids=["dropped", "kept by the user"])
def test_rows_are_computed_for_their_ids_and_once_more_for_all_turns(
    run: Any, spark: Any, tmp_path: Path, is_kept: bool
) -> None:
    heard = Heard()
    frame = spark.range(40).selectExpr("id AS v").coalesce(1)
    frame = frame.mapInArrow(partial(parts.noted, folder=str(tmp_path)), "v bigint")
    if is_kept:
        frame.persist()
    result = run(chain(Hears(frame, heard, ids="v"), Does("fail_at", 7)), turn_tuples=9)
    assert len(heard.acked) == 39 and result.failed == 2
    assert len(list(tmp_path.iterdir())) == (1 if is_kept else 2), "not once per turn"
    level = frame.storageLevel
    assert (level.useMemory or level.useDisk) is is_kept
    frame.unpersist()


def test_a_run_goes_on_where_the_last_one_noted_its_progress(
    run: Any, spark: Any, tmp_path: Path, acker: Acker
) -> None:
    """The first run fails with one row done beyond a gap, which is repeated, and one as a dead letter, which is not."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("bad-for-ever\nb\nstop\nd\n")
    (folder / "b.txt").write_text("e\nf\n")
    progress = OffsetFile(tmp_path / "progress.json")

    class Stops(Hears):
        def fail(self, tup_id: int, reason: str) -> None:
            super().fail(tup_id, reason)
            if reason == "on purpose":
                raise LookupError("stopped")

    def topology(heard: Heard, kind: type[Hears], *bolts: Any) -> Any:
        spout = kind(read_files(spark, str(folder)), heard, ids=MessageIds.offsets(offset_file=progress))
        return chain(spout, Does("take_field", 2), *bolts)

    first, second = Heard(), Heard()
    with pytest.raises(LookupError, match="stopped"):
        run(topology(first, Stops, parts.Split, parts.Lower, Does("fail_at", "stop")))
    known = json.loads(progress.path.read_text())
    done = sum(known["begin"].values()) + sum(end - begin for runs in known["beyond"].values() for begin, end in runs)
    assert done == len(first.acked) + acker.dead_letters.count()
    (folder / "c.txt").write_text("g\n")
    run(topology(second, Hears))
    assert len(second.acked) == 7 - done and not set(second.acked) & set(first.acked)
    third = Heard()
    assert run(topology(third, Hears)).acked == 0 and not third


def test_a_progress_file_is_for_one_run_outside_of_its_source(run: Any, spark: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    inside = Hears(
        read_files(spark, str(tmp_path)), Heard(), ids=MessageIds.offsets(offset_file=OffsetFile(tmp_path / "progress"))
    )
    with pytest.raises(BadConfigError, match="would be read as a source file"):
        run(chain(inside, Passing))
    progress = OffsetFile(tmp_path / "_progress")
    spout = Hears(read_files(spark, str(tmp_path)), Heard(), ids=MessageIds.offsets(offset_file=progress))
    with (
        OffsetFile(progress.path).open("turns", "file", "row"),
        pytest.raises(BadConfigError, match="in use by another"),
    ):
        run(chain(spout, Passing))
    with pytest.raises(BadConfigError, match=r"topology\.acker\.executors is 0"):
        run(chain(spout, Passing, config={"topology.acker.executors": 0}))


def test_a_stream_is_refused(run: Any, spark: Any) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(BadConfigError, match="DataFrame of spout 'spout' is a stream"):
        run(chain(Hears(stream, Heard(), ids="value"), Passing))


@pytest.mark.connect
def test_micro_batches_over_spark_connect_are_refused(run: Any, spark: Any, tmp_path: Path) -> None:
    spout = BatchSpout(spark.readStream.format("rate").load(), str(tmp_path / "checkpoint"), ids="value")
    with pytest.raises(BadConfigError, match="'spout' needs a classic session"):
        run(chain(spout, Passing))
    assert not (tmp_path / "checkpoint").exists()


def test_a_dataframe_without_rows_ends_the_run(run: Any, spark: Any) -> None:
    result = run(chain(Hears(spark.range(0), Heard(), ids="id"), Passing))
    assert (result.acked, result.unfinished) == (0, 0)


def test_a_spout_of_rows_has_one_task_and_a_frame(run: Any, spark: Any) -> None:
    builder = TopologyBuilder()
    builder.set_spout("rows", DataFrameSpout(spark.range(3), ids="id"), par=2)
    with pytest.raises(InvalidTopologyError, match=r"'rows' has 2 tasks.*Omit par"):
        run(builder.create_topology())
    with pytest.raises(InvalidTopologyError, match="'spout' is a class of DataFrameSpout"):
        run(chain(ClassOnly, Passing))
    with pytest.raises(InvalidTopologyError, match=r"columns \['a b'\] of a DataFrameSpout have blanks"):
        DataFrameSpout(spark.range(3).selectExpr("id AS `a b`"))
    with pytest.raises(BadConfigError, match="retry=3 is not a RetryPolicy"):
        DataFrameSpout(spark.range(3), retry=3)  # type: ignore[arg-type]
    with pytest.raises(BadConfigError, match="frame='rows' is not a DataFrame"):
        DataFrameSpout("rows")  # type: ignore[arg-type]


def test_a_run_in_process_refuses_rows(spark: Any, acker: Acker) -> None:
    topology = chain(DataFrameSpout(spark.range(3).selectExpr("id AS v"), ids="v"), Passing)
    with (
        pytest.raises(InvalidTopologyError, match=r"'spout' emits rows of a DataFrame.*Use Topology.run"),
        topology.local(),
    ):
        pass
    with pytest.raises(InvalidTopologyError, match=r"'spout' emits rows of a DataFrame.*Use Topology.run"):
        topology.run_local(acker)


def _split(sql: str) -> list[str]:
    """Columns of SQL whose only commas outside of brackets part them."""
    parts_of, depth = [""], 0
    for char in sql:
        depth += (char in "([") - (char in ")]")
        if char == "," and not depth:
            parts_of.append("")
        else:
            parts_of[-1] += char
    return parts_of
