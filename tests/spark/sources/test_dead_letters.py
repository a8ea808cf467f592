"""Dead letters as a DataFrame."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

from acker_redis import Acker, AckerConfig, BadConfigError
from acker_redis.spark import read_dead_letters
from acker_redis.spark.sources import dead_letters
from acker_redis.store.dead_letter import DeadLetter

pytestmark = pytest.mark.spark

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MESSAGES = "id bigint, text string"


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    with Acker.connect(url, AckerConfig(app="letters", shards=1)) as acker:
        yield acker
        acker.dead_letters.delete(letter.entry_id for letter in acker.dead_letters.scan())


@pytest.fixture
def raw(url: str) -> Iterator[Any]:
    client = redis.Redis.from_url(url)
    yield client
    client.close()


def put(raw: Any, seconds: float, message: int, **fields: Any) -> str:
    """A letter as it stands in the stream, written so long after noon."""
    millis = round((NOON.timestamp() + seconds) * 1000)
    given = {"format": 2, "message_id": message, "run_id": "run", "attempts": 3, "reason": "failed", **fields}
    return str(raw.xadd("acker:{letters}:dead_letters", given, id=f"{millis}-*").decode())


def test_dead_letter_is_read_as_a_row(spark: Any, acker: Acker) -> None:
    given = DeadLetter(7, "run-1", 5, "failed", "parse", "no such customer", '{"id": 7, "text": "schön"}'.encode())
    given = given._replace(first_secs=1_700_000_000, replay="payload", spout_id=3)
    acker.dead_letters.add([given, DeadLetter(-8, "run-1", 1, "timeout")])
    written = [letter.entry_id for letter in acker.dead_letters.read()]
    rows = read_dead_letters(spark, acker, payload_schema=MESSAGES).orderBy("entry_id").collect()
    assert [row.asDict(recursive=True) | {"first_secs": row.first_time and 1_700_000_000} for row in rows] == [
        {
            **given._asdict(), "payload": '{"id": 7, "text": "schön"}', "message": {"id": 7, "text": "schön"},
            "entry_id": written[0], "time": rows[0].time, "first_time": rows[0].first_time,
        },
        {
            **DeadLetter(-8, "run-1", 1, "timeout")._asdict(), "message": None, "entry_id": written[1], "time": rows[1].time,
            "first_time": None,
        },
    ]  # fmt: skip
    assert rows[0].first_time.timestamp() == 1_700_000_000
    age = datetime.now(UTC) - rows[0].time.astimezone(UTC)
    assert abs(age) < timedelta(minutes=10)


def test_dead_letters_are_selected_by_time_range(spark: Any, acker: Acker, raw: Any) -> None:
    for message, seconds in enumerate((0, 0, 0.001, 59.999, 60, 3600)):
        put(raw, seconds, message)

    def found(begin: datetime | None, end: datetime | None) -> list[int]:
        return sorted(row.message_id for row in read_dead_letters(spark, acker, since=begin, until=end).collect())

    minute = timedelta(minutes=1)
    assert found(None, None) == [0, 1, 2, 3, 4, 5]
    assert found(NOON, NOON + minute) == [0, 1, 2, 3]
    assert found(NOON + timedelta(milliseconds=1), None) == [2, 3, 4, 5]
    assert found(NOON.astimezone(timezone(timedelta(hours=5))), NOON + timedelta(milliseconds=1)) == [0, 1]
    assert found(NOON + 2 * minute, NOON + 3 * minute) == []
    assert found(None, NOON) == []
    with pytest.raises(BadConfigError, match="is not before until"):
        found(NOON, NOON)
    with pytest.raises(BadConfigError, match="since='today' is not a datetime"):
        read_dead_letters(spark, acker, since="today")  # type: ignore[arg-type]


def one_row(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One for each partition."""
    for _ in batches:
        pass
    yield pa.RecordBatch.from_pydict({"n": pa.array([1], pa.int32())})


def test_many_dead_letters_are_read_in_several_partitions(
    spark: Any, acker: Acker, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "_LETTERS_PER_PARTITION", 700)
    with raw.pipeline(transaction=False) as pipe:
        for message in range(2500):
            pipe.xadd(
                "acker:{letters}:dead_letters",
                {"format": 2, "message_id": message, "run_id": "run", "attempts": 1, "reason": "lost"},
                id=f"{round(NOON.timestamp() * 1000) + message // 7}-*",
            )  # fmt: skip
        pipe.execute()
    letters = read_dead_letters(spark, acker, until=NOON + timedelta(seconds=1))
    assert letters.mapInArrow(one_row, "n int").count() == 2
    assert sorted(row.message_id for row in letters.collect()) == list(range(2500))
    assert letters.groupBy("reason").count().collect()[0]["count"] == 2500


def test_damaged_dead_letters_are_skipped_when_read(spark: Any, acker: Acker, raw: Any, tmp_path: Path) -> None:
    assert read_dead_letters(spark, acker).collect() == []
    put(raw, 0, 1, payload=b"\xff{")
    raw.xadd("acker:{letters}:dead_letters", {"what": "ever"})
    letters = read_dead_letters(spark, acker, payload_schema=MESSAGES)
    letters.write.parquet(str(tmp_path / "letters"))
    (row,) = spark.read.parquet(str(tmp_path / "letters")).collect()
    assert (row.message_id, row.payload, row.message) == (1, "�{", (None, None))


def test_dead_letters_added_after_the_read_are_excluded(spark: Any, acker: Acker, raw: Any) -> None:
    put(raw, 0, 1)
    letters = read_dead_letters(spark, acker)
    put(raw, 10**9, 2)
    try:
        assert [row.message_id for row in letters.collect()] == [1]
    finally:
        raw.delete("acker:{letters}:dead_letters")  # else what comes after has ids of that time, too
