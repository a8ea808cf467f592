"""Files of Kafka's in the parking location, such as ids by which a topic that was created again is noticed."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from acker_redis import BadConfigError, RetryPolicy
from acker_redis.spark.streaming.kept_letters import KeptLetter
from acker_redis.spark.streaming.parking.parked_messages import ParkedMessages
from acker_redis.spark.streaming.parking.parking_location import ParkingLocation, ParkingLocationDeletedError
from acker_redis.spout.state import SpoutState
from acker_redis.store.dead_letter import DeadLetter


def test_ids_survive_a_restart(tmp_path: Path) -> None:
    folder = str(tmp_path / "parked")
    (tmp_path / "checkpoint").mkdir()
    first = ParkingLocation(folder, "app")
    assert first.topic_ids() == {}
    first.claim("query", str(tmp_path / "checkpoint"), 0)
    first.keep_topic_ids({"orders": "one"})
    first.keep_topic_ids({"orders": "one", "returns": "two"})
    second = ParkingLocation(folder, "app")
    second.claim("query", str(tmp_path / "checkpoint"), 7)
    assert second.topic_ids() == {"orders": "one", "returns": "two"}


def test_files_that_a_dead_process_left_as_drafts_are_used(tmp_path: Path) -> None:
    """HDFS can't rename over a file, so there is a moment with the draft alone."""
    first = ParkingLocation(str(tmp_path), "app")
    first.keep_topic_ids({"orders": "one"})
    kept = [
        KeptLetter(DeadLetter(4, "run", 1, "failed", "parse", "bad", entry_id="1-1", payload=b"\xff"), "orders", 0, 4)
    ]
    first.keep_kafka_letters(kept)
    for name in ("kafka_topics.json", "kafka_letters.json"):
        (tmp_path / name).rename(tmp_path / f".{name}.draft")
    for _ in range(2):
        again = ParkingLocation(str(tmp_path), "app")
        assert (again.topic_ids(), again.kafka_letters()) == ({"orders": "one"}, kept)
    for name in ("kafka_topics.json", "kafka_letters.json"):
        (tmp_path / name).rename(tmp_path / f".{name}.draft")
        (tmp_path / f".{name}.draft").write_text("[{")
    assert (again.topic_ids(), again.kafka_letters()) == ({}, []), "an incomplete draft was never the file"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_folder_that_was_deleted_is_recreated_with_ids_and_letters(tmp_path: Path, *, is_restarted: bool) -> None:
    """Without them a restart would take a topic that was created again for the old one, and commits would pass letters."""
    folder, checkpoint = tmp_path / "parked", tmp_path / "checkpoint"
    checkpoint.mkdir()
    kept = [KeptLetter(DeadLetter(4, "run", 1, "failed", entry_id="1-1"), "orders", 0, 4)]

    def start() -> ParkingLocation:
        store = ParkingLocation(str(folder), "app")
        store.claim("query", str(checkpoint), 0)
        return store

    store = start()
    store.keep_topic_ids({"orders": "one"})
    store.keep_kafka_letters(kept)
    if is_restarted:
        store = start()
        assert (store.topic_ids(), store.kafka_letters()) == ({"orders": "one"}, kept)
    shutil.rmtree(folder)
    nothing = ParkedMessages(SpoutState("app", "run", RetryPolicy()), list).snapshot(StructType(), "id", None)
    with pytest.raises(ParkingLocationDeletedError):
        store.save(0, nothing, -1)
    again = start()
    assert (again.topic_ids(), again.kafka_letters()) == ({"orders": "one"}, kept)


def test_damaged_ids_are_refused(tmp_path: Path) -> None:
    for damaged in ("", "{", "[]", "3"):
        (tmp_path / "kafka_topics.json").write_text(damaged)
        with pytest.raises(BadConfigError, match=r"damaged kafka_topics\.json .* Restore the file"):
            ParkingLocation(str(tmp_path), "app").topic_ids()
