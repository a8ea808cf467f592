"""The header `acker-id`: equal in repeats of a record, and never in two records of one emission."""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis import Acker, Anchors, PipelineError
from acker_redis.spark import Tracker, check_pipeline
from tests.docs.test_readme import blocks
from tests.support.kafka import Broker
from tests.support.spark.cases import MakeCase

pytestmark = pytest.mark.spark

LINES = "transform(sequence(0, id % 3), line -> struct(id, cast(line AS int) AS line, 'same' AS item))"


def ids_of(node: Broker, topic: str) -> list[tuple[bytes, tuple[Any, ...]]]:
    """The id of each record of a topic, and its value."""
    return [(dict(record.headers())["acker-id"], tuple(json.loads(record.value()))) for record in node.read(topic)]


def twice(row: Any) -> list[tuple[int, int, str]]:
    return [(row["id"], row["line"], row["item"]), (row["id"], row["line"] + 100, row["item"])]


def drain(batches: Iterator[Any], partition: int) -> None:  # noqa: ARG001
    for _ in batches:
        pass


def write(tracker: Tracker, rows: DataFrame, node: Broker, topic: str, record_id: Any) -> None:
    kafka = {"bootstrap.servers": node.address, "log_level": 0}
    with_value = rows.withColumn("value", F.expr("to_json(array(string(id), string(line), item, branch))"))
    tracker.write_kafka(with_value, topic=topic, kafka=kafka, record_id=record_id)


def test_repeats_of_a_record_have_its_id_in_any_partitioning(case: MakeCase, node: Broker) -> None:
    """Odd messages are replayed after their records were written. Another run writes all of them once more."""
    topic = node.topic(partitions=3)
    emissions: list[int] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        emissions.append(tracker.emission)
        messages = messages.repartition(1 + len(emissions), F.expr("hash(id, 7)"))
        lines = tracker.explode(messages, LINES)
        doubled = tracker.flat_map(lines, twice, "id bigint, line int, item string")
        even = tracker.filter(doubled, "line % 2 = 0").withColumn("branch", F.lit("even"))
        branches = messages.sparkSession.sql("SELECT * FROM VALUES (0, 'a'), (0, 'b'), (1, 'a') AS t (line, branch)")
        named = tracker.join(lines, branches, "line")
        both = tracker.union_by_name(even, named, lines.withColumn("branch", F.lit("all")))
        write(tracker, both, node, topic, "id, line, branch")
        last = messages if len(emissions) > 1 else tracker.fail_where(messages, "id % 2 = 1", "not yet")
        tracker.write_partitions(last, drain)

    run = case(n=40)
    ended = run.done(pipeline)
    assert ended.kinds == {id: ["fail", "ack"] if id % 2 else ["ack"] for id in range(40)}
    written = ids_of(node, topic)
    times = Counter(written)
    assert len({record_id for record_id, _ in times}) == len({value for _, value in times}) == len(times)
    assert Counter({key: 2 if int(key[1][0]) % 2 else 1 for key in times}) == times
    assert sum(int(value[0]) == 5 for _, value in times) == 3 + 4 + 3
    case(n=40).complete(pipeline, run.messages.repartition(5))
    assert Counter(ids_of(node, topic)) == Counter({key: count + 1 for key, count in times.items()})


def test_rows_that_ids_cannot_tell_apart_become_dead_letters(case: MakeCase, node: Broker) -> None:
    """Rows of one message, rows of two, and a row with a null. Nothing of them is written."""
    topic = node.topic(partitions=2)

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        lines = tracker.explode(
            messages.repartition(4), "transform(array(0, if(id = 7, 0, 1)), line -> struct(id, line, 'i' AS item))"
        )
        rows = lines.withColumn("branch", F.lit("all"))
        write(tracker, rows, node, topic, "CASE id WHEN 3 THEN 4 WHEN 5 THEN null ELSE id END, line -- the line")

    ended = case(n=60).done(pipeline)
    reasons = {id: str(letter.detail) for id, letter in ended.letters.items()}
    assert reasons.pop(5) == "a value of record_id is null"
    assert reasons.pop(7) == '2 rows have the record_id ["7","0"]'
    assert reasons.keys() == {3, 4}  # either line may be the first that fails
    assert set(reasons.values()) <= {f'2 rows have the record_id ["4","{line}"]' for line in (0, 1)}
    assert ended.emissions == 1, "a retry would find the same values"
    assert {int(value[0]) for _, value in ids_of(node, topic)} == set(range(60)) - {3, 4, 5, 7}


def test_rows_of_several_messages_have_no_id(case: MakeCase, node: Broker) -> None:
    topic = node.topic()

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        sums = tracker.group_by(messages, F.expr("id DIV 2").alias("pair"), F.sum("id").alias("id"), partial=True)
        rows = sums.selectExpr("pair AS line", "id", "'i' AS item", "'all' AS branch", "_share", "_roots")
        write(tracker, rows, node, topic, "line")

    ended = case(n=5).done(pipeline)
    assert ended.letters.keys() == {0, 1, 2, 3}
    assert {letter.detail for letter in ended.letters.values()} == {
        "the row comes from several messages, so it has no record_id"
    }
    assert [record_id for record_id, _ in ids_of(node, topic)] == [b'["2"]']


def test_ids_are_texts_of_their_values(case: MakeCase, node: Broker) -> None:
    topic = node.topic()

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = messages.selectExpr(
            "id",
            "1 AS line",
            "'i' AS item",
            "'b' AS branch",
            "DATE'2024-02-29' AS day",
            "'\"é, ]' AS text",
            "_share",
            "_roots",
        )
        write(tracker, rows, node, topic, "id, day, id > 0, text, text || '[', cast(id AS smallint)")

    case(n=2).complete(pipeline)
    assert sorted(json.loads(record_id) for record_id, _ in ids_of(node, topic)) == [
        ["0", "2024-02-29", "false", '"é, ]', '"é, ][', "0"],
        ["1", "2024-02-29", "true", '"é, ]', '"é, ][', "1"],
    ]


def test_bytes_that_are_no_text_make_no_id(case: MakeCase, node: Broker) -> None:
    """JSON would have the same character for different bytes, so rows of two messages would have one id."""
    topic = node.topic()

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = messages.selectExpr("id", "1 AS line", "'i' AS item", "'b' AS branch", "_share", "_roots")
        write(tracker, rows, node, topic, "string(substring(X'C8C941', cast(id AS int) + 1, 1)), line")

    ended = case(n=3).done(pipeline)
    assert {id: letter.detail for id, letter in ended.letters.items()} == dict.fromkeys(
        (0, 1), "a value of record_id is a string that is not UTF-8. Make its text with hex"
    )
    assert [record_id for record_id, _ in ids_of(node, topic)] == [b'["A","1"]']


def test_exported_records_have_ids_beside_anchors(case: MakeCase, node: Broker, url: str) -> None:
    topic = node.topic()
    run = case(n=20)
    kafka = {"bootstrap.servers": node.address, "log_level": 0}

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = messages.withColumn("value", F.expr("string(id)"))
        tracker.export_kafka(rows, topic=topic, group="pricing", kafka=kafka, record_id="id")
        app = run.acker.config.app
        with Acker.open_existing(url, app) as acker:
            for record in node.read(topic):
                anchors = Anchors.of_headers(record.headers(), app=app, group="pricing")
                assert anchors is not None
                acker.ack_many(anchors.roots, anchors.edges, record_keys=anchors.edges)

    run.complete(pipeline)
    found = {int(record.value()): dict(record.headers()) for record in node.read(topic)}
    assert {id: headers["acker-id"] for id, headers in found.items()} == {id: b'["%d"]' % id for id in range(20)}
    assert all(headers.keys() == {"acker-id", "acker-anchors"} for headers in found.values())


@pytest.mark.parametrize(
    ("record_id", "expected"),
    [
        ("", "record_id=''"),
        (5, "record_id=5"),
        ("id, cast(id AS double) AS price", "'price', which is double"),
        ("id, X'00' AS bytes", "'bytes', which is binary"),
        ("*", "'_roots', which is array<bigint>"),
    ],
)
def test_values_whose_texts_may_differ_are_refused_before_a_row_is_written(
    case: MakeCase, record_id: Any, expected: str
) -> None:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = messages.selectExpr("id", "'v' AS value", "_share", "_roots")
        tracker.write_kafka(rows, topic="t", kafka={"bootstrap.servers": "127.0.0.1:1"}, record_id=record_id)

    run = case(n=3)
    with pytest.raises(PipelineError, match="record_id") as raised:
        check_pipeline(run.messages, pipeline, ids="id")
    assert expected in str(raised.value)


def test_program_of_the_docs_drops_repeats(
    case: MakeCase, node: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """That of kafka.md: a table and a compacted topic have each line once."""
    monkeypatch.setenv("KAFKA_SERVERS", node.address)
    node.topic("lines", cleanup_policy="compact")
    program: dict[str, Any] = {}
    exec("\n".join(blocks("python", "docs/guides/kafka.md")), program)
    run = case()
    orders = run.spark.createDataFrame([(1, "tea,tea,milk"), (2, "tea")], "order bigint, items string")
    expected = {(1, 0, "tea"), (1, 1, "tea"), (1, 2, "milk"), (2, 0, "tea")}
    run.complete(program["lines_to_topic"], orders, ids="order")
    case().complete(program["lines_to_topic"], orders.repartition(3), ids="order")
    records = node.read("lines")
    assert len(records) == 8
    assert {record.key() for record in records} == {f"{order}/{line}".encode() for order, line, _ in expected}
    store = sqlite3.connect(tmp_path / "lines.sqlite")
    assert sum(program["store_new_lines"](store, part) for part in (records[:5], records[3:])) == 4
    found = store.execute("SELECT item FROM lines").fetchall()
    assert sorted(item for (item,) in found) == [b"milk", b"tea", b"tea", b"tea"]
    store.close()
