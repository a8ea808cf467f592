"""Sinks of topologies on Spark."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from acker_redis.errors import BadConfigError, InexactPipelineError, InvalidTopologyError, PipelineError
from acker_redis.storm import Bolt, Grouping, Stream, Topology, TopologyBuilder
from tests.storm.turns import parts
from tests.storm.turns.parts import Does, Heard, Passing, chain, drop, numbered, spout_of
from tests.support.spark.faults import once, raise_error


class SplitTyped(Bolt):
    outputs = [Stream(["word string", "n bigint"]), Stream(["line string"], name="empty")]

    def process(self, tup: Any) -> None:
        words = tup.values[0].split()
        if not words:
            self.emit([tup.values[0]], stream="empty")
        for word in words:
            self.emit([word, len(word)])


def word_topology(heard: Heard, lines: list[str]) -> Topology:
    return chain(spout_of(numbered(lines), heard, ["line"]), SplitTyped)


def test_a_stream_is_written_with_its_types_before_its_messages_are_acked(run: Any, spark: Any, tmp_path: Path) -> None:
    heard = Heard()
    result = run(
        word_topology(heard, ["a bb", "", "bb ccc"]),
        sinks={
            "a": lambda writer: writer.mode("append").parquet(str(tmp_path / "words")),
            ("a", "empty"): lambda writer: writer.mode("append").json(str(tmp_path / "empty")),
        },
        turn_tuples=2,
    )
    words = spark.read.parquet(str(tmp_path / "words"))
    assert words.dtypes == [("word", "string"), ("n", "bigint")]
    assert Counter((row.word, row.n) for row in words.collect()) == {("a", 1): 1, ("bb", 2): 2, ("ccc", 3): 1}
    assert [row.line for row in spark.read.schema("line string").json(str(tmp_path / "empty")).collect()] == [""]
    assert sorted(heard.acked) == [0, 1, 2]
    assert result.metrics["__sink:a"].executed == {"a:default": 4}
    assert result.metrics["__sink:a:empty"].executed == {"a:empty": 1}


def test_sinks_are_given_by_specs_as_inputs_are(run: Any, spark: Any, tmp_path: Path) -> None:
    class Words(Topology):
        lines = spout_of(numbered(["a bb", ""]), Heard(), ["line"]).spec()
        split = SplitTyped.spec(name="splits", inputs=[lines])
        sinks = {split["empty"]: lambda writer: writer.mode("append").json(str(tmp_path / "empty"))}

    run(Words, sinks={Words.split: lambda writer: writer.mode("append").parquet(str(tmp_path / "words"))})
    assert sorted(row.word for row in spark.read.parquet(str(tmp_path / "words")).collect()) == ["a", "bb"]
    assert [row.line for row in spark.read.schema("line string").json(str(tmp_path / "empty")).collect()] == [""]
    with pytest.raises(InvalidTopologyError, match=r"component .*SplitTyped.* is none of Words"):
        run(Words, sinks={SplitTyped.spec(inputs=[Words.lines]): print})


def note(batches: Any, partition: int, folder: str) -> None:
    rows = [row for batch in batches for row in batch.to_pylist()]
    if rows:
        Path(folder, f"{partition}.json").write_text(json.dumps(rows))


def test_a_function_of_a_partition_receives_the_columns_of_the_stream(run: Any, tmp_path: Path) -> None:
    folder = str(tmp_path)
    heard = Heard()
    run(word_topology(heard, ["a bb"]), sinks={"a": lambda batches, partition: note(batches, partition, folder)})
    rows = [row for path in tmp_path.glob("*.json") for row in json.loads(path.read_text())]
    assert sorted(rows, key=str) == [{"word": "a", "n": 1}, {"word": "bb", "n": 2}] and heard.acked == [0]


def test_a_sink_that_raises_once_is_repeated(run: Any, tmp_path: Path) -> None:
    mark, heard = tmp_path / "mark", Heard()

    def write(batches: Any, partition: int) -> None:
        for _ in batches:
            once(mark, raise_error)

    run(word_topology(heard, ["a", "b"]), sinks={"a": write})
    assert sorted(heard.acked) == [0, 1]


@pytest.mark.usefixtures("one_attempt")
def test_a_sink_that_raises_for_a_message_starts_the_search(run: Any) -> None:
    heard = Heard()

    def write(batches: Any, partition: int) -> None:
        for batch in batches:
            if "poison" in batch.column("word").to_pylist():
                raise ValueError("poison")

    lines = [f"w{number}" for number in range(20)]
    lines[7] = "poison"
    run(word_topology(heard, lines), sinks={"a": write})
    assert heard.failed.keys() == {7} and "ValueError: poison" in heard.failed[7]
    assert sorted(heard.acked) == [number for number in range(20) if number != 7]


def test_a_sink_that_replaces_what_other_turns_wrote_is_refused(run: Any, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="overwrite"):
        run(word_topology(Heard(), ["a"]), sinks={"a": lambda writer: writer.mode("overwrite").parquet(str(tmp_path))})


def test_a_value_that_doesnt_fit_its_type_fails_its_tuple(run: Any) -> None:
    heard = Heard()

    class Typed(Does):
        outputs = ["v bigint"]

    run(chain(spout_of(numbered([0, 1, 2]), heard), Typed("emit_text")), sinks={"a": drop})
    assert sorted(heard.acked) == [0, 2]
    assert "is declared as int64, and 'no number' doesn't fit" in heard.failed[1]


def test_tuples_that_go_to_a_sink_and_to_a_bolt_are_acked_by_both(run: Any) -> None:
    heard = Heard()
    builder = TopologyBuilder()
    builder.set_spout("spout", spout_of(numbered(["a b"] * 10), heard, ["line"]))
    builder.set_bolt("a", SplitTyped, par=2).grouping("spout", Grouping.SHUFFLE)
    builder.set_bolt("b", parts.Reports, par=2).grouping("a", Grouping.ALL)
    run(builder.create_topology(), sinks={"a": drop})
    assert sorted(heard.acked) == list(range(10))


def test_a_spouts_stream_may_have_a_sink(run: Any) -> None:
    heard = Heard()
    builder = TopologyBuilder()
    builder.set_spout("spout", spout_of(numbered(["a"] * 3), heard, ["line string"]))
    run(builder.create_topology(), sinks={"spout": drop})
    assert sorted(heard.acked) == [0, 1, 2]


def test_a_topology_class_has_sinks_of_its_own(run: Any) -> None:
    heard = Heard()

    class Words(Topology):
        lines = spout_of(numbered(["a b"]), heard, ["line"]).spec()
        split = SplitTyped.spec(inputs=[lines])
        sinks = {"split": drop}

    assert run(Words).metrics["__sink:split"].executed == {"split:default": 2}


@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        ("b", InvalidTopologyError, "no component 'b'"),
        (("a", "x"), InvalidTopologyError, "declares no stream 'x'"),
        (("a", "untyped"), InvalidTopologyError, r"fields \['v'\] of stream 'untyped' of 'a' have no types"),
        (("a", "odd"), InvalidTopologyError, "aren't types of Spark: `v` no_type"),
        (("a", "direct"), InvalidTopologyError, "is direct"),
        (7, BadConfigError, "names no stream"),
    ],
)
def test_sinks_that_cant_be_are_refused(run: Any, source: Any, error: type[Exception], text: str) -> None:
    class Streams(Passing):
        outputs: Any = [
            Stream(["v"], name="untyped"), Stream(["v no_type"], name="odd"), Stream(["v int"], name="direct", direct=True),
        ]  # fmt: skip

    with pytest.raises(error, match=text):
        run(chain(spout_of([], Heard()), Streams), sinks={source: drop})


def test_a_sink_that_is_no_function_is_refused(run: Any) -> None:
    with pytest.raises(BadConfigError, match="Pass one of a writer"):
        run(word_topology(Heard(), []), sinks={"a": "words.parquet"})


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (lambda writer: writer.mode("overwrite").parquet("/never"), "'sink of a': mode 'overwrite' would replace"),
        (lambda writer: writer.parquet("/never"), "'sink of a': mode 'errorifexists' would fail"),
        (lambda writer: writer.mode("append"), "'sink of a': the function called no method of the writer that writes"),
        (lambda writer: writer.mode("append").paquet("/never"), "'sink of a': its function raises AttributeError"),
    ],
)
def test_function_that_cant_write_is_refused_before_anything_is_emitted(run: Any, write: Any, text: str) -> None:
    def emit(_: object) -> None:
        pytest.fail("it was called")

    with pytest.raises((PipelineError, InexactPipelineError), match=text):
        run(chain(spout_of([], Heard(), ["line"], next_tuple=emit), SplitTyped), sinks={"a": write})


def test_path_that_cant_be_made_ends_the_run_with_its_reason(run: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    heard = Heard()
    with pytest.raises(PipelineError, match=r"^'sink of a' can't be written: .*[Pp]arent.*not a directory"):
        run(
            word_topology(heard, ["a"]),
            sinks={"a": lambda writer: writer.mode("append").parquet(str(tmp_path / "file" / "x"))},
        )
    assert heard.acked == []


def test_sink_whose_store_is_away_at_the_start_is_waited_for(run: Any, spark: Any, tmp_path: Path) -> None:
    calls: list[Any] = []

    def write(writer: Any) -> None:
        calls.append(writer)
        if len(calls) < 3:  # before the run begins, and in the first turn
            raise ConnectionRefusedError
        writer.mode("append").parquet(str(tmp_path / "words"))

    heard = Heard()
    run(word_topology(heard, ["a bb"]), sinks={"a": write})
    assert heard.acked == [0] and heard.failed == {} and len(calls) == 3
    assert spark.read.parquet(str(tmp_path / "words")).count() == 2
