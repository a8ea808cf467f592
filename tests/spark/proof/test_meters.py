"""The sums of meters, as they are found in the text of an execution's metrics."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql import DataFrame

from acker_redis.spark import Tracker
from acker_redis.spark.proof import meters
from acker_redis.spark.protocol.columns import FAILED, FAILURE, OUT, ROOTS, SHARE, STAYS
from tests.support.spark.cases import MakeCase
from tests.support.spark.versions import SPARK


def text_of(**sums: Any) -> str:
    return f"\x02{json.dumps(sums)}\x03"


def test_each_meter_is_found_in_the_text_of_all_metrics() -> None:
    names = ["acker:a", "acker:b, c -> [", "acker:\x02\x03", "acker:none"]
    two, three = text_of(rows=2), text_of(rows=3)
    text = f"Map(acker:a -> [1,null], mine -> [1,a,null], acker:b, c -> [ -> [{two}], acker:\x02\x03 -> [{three}])"
    assert dict(meters.in_text(text, names)) == {
        names[0]: {"low": 1, "high": None},
        names[1]: {"rows": 2},
        names[2]: {"rows": 3},
    }


def test_meter_of_a_removed_stage_is_missing() -> None:
    assert dict(meters.in_text("Map(acker:a -> [])", ["acker:a"])) == {}


def test_text_in_a_sum_ends_no_meter() -> None:
    sums = {"failures": 'a "quoted" \x02 reason \x03 with\nbreaks'}
    assert dict(meters.in_text(f"Map(acker:a -> [{text_of(**sums)}])", ["acker:a"])) == {"acker:a": sums}


@pytest.mark.parametrize(
    "foreign",
    [
        "\x02",
        "\x03",
        "\x02{}\x03",
        "\x02[1]\x03",
        "acker:a -> [\x02",
        "acker:a -> [not a number]",
        "acker:a -> [\x021\x03]",
        "acker:a -> [\x02not JSON\x03]",
        "acker:a -> [\x02\x02\x03\x03]",
    ],
)
def test_metrics_of_the_user_are_no_meters(foreign: str) -> None:
    text = f"Map(x -> [{foreign}], acker:a -> [{text_of(rows=1)}], y -> [{foreign}])"
    assert dict(meters.in_text(text, ["acker:a"])) == {"acker:a": {"rows": 1}}


@pytest.mark.spark
def test_meters_of_any_name_are_counted(case: MakeCase) -> None:
    names = [
        "it's",
        "back\\slash",
        "line\nbreak",
        "\x02\x03",
        "a -> [1]",
        '"quoted"',
        "tab\t, ünï",
        "${spark.app.name}",
    ]

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        for number, name in enumerate(names):
            messages = tracker.filter(messages, f"id <> {number}", name=name)
        tracker.write(messages, run.append(), name="'; --")

    run = case(n=20)
    run.complete(pipeline)
    assert sorted(run.written()) == [(id,) for id in range(len(names), 20)]


SETTINGS = {
    "spark.sql.jsonGenerator.ignoreNullFields": "false",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
}


@pytest.mark.spark
@pytest.mark.filterwarnings(
    "ignore:The SQL config 'spark.sql.parser.escapedStringLiterals':UserWarning"
)  # over Connect
def test_meters_are_read_whatever_the_settings_of_a_session(spark: Any, case: MakeCase) -> None:
    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        known = tracker.fail_where(messages, "id < 3", "it's \\ \x02\x03 bad", retry=False, name="it's")
        tracker.write(tracker.filter(known, "id <> 7", name="back\\slash"), run.append())

    run = case(n=20)
    before = {name: spark.conf.get(name) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    try:
        ended = run.done(pipeline)
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    assert ended.reasons == {("it's \\ \x02\x03 bad", "it's"): 3}
    assert len(ended.acked) == 17


@pytest.mark.spark
@pytest.mark.versions
@pytest.mark.classic("a client of Spark Connect can't evaluate a server's metrics")
def test_sums_of_failed_rows_are_evaluated_by_several_threads(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of Spark Connect does so. Spark 4.0 has one row for the results of all, so they may be wrong there."""
    monkeypatch.setattr(meters, "is_connect", lambda session: True)
    rows = spark.range(2000).selectExpr(
        "id", f"id AS {SHARE}", f"array(id + 1) AS {ROOTS}", "concat('reason ', id % 40) AS reason",
        f"IF(id % 2 = 0, {FAILED}, {STAYS}) AS {OUT}", f"format_string('[%d]', id) AS {FAILURE}",
    )  # fmt: skip
    in_sql = meters.meter_failed(rows, "id % 2 = 0", "reason", "acker:sql", texts="true", most_texts=100)
    both = meters.meter_removed_in_python(in_sql, "acker:python", rows="1")
    execution = both._jdf.queryExecution()
    assert execution.toRdd().count() == 2000
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: execution.observedMetrics().toString(), range(200)))
    assert found and all(text.count("acker:") == 2 for text in found)
    assert len(found) == 1 or SPARK < (4, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"failed": "7:1"}, {"failed": "7:1,7:2,7:3"}, {"failed": "7:1,7:6F"}, {"failed": ""}, {"roots": None},
        {"texts": "7:1"}, {"texts": "7:x"},
    ],
    ids=str,
)  # fmt: skip
def test_failed_rows_whose_sums_contradict_each_other_are_unknown(wrong: dict[str, Any]) -> None:
    sums = {
        "failed_low": 3, "failed_high": 0, "failed_rows": 2, "rootless": 0, "stayed": 0, "roots": 2,
        "failed": "7:1,7:2", "texts": "7:6F6F",
    }  # fmt: skip
    read = meters.read_failed({"m": sums}, "m", "op", retry=True)
    assert read is not None and [reason.text for reason in read.failures[0].reasons] == ["oo"]
    assert meters.read_failed({"m": {**sums, **wrong}}, "m", "op", retry=True) is None


@pytest.mark.parametrize("failures", ["{", "7", "{}"])
def test_failed_rows_of_python_whose_text_is_garbled_are_unknown(failures: str) -> None:
    counts = dict.fromkeys(("low", "high", "rows", "failed_low", "failed_high", "stayed", "first_root", "last_root"))
    sums = {**counts, "failed_rows": 1, "failures": failures}
    assert meters.read_removed_in_python({"m": sums}, "m", "op") is None
