"""A Redis stream as source: what became of an entry decides whether it is acknowledged."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from acker_redis import Acker, AckerConfig, BadConfigError, PipelineError
from acker_redis.acker import app_of
from acker_redis.model import keys
from acker_redis.spark import Progress, Tracker, run_redis_stream
from acker_redis.spout.retry import RetryPolicy
from acker_redis.spout.spout import SpoutCounts
from acker_redis.testing import wait_until
from tests.spark.sources.test_replayed_messages import replayed, save, saved
from tests.support.spark.cases import CONFIG

pytestmark = pytest.mark.spark


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    with Acker.connect(url, CONFIG) as acker:
        yield acker


def run(
    spark: Any, url: str, acker: Acker, pipeline: Any, entries: int = 12,
    until: Callable[[], bool] = lambda: True, **options: Any,
) -> tuple[int, SpoutCounts]:  # fmt: skip
    """Until so many entries are done with, and a condition holds; how many were acknowledged, and what became of them."""
    stop = threading.Event()

    def progress(now: Progress) -> None:
        if until() and now.counts.acked + now.counts.dead_lettered >= entries:
            stop.set()

    given = {"consumer": "one", "max_spout_pending": 5, "block_ms": 50, "stop_wait_secs": 0, **options}
    counts = run_redis_stream(
        spark, pipeline, acker=acker, source=url, stream="orders", fields=["id", "value"], group="g",
        stop=stop, progress=progress, **given,
    ).counts  # fmt: skip
    return counts.acked + counts.dead_lettered, counts


def test_stream_entry_is_acknowledged_after_its_rows_are_done(
    spark: Any, url: str, acker: Acker, raw: Any, tmp_path: Path
) -> None:
    for n in range(11):
        raw.xadd("orders", {"id": n, "value": f"v{n}"})
    entry_id = raw.xadd("orders", {"id": 99, "value": "never"})
    out = tmp_path / "out"
    out.mkdir()
    in_flight: list[int] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        replayed(tmp_path / "marks", out, tracker, messages.withColumn("id", messages["id"].cast("long")))
        in_flight.append(raw.xpending("orders", "g")["pending"])

    acknowledged, counts = run(
        spark, url, acker, pipeline, retry=RetryPolicy(max_attempts=2, first_delay_secs=0), dead_letter_bytes=500
    )
    assert acknowledged == 12
    assert max(in_flight) <= 5
    assert counts.acked == 11
    assert raw.xpending("orders", "g")["pending"] == 0
    assert len(saved(out)) == 11
    (letter,) = acker.dead_letters.read()
    assert b'"value":"never"' in (letter.payload or b"")
    assert f"{letter.message_id >> 16}-{letter.message_id & 0xFFFF}".encode() == entry_id


def rarely(row: dict[str, Any]) -> Any:
    if row["value"] == "bad":
        raise KeyError("city")
    yield (row["id"],)


def test_bad_entry_of_a_rare_kind_is_set_aside_until_its_operator_works(
    spark: Any, url: str, acker: Acker, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays pending in the group, and isn't tried for good."""
    monkeypatch.setattr("acker_redis.spark.emission.operator_health.SET_ASIDE_SECS", 0.0)
    monkeypatch.setattr("acker_redis.spout.retry._EXEMPT_SECS", 0.1)
    monkeypatch.setattr("acker_redis.spout.loop._NOTE_SECS", 0.0)
    for n in range(3):
        raw.xadd("orders", {"id": n, "value": "usual"})
    raw.xadd("orders", {"id": 100, "value": "bad"})

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        rows = tracker.filter(messages, "value <> 'usual'")
        found = tracker.flat_map(rows, rarely, "id string", name="geocode")
        tracker.write(found, lambda writer: writer.format("noop").mode("append").save())

    def is_aside() -> bool:
        (noted,) = app_of(acker).client.pipeline([("HGET", keys.outages(acker.config.app), 0)])
        return noted is not None and [one["operator"] for one in json.loads(noted)["set_aside"]] == ["geocode"]

    def shown_and_working() -> bool:
        if is_aside() and not seen:
            seen.append(raw.xpending("orders", "g")["pending"])
            raw.xadd("orders", {"id": 101, "value": "rare"})
        return bool(seen)

    seen: list[int] = []
    twice = RetryPolicy(max_attempts=2, first_delay_secs=0)
    acknowledged, counts = run(spark, url, acker, pipeline, 5, shown_and_working, retry=twice, stop_wait_secs=60)
    assert (seen, acknowledged, counts.acked) == ([1], 5, 4)
    (letter,) = acker.dead_letters.read()
    assert letter.detail is not None and "city" in letter.detail


def test_hanging_stream_entry_delays_no_other_and_stays_held(
    spark: Any, url: str, acker: Acker, raw: Any, tmp_path: Path
) -> None:
    """Somebody else has what came of the first entry; 30 others go through meanwhile, five at a time."""
    for n in range(31):
        raw.xadd("orders", {"id": n, "value": "hangs" if n == 0 else "fine"})

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        tracker.export(
            tracker.filter(messages, "value = 'hangs'"),
            lambda writer: writer.mode("append").parquet(str(tmp_path / "hung")),
        )
        save(tmp_path, tracker, tracker.filter(messages, "value = 'fine'"))

    ages: list[int] = []

    def is_renewed() -> bool:
        """Whether the claim to the first entry has become younger twice, as long before it may be taken over."""
        ages.extend(one["time_since_delivered"] for one in raw.xpending_range("orders", "g", "-", "+", 1))
        return sum(later < earlier for earlier, later in pairwise(ages)) >= 2

    acknowledged, counts = run(spark, url, acker, pipeline, 30, is_renewed, claim_secs=6)
    assert (acknowledged, counts.acked, counts.emitted) == (30, 30, 31)
    (held,) = raw.xpending_range("orders", "g", "-", "+", 10)
    assert (held["consumer"], held["times_delivered"]) == (b"one", 1)


def test_dead_consumers_entries_are_resumed_by_name_or_claimed(
    spark: Any, url: str, acker: Acker, raw: Any, tmp_path: Path
) -> None:
    entries = [raw.xadd("orders", {"value": f"v{n}"}) for n in range(6)]
    raw.xgroup_create("orders", "g", "0")
    for consumer in "one", "two":
        raw.xreadgroup("g", consumer, {"orders": ">"}, count=3)
    raw.xdel("orders", entries[5])
    assert run(spark, url, acker, partial(save, tmp_path), 3, claim_secs=3600) == (3, SpoutCounts(emitted=3, acked=3))
    assert {*saved_values(tmp_path)} == {"v0", "v1", "v2"}
    wait_until(lambda: raw.xpending_range("orders", "g", "-", "+", 1, idle=100), "what two left is old", 30)
    acknowledged, _ = run(spark, url, acker, partial(save, tmp_path), 2, claim_secs=0.1)
    assert acknowledged == 2
    assert {*saved_values(tmp_path)} == {f"v{n}" for n in range(5)}
    assert raw.xpending("orders", "g")["pending"] == 0


def test_consumers_of_a_group_share_its_entries(spark: Any, url: str, raw: Any, tmp_path: Path) -> None:
    for n in range(40):
        raw.xadd("orders", {"value": f"v{n}"})
    config = AckerConfig(app="shared", shards=2, lanes=2)
    with Acker.connect(url, config) as first, Acker.connect(url, config) as second:
        stop, both, acked = threading.Event(), threading.Barrier(2), [0, 0]

        def work(acker: Acker, task: int) -> int:
            def progress(now: Progress) -> None:
                acked[task] = now.counts.acked
                if sum(acked) == 40:
                    stop.set()

            def pipeline(tracker: Tracker, messages: DataFrame) -> None:
                if tracker.emission == 0:
                    both.wait(60)
                save(tmp_path, tracker, messages)

            return run_redis_stream(
                spark, pipeline, acker=acker, source=url, stream="orders", fields=["value"], group="g",
                consumer=f"c{task}", spout_id=task, stop=stop, max_spout_pending=4, block_ms=50, progress=progress,
            ).counts.acked  # fmt: skip

        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(work, (first, second), range(2)))
    assert sum(done) == 40
    assert min(done) > 0
    assert sorted(map(str, saved_values(tmp_path))) == sorted(f"v{n}" for n in range(40))


def test_unacknowledged_entries_of_a_failed_run_are_read_again(
    spark: Any, url: str, acker: Acker, raw: Any, tmp_path: Path
) -> None:
    """Entries the dead consumer held come first, and those deleted meanwhile hold nobody up."""
    entries = [raw.xadd("orders", {"value": f"v{n}"}) for n in range(12)]

    def breaks_down(tracker: Tracker, messages: DataFrame) -> None:
        save(tmp_path, tracker, tracker.filter(messages, "value != 'v1'"))
        raise PipelineError("on purpose")

    with pytest.raises(PipelineError, match="on purpose"):
        run(spark, url, acker, breaks_down)
    held = raw.xpending("orders", "g")["pending"]
    assert 0 < held <= 5
    raw.xdel("orders", entries[1])
    raw.xadd("orders", {"other": "x"})
    expected = held - 1 + 13 - 5
    acknowledged, _ = run(spark, url, acker, partial(save, tmp_path), expected)
    assert acknowledged == expected
    assert raw.xpending("orders", "g")["pending"] == 0
    assert {*saved_values(tmp_path)} >= {f"v{n}" for n in range(12) if n != 1} | {None}


def test_recreated_stream_is_read_from_its_beginning(
    spark: Any, url: str, acker: Acker, raw: Any, tmp_path: Path
) -> None:
    for n in range(3):
        raw.xadd("orders", {"value": f"old{n}"})

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        save(tmp_path, tracker, messages)
        if not raw.exists("flushed"):
            raw.flushall()
            raw.set("flushed", 1)
            for n in range(12):
                raw.xadd("orders", {"value": f"new{n}"})

    run(spark, url, acker, pipeline, entries=15)
    assert {*saved_values(tmp_path)} == {f"old{n}" for n in range(3)} | {f"new{n}" for n in range(12)}


def saved_values(folder: Path) -> list[str | None]:
    import pyarrow.parquet as pq

    return [v for path in folder.glob("*.parquet") for v in pq.read_table(path)["value"].to_pylist()]


def test_invalid_redis_stream_options_are_refused(spark: Any, url: str, acker: Acker) -> None:
    with pytest.raises(BadConfigError, match="Pass a list of one or more field names"):
        run_redis_stream(
            spark, lambda *_: None, acker=acker, source=url, stream="s", fields=["message_id"], group="g",
            consumer="c", stop=threading.Event(),
        )  # fmt: skip
    for wrong, text in (
        ({"block_ms": 0}, "Use integers of 1 or more"),
        ({"fields": "v"}, r"fields='v' is not usable\. Pass a list"),
        ({"dead_letter_bytes": -1}, "dead_letter_bytes=-1"),
        ({"progress": 5}, "run_redis_stream: progress=5 is not callable"),
    ):
        given: dict[str, Any] = {"fields": ["v"], **wrong}
        with pytest.raises(BadConfigError, match=text):
            run_redis_stream(
                spark, lambda *_: None, acker=acker, source=url, stream="s", group="g",
                consumer="c", stop=threading.Event(), **given,
            )  # fmt: skip


def test_dead_letters_are_replayed_from_stream_or_payload(
    spark: Any, url: str, acker: Acker, raw: Any, tmp_path: Path
) -> None:
    entry_ids = [raw.xadd("orders", {"id": n, "value": f"v{n}"}) for n in range(5)]
    repaired = False

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        save(tmp_path, tracker, messages if repaired else tracker.fail_where(messages, "id > 2", "too large"))

    options: dict[str, Any] = {"retry": RetryPolicy(max_attempts=1, first_delay_secs=0), "dead_letter_bytes": 500}
    run(spark, url, acker, pipeline, 5, **options)
    assert [one.replay for one in acker.dead_letters.read()] == ["source", "source"]
    raw.xdel("orders", entry_ids[4])  # its letter has it
    repaired = True
    assert acker.dead_letters.replay() == 2
    _, counts = run(spark, url, acker, pipeline, 2, **options)
    assert counts.acked == 2
    assert acker.dead_letters.count() == acker.dead_letters.replaying() == 0
    assert sorted(saved_values(tmp_path), key=str) == [f"v{n}" for n in range(5)]
