"""Numbers of snapshots, which never go back, so that a copy of the parking location from before a reset counts as older."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql.types import StructType

from acker_redis import BadConfigError
from acker_redis.spark.streaming.parking.parking_location import ParkingLocation, ParkingLocationDeletedError
from acker_redis.spark.streaming.parking.snapshot import Snapshot
from acker_redis.spout.in_flight import Attempts

NOTHING = Snapshot(Attempts.first(np.array([], np.int64)), np.array([]), [], [], [], StructType(), "id")


def open_at(folder: Path, batch_id: int, noted: int | None) -> ParkingLocation:
    """A start of the query at a batch, with this number in Redis, without Spark."""
    (folder / "checkpoint" / "commits").mkdir(parents=True, exist_ok=True)
    store = ParkingLocation(str(folder / "parked"), "streams")
    store.claim("q", str(folder / "checkpoint"), batch_id)
    store.load(batch_id)
    store.start_saving(batch_id)
    store.check_number(noted, batch_id)
    return store


def park_thrice(folder: Path) -> int:
    """Three batches that park, and a copy of the folder; the number of the newest snapshot."""
    store = open_at(folder, 0, None)
    for batch_id in range(3):
        store.save(batch_id, NOTHING, batch_id - 1)
    shutil.copytree(folder / "parked", folder / "copy")
    assert store.number == 2
    return store.number


def replace_by_empty(folder: Path) -> None:
    shutil.rmtree(folder / "parked")
    (folder / "parked").mkdir()
    (folder / "parked" / "start_empty").touch()


def put_back(folder: Path) -> None:
    shutil.rmtree(folder / "parked")
    shutil.copytree(folder / "copy", folder / "parked")


@pytest.mark.parametrize("saves", [0, 1, 3, 4])
def test_copy_from_before_start_empty_is_refused(tmp_path: Path, saves: int) -> None:
    """However much was parked since: also with as many snapshots as the copy has."""
    before = park_thrice(tmp_path)
    replace_by_empty(tmp_path)
    store = open_at(tmp_path, 3, before)
    for batch_id in range(3, 3 + saves):
        store.save(batch_id, NOTHING, batch_id - 1)
    put_back(tmp_path)
    with pytest.raises(
        BadConfigError, match=r"is an older copy: its newest snapshot is number 2, but number \d+ was saved"
    ):
        open_at(tmp_path, 3 + saves, store.number)


def test_copy_from_before_start_empty_is_refused_if_redis_had_missed_its_last_numbers(tmp_path: Path) -> None:
    park_thrice(tmp_path)
    replace_by_empty(tmp_path)
    store = open_at(tmp_path, 3, 0)
    put_back(tmp_path)
    with pytest.raises(BadConfigError, match="is an older copy"):
        open_at(tmp_path, 3, store.number)


def test_copy_without_a_snapshot_from_after_start_empty_is_refused(tmp_path: Path) -> None:
    noted = park_thrice(tmp_path)
    replace_by_empty(tmp_path)
    store = open_at(tmp_path, 3, noted)
    shutil.rmtree(tmp_path / "copy")
    shutil.copytree(tmp_path / "parked", tmp_path / "copy")
    store.save(3, NOTHING, 2)
    put_back(tmp_path)
    with pytest.raises(BadConfigError, match="is an older copy: it has no snapshot, but number"):
        open_at(tmp_path, 4, store.number)


def test_driver_that_dies_after_start_empty_before_redis_has_the_number_starts_again(tmp_path: Path) -> None:
    """At each moment: before the folder has its first number, with it, and with the snapshot of a batch that comes again."""
    noted = park_thrice(tmp_path)
    replace_by_empty(tmp_path)
    ParkingLocation(str(tmp_path / "parked"), "streams").claim("q", str(tmp_path / "checkpoint"), 3)
    first = open_at(tmp_path, 3, noted).number
    store = open_at(tmp_path, 3, noted)
    assert store.number == first > noted
    store.save(3, NOTHING, 2)
    again = open_at(tmp_path, 3, noted)
    assert again.number == store.number == first + 1
    again.save(3, NOTHING, 2)
    assert open_at(tmp_path, 4, again.number).number == first + 2


def test_numbers_start_at_0_if_redis_has_lost_them_at_start_empty(tmp_path: Path) -> None:
    park_thrice(tmp_path)
    replace_by_empty(tmp_path)
    store = open_at(tmp_path, 3, None)
    store.save(3, NOTHING, 2)
    assert store.number == 0
    open_at(tmp_path, 4, 0)


def test_copy_of_a_parking_that_was_lost_before_batch_0_was_committed_is_refused(tmp_path: Path) -> None:
    """Nothing is missing at that start, for all messages come again."""
    store = open_at(tmp_path, 0, None)
    for _ in range(3):
        store.save(0, NOTHING, -1)
    shutil.copytree(tmp_path / "parked", tmp_path / "copy")
    shutil.rmtree(tmp_path / "parked")
    again = open_at(tmp_path, 0, store.number)
    again.save(0, NOTHING, -1)
    put_back(tmp_path)
    with pytest.raises(BadConfigError, match="is an older copy"):
        open_at(tmp_path, 1, again.number)


@pytest.mark.parametrize("committed", [-1, 1, None])
def test_recreated_parking_continues_the_numbers(tmp_path: Path, committed: int | None) -> None:
    """So it isn't older than Redis, which isn't told, for it may be away. The one before it is, once Redis knows."""
    before = park_thrice(tmp_path)
    store = open_at(tmp_path, 2, before)
    shutil.rmtree(tmp_path / "parked")
    with pytest.raises(ParkingLocationDeletedError):
        store.save(2, NOTHING, committed)
    again = open_at(tmp_path, 0 if committed is None else committed + 1, before)
    assert again.number == store.number == before + 1
    put_back(tmp_path)
    with pytest.raises(BadConfigError, match="is an older copy"):
        open_at(tmp_path, 3, again.number)


def test_parking_recreated_by_an_earlier_version_counts_although_its_number_is_lower(tmp_path: Path) -> None:
    noted = park_thrice(tmp_path)
    shutil.rmtree(tmp_path / "parked")
    open_at(tmp_path, 0, None).save(0, NOTHING, -1)
    about = tmp_path / "parked" / "query.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "reset": True}))
    store = open_at(tmp_path, 1, noted)
    assert store.number > noted
    assert "reset" not in json.loads(about.read_text())
    put_back(tmp_path)
    with pytest.raises(BadConfigError, match="is an older copy"):
        open_at(tmp_path, 3, store.number)
