"""The parking location of a stream, against operators, full disks and clocks: nothing disappears silently."""

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from acker_redis import Acker, BadConfigError, RetryPolicy, ServerOutOfMemoryError
from acker_redis.acker import app_of
from acker_redis.spark import Tracker
from acker_redis.spark.streaming.parking.parking_location import ParkingLocation, ParkingOutageError
from acker_redis.testing import wait_until
from tests.spark.streaming.test_streams import (
    CONFIG,
    give,
    handler_of,
    parked,
    pipeline,
    plain,
    snapshots,
    start,
    written,
)
from tests.support.object_store import object_store

pytestmark = [pytest.mark.spark, pytest.mark.classic("foreachBatch runs in the server")]


@pytest.fixture
def acker(url: str) -> Iterator[Acker]:
    with Acker.connect(url, CONFIG) as acker:
        yield acker


def go_on(spark: Any, acker: Acker, folder: Path, run: Any = None, *, drain: bool = False) -> None:
    """A start of the query until its source is read; with many attempts, sevens stay parked."""
    with handler_of(acker, folder, run, retry=RetryPolicy(max_attempts=50)) as handler:
        start(spark, folder, handler).awaitTermination()
        if drain:
            assert handler.drain(180).parked == {}


def set_back(folder: Path, batches: int) -> None:
    """The checkpoint, so that so many batches come again."""
    checkpoint = folder / "checkpoint"
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    for number in range(last - batches + 1, last + 1):
        for log in ("commits", "offsets", "sources/0"):
            for name in (f"{number}", f".{number}.crc"):
                (checkpoint / log / name).unlink(missing_ok=True)


def number_in_redis(acker: Acker, folder: Path) -> int | None:
    return app_of(acker).snapshot_number(json.loads((folder / "checkpoint" / "metadata").read_text())["id"])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "parked").iterdir()}


def test_checkpoint_set_back_by_a_batch_loses_nothing(spark: Any, acker: Acker, tmp_path: Path) -> None:
    """Also where a snapshot was written when the batch was committed already, as a late ack does."""
    give(tmp_path, [1, 7], [2, 17, 50], [3, 27])
    with handler_of(acker, tmp_path, retry=RetryPolicy(max_attempts=50)) as handler:
        query = start(spark, tmp_path, handler, processingTime="1 second")
        try:
            wait_until(lambda: handler.status().batches == 3, "all batches end", 120)
            (row,) = [row for path in (tmp_path / "hung").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
            acker.ack(*row["anchors"])
            wait_until(lambda: parked(tmp_path) == [7, 17, 27], "the late ack is taken, and kept", 180)
            commits = tmp_path / "checkpoint" / "commits"
            wait_until((commits / "2").exists, "Spark commits the last batch", 180)
        finally:
            query.stop()
    set_back(tmp_path, 1)
    go_on(spark, acker, tmp_path, partial(plain, tmp_path), drain=True)
    assert set(written(tmp_path)) == {1, 2, 3, 7, 17, 27, 50}  # what was acked since comes again, too


def test_checkpoint_set_back_too_far_is_refused_without_change(spark: Any, acker: Acker, tmp_path: Path) -> None:
    for first in (0, 10, 20, 30):
        give(tmp_path, [first + 1, first + 7])
        go_on(spark, acker, tmp_path)
    assert parked(tmp_path) == [7, 17, 27, 37]
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    before = contents(tmp_path)
    set_back(tmp_path, 3)
    lost = (
        r"resumes at batch 1.*4 messages are parked \((\d+, ){3}\d+\).*be lost.*Nothing was changed.*batch 2 or later"
    )
    with pytest.raises(BadConfigError, match=lost):
        go_on(spark, acker, tmp_path)
    assert contents(tmp_path) == before
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "copy").rename(tmp_path / "checkpoint")
    go_on(spark, acker, tmp_path, partial(plain, tmp_path), drain=True)
    assert written(tmp_path) == [1, 7, 11, 17, 21, 27, 31, 37]


def test_uncommitted_snapshot_is_replaced_when_its_batch_repeats(spark: Any, acker: Acker, tmp_path: Path) -> None:
    """The batch comes again, and this time nothing of it fails: there is nothing to park, and yet it has to be written."""
    give(tmp_path, [1, 7])
    go_on(spark, acker, tmp_path)
    set_back(tmp_path, 1)
    go_on(spark, acker, tmp_path, partial(plain, tmp_path))
    go_on(spark, acker, tmp_path, partial(plain, tmp_path), drain=True)
    assert written(tmp_path) == [1, 1, 7]


@pytest.mark.parametrize("missing", ["all", "newest"])
def test_missing_snapshot_is_refused(spark: Any, acker: Acker, tmp_path: Path, missing: str) -> None:
    for first in (0, 10):
        give(tmp_path, [first + 1, first + 7])
        go_on(spark, acker, tmp_path)
    (tmp_path / "away").mkdir()
    for name in snapshots(tmp_path)[:-1][0 if missing == "all" else -1 :]:
        (tmp_path / "parked" / name).rename(tmp_path / "away" / name)
    with pytest.raises(BadConfigError, match=r"lacks its newest snapshot 0000000001-\d+\.parquet.*from a copy"):
        handler_of(acker, tmp_path)
    for path in (tmp_path / "away").iterdir():
        path.rename(tmp_path / "parked" / path.name)
    go_on(spark, acker, tmp_path, partial(plain, tmp_path), drain=True)
    assert written(tmp_path) == [1, 7, 11, 17]


@pytest.mark.parametrize("batches", [1, 2])
def test_parking_deleted_during_a_batch_is_recreated_complete(
    spark: Any, acker: Acker, tmp_path: Path, batches: int
) -> None:
    """That batch comes again."""
    give(tmp_path, *([10 * one + 1, 10 * one + 7] for one in range(batches)))

    def run(tracker: Tracker, messages: DataFrame) -> None:
        pipeline(tmp_path, tracker, messages)
        if tracker.batch_id == batches - 1:
            shutil.rmtree(tmp_path / "parked")

    with pytest.raises(
        StreamingQueryException, match=r"was deleted while the query ran\. It was recreated.*restart the query"
    ):
        go_on(spark, acker, tmp_path, run)
    go_on(spark, acker, tmp_path, partial(plain, tmp_path), drain=True)
    assert set(written(tmp_path)) == {10 * one + at for one in range(batches) for at in (1, 7)}
    assert acker.dead_letters.count() == 0


def test_parking_deleted_between_batches_is_detected_when_idle(
    spark: Any, acker: Acker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    give(tmp_path, [1, 7])
    later = RetryPolicy(max_attempts=2, first_delay_secs=3600, max_delay_secs=3600)
    with handler_of(acker, tmp_path, retry=later) as handler:
        query = start(spark, tmp_path, handler, processingTime="1 second")
        try:
            wait_until(lambda: handler.status().parked == {("failed", "fail_where"): 1}, "the seven is parked", 180)
            wait_until(lambda: handler.status().batches == 1, "its batch ended", 180)
            (tmp_path / "parked").rename(tmp_path / "gone")  # at once: the query recreates what is missing
            wait_until(lambda: "was deleted while the query ran" in caplog.text, "somebody notices", 180)
            give(tmp_path, [2])
            with pytest.raises(StreamingQueryException, match="with all 1 parked messages"):
                query.awaitTermination()
        finally:
            query.stop()
    assert parked(tmp_path) == [7]


def test_micro_batches_that_change_nothing_that_is_parked_write_no_snapshot(
    spark: Any, acker: Acker, tmp_path: Path
) -> None:
    give(tmp_path, [1, 7])
    later = RetryPolicy(max_attempts=2, first_delay_secs=3600, max_delay_secs=3600)
    with handler_of(acker, tmp_path, retry=later) as handler:
        query = start(spark, tmp_path, handler, processingTime="1 second")
        try:
            wait_until(lambda: handler.status().batches == 1, "the seven is parked", 180)
            before = snapshots(tmp_path)
            give(tmp_path, [2], [3])
            wait_until(lambda: handler.status().batches == 3, "other batches end", 180)
            assert snapshots(tmp_path) == before
            give(tmp_path, [17])
            wait_until(lambda: handler.status().batches == 4, "another seven is parked", 180)
            assert parked(tmp_path) == [7, 17]
        finally:
            query.stop()


def test_draft_of_query_json_left_by_a_dead_process_is_used(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, [1, 7])
    go_on(spark, acker, tmp_path)
    about = tmp_path / "parked" / "query.json"
    about.rename(tmp_path / "parked" / ".query.json.draft")
    go_on(spark, acker, tmp_path, partial(plain, tmp_path), drain=True)
    assert written(tmp_path) == [1, 7]
    assert json.loads(about.read_text())["newest"] == snapshots(tmp_path)[-2]


def test_parking_without_query_json_or_in_old_format_is_refused(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, [1, 7])
    go_on(spark, acker, tmp_path)
    about = tmp_path / "parked" / "query.json"
    text = about.read_text()
    for version in (2, 3):
        about.write_text(json.dumps({**json.loads(text), "version": version}))
        refused = rf"is in format {version}, but this version of acker_redis reads only format 4\..*wrote it, and drain\(\) it"
        with pytest.raises(BadConfigError, match=refused):
            handler_of(acker, tmp_path)
    about.unlink()
    give(tmp_path, [2])
    with pytest.raises(StreamingQueryException, match=r"has snapshots but no query\.json.*from a copy"):
        go_on(spark, acker, tmp_path)
    about.write_text(text)
    go_on(spark, acker, tmp_path, partial(plain, tmp_path), drain=True)
    assert written(tmp_path) == [1, 2, 7]


def test_emptied_parking_is_refused_until_the_user_starts_empty(spark: Any, acker: Acker, tmp_path: Path) -> None:
    for first in (0, 10):
        give(tmp_path, [first + 1, first + 7])
        go_on(spark, acker, tmp_path)
    shutil.copytree(tmp_path / "parked", tmp_path / "copy")
    before = number_in_redis(acker, tmp_path)
    for path in (tmp_path / "parked").iterdir():
        path.unlink()
    give(tmp_path, [27])
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match=r"has no query\.json, but the query resumes at batch 2"):
            go_on(spark, acker, tmp_path)
    (tmp_path / "parked" / "start_empty").touch()
    go_on(spark, acker, tmp_path)
    assert parked(tmp_path) == [27]
    assert not (tmp_path / "parked" / "start_empty").exists()
    after = number_in_redis(acker, tmp_path)
    assert before is not None and after is not None and after > before
    give(tmp_path, [37])
    go_on(spark, acker, tmp_path)
    assert parked(tmp_path) == [27, 37]
    shutil.rmtree(tmp_path / "parked")
    (tmp_path / "copy").rename(tmp_path / "parked")
    give(tmp_path, [2])
    with pytest.raises(
        StreamingQueryException, match=rf"is an older copy: its newest snapshot is number {before}, but"
    ):
        go_on(spark, acker, tmp_path)


def test_parking_restored_from_an_older_copy_is_refused(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, [1, 7])
    go_on(spark, acker, tmp_path)
    shutil.copytree(tmp_path / "parked", tmp_path / "copy")
    give(tmp_path, [11, 17])
    go_on(spark, acker, tmp_path)
    assert parked(tmp_path) == [7, 17]
    (tmp_path / "parked").rename(tmp_path / "newest")
    shutil.copytree(tmp_path / "copy", tmp_path / "parked")
    give(tmp_path, [2])
    before = contents(tmp_path)
    with pytest.raises(
        StreamingQueryException, match=r"is an older copy: its newest snapshot is number 0, but number \d"
    ):
        go_on(spark, acker, tmp_path)
    assert contents(tmp_path) == before
    shutil.rmtree(tmp_path / "parked")
    (tmp_path / "newest").rename(tmp_path / "parked")
    go_on(spark, acker, tmp_path, partial(plain, tmp_path), drain=True)
    assert written(tmp_path) == [1, 2, 7, 11, 17]


@pytest.mark.parametrize("lower", [-1, 0])
def test_snapshot_number_that_redis_lost_is_raised_at_start(
    spark: Any, acker: Acker, tmp_path: Path, lower: int
) -> None:
    for first in (0, 10):
        give(tmp_path, [first + 1, first + 7])
        go_on(spark, acker, tmp_path)
    noted = number_in_redis(acker, tmp_path)
    assert noted == max(int(path.stem[11:]) for path in (tmp_path / "parked").glob("*.parquet"))
    app_of(acker).write_snapshot_number(json.loads((tmp_path / "parked" / "query.json").read_text())["query"], lower)
    with handler_of(acker, tmp_path) as handler:
        handler.drain(0)
    assert number_in_redis(acker, tmp_path) == noted


def test_start_empty_beside_snapshots_is_refused(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, [1, 7])
    go_on(spark, acker, tmp_path)
    (tmp_path / "parked" / "start_empty").touch()
    with pytest.raises(BadConfigError, match="has a file start_empty, but also snapshots"):
        handler_of(acker, tmp_path)
    (tmp_path / "parked" / "start_empty").unlink()
    go_on(spark, acker, tmp_path, partial(plain, tmp_path), drain=True)
    assert written(tmp_path) == [1, 7]


def test_query_that_was_not_tracked_before_starts_empty(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, [1])
    start(spark, tmp_path, lambda batch, _: batch.count()).awaitTermination()
    give(tmp_path, [2])
    with pytest.raises(
        StreamingQueryException, match=r"does not exist.*create a folder that has only a file start_empty"
    ):
        go_on(spark, acker, tmp_path)
    (tmp_path / "parked").mkdir()
    (tmp_path / "parked" / "start_empty").touch()
    go_on(spark, acker, tmp_path, partial(plain, tmp_path))
    assert written(tmp_path) == [2]


def test_unwritable_snapshot_number_delays_no_commit(
    spark: Any, acker: Acker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    give(tmp_path, [1, 7], [2, 17])
    with monkeypatch.context() as patched:
        patched.setattr(type(app_of(acker)), "write_snapshot_number", raise_full)
        go_on(spark, acker, tmp_path)
    assert "could not note the newest snapshot, will retry" in caplog.text
    assert number_in_redis(acker, tmp_path) is None
    go_on(spark, acker, tmp_path, partial(plain, tmp_path), drain=True)
    assert written(tmp_path) == [1, 2, 7, 17]
    assert number_in_redis(acker, tmp_path) is not None


def raise_full(*_: object) -> None:
    raise ServerOutOfMemoryError("full")


def fill(folder: Path, name: str) -> Path:
    """What is written under this name in the parking location meets a full disk, until the link is gone."""
    link = folder / "parked" / f".{name}.draft"
    link.symlink_to("/dev/full")
    return link


@pytest.mark.parametrize("name", ["0000000001-000001.parquet", "query.json"])
def test_full_parking_disk_is_waited_for(
    spark: Any,
    acker: Acker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    give(tmp_path, [1, 7])
    go_on(spark, acker, tmp_path)
    give(tmp_path, [2, 17])
    monkeypatch.setattr(
        "acker_redis.spark.streaming.parking.folder.Folder._remove_draft", lambda folder, name: None
    )  # the disk stays full until the link is gone
    with handler_of(acker, tmp_path, retry=RetryPolicy(max_attempts=50)) as handler:
        link = fill(tmp_path, name)
        query = start(spark, tmp_path, handler)
        wait_until(lambda: "No space left on device" in caplog.text, "the disk is full", 180)
        assert query.isActive and not (tmp_path / "checkpoint" / "commits" / "1").exists()
        link.unlink()
        query.awaitTermination()
        assert "saved parked messages again outage_secs=" in caplog.text
    assert parked(tmp_path) == [7, 17]


def test_parking_disk_staying_full_ends_the_query_without_loss(
    spark: Any, acker: Acker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(tmp_path, [1, 7])
    go_on(spark, acker, tmp_path)
    give(tmp_path, [2, 17])
    monkeypatch.setattr("acker_redis.spark.streaming.parking.parking_location._OUTAGE_TIMEOUT_SECS", 1.0)
    monkeypatch.setattr(
        "acker_redis.spark.streaming.parking.folder.Folder._remove_draft", lambda folder, name: None
    )  # the link stays
    link = fill(tmp_path, "0000000001-000001.parquet")
    with pytest.raises(StreamingQueryException, match=r"could not be saved for \d+ s\. Nothing is lost.*No space left"):
        go_on(spark, acker, tmp_path)
    link.unlink()
    go_on(spark, acker, tmp_path, partial(plain, tmp_path), drain=True)
    assert set(written(tmp_path)) == {1, 2, 7, 17}
    assert acker.dead_letters.count() == 0


def test_stopped_query_does_not_wait_for_a_full_parking_disk(
    spark: Any, acker: Acker, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(tmp_path, [1, 7])
    go_on(spark, acker, tmp_path)
    give(tmp_path, [2, 17])
    monkeypatch.setattr("acker_redis.spark.streaming.parking.folder.Folder._remove_draft", lambda folder, name: None)
    with handler_of(acker, tmp_path) as handler:
        link = fill(tmp_path, "0000000001-000001.parquet")
        query = start(spark, tmp_path, handler)
        wait_until(lambda: "No space left on device" in caplog.text, "the disk is full", 180)
        query.stop()
        link.unlink()
    assert parked(tmp_path) == [7]
    go_on(spark, acker, tmp_path, partial(plain, tmp_path), drain=True)
    assert set(written(tmp_path)) == {1, 2, 7, 17}


def rewrite_by_hadoop(spark: Any, folder: Path) -> None:
    """As former versions wrote: with a checksum beside each file."""
    hadoop = spark._jvm.org.apache.hadoop.fs
    for path in list(folder.iterdir()):
        place = hadoop.Path(str(path))
        files = place.getFileSystem(spark._jsc.hadoopConfiguration())
        data = path.read_bytes()
        with_sums = files.create(place, True)
        with_sums.write(bytearray(data))
        with_sums.close()
        assert path.with_name(f".{path.name}.crc").exists()


def read_by_hadoop(spark: Any, path: Path) -> str:
    """Which compares the checksums that are there."""
    return "".join(row[0] for row in spark.read.text(str(path)).collect())


def test_parking_written_by_hadoop_is_read_and_continued(spark: Any, acker: Acker, tmp_path: Path) -> None:
    give(tmp_path, [1, 7])
    go_on(spark, acker, tmp_path)
    rewrite_by_hadoop(spark, tmp_path / "parked")
    give(tmp_path, [2, 17])
    go_on(spark, acker, tmp_path)
    give(tmp_path, [27])
    go_on(spark, acker, tmp_path)
    assert parked(tmp_path) == [7, 17, 27]
    newest = max((tmp_path / "parked").glob("*.parquet"))
    assert json.loads(read_by_hadoop(spark, tmp_path / "parked" / "query.json"))["newest"] == newest.name
    files = spark.read.parquet(str(tmp_path / "parked"), pathGlobFilter="*.parquet")
    assert {row["id"] for row in files.select("id").collect()} == {7, 17, 27}
    rewrite_by_hadoop(spark, tmp_path / "parked")
    go_on(spark, acker, tmp_path, partial(plain, tmp_path), drain=True)
    assert written(tmp_path) == [1, 2, 7, 17, 27]


def test_parking_in_an_object_store_survives_its_outages(
    spark: Any, acker: Acker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with object_store() as store:
        options = {"parking_location": store.uri("orders/parked"), "retry": RetryPolicy(max_attempts=50)}
        give(tmp_path, [1, 7])
        with handler_of(acker, tmp_path, **options) as handler:
            start(spark, tmp_path, handler).awaitTermination()
        assert sorted(store.objects) == ["orders/parked/0000000000-000000.parquet", "orders/parked/query.json"]
        give(tmp_path, [2, 17])
        with handler_of(acker, tmp_path, **options) as handler:
            store.takes_parts = False
            query = start(spark, tmp_path, handler)
            wait_until(lambda: "could not save parked messages, will retry" in caplog.text, "the store is down", 180)
            assert query.isActive and not (tmp_path / "checkpoint" / "commits" / "1").exists()
            store.takes_parts = True
            query.awaitTermination()
        with handler_of(acker, tmp_path, partial(plain, tmp_path), **options) as handler:
            assert handler.drain(180).parked == {}
        assert written(tmp_path) == [1, 2, 7, 17]


def test_checkpoint_with_a_name_that_is_no_uri(spark: Any, acker: Acker, tmp_path: Path) -> None:
    folder = tmp_path / "a b%20c"
    folder.mkdir()
    give(folder, [1, 7])
    go_on(spark, acker, folder)
    go_on(spark, acker, folder, partial(plain, folder), drain=True)
    assert written(folder) == [1, 7]


def test_unknown_file_systems_are_refused_before_anything_is_written(spark: Any, acker: Acker, tmp_path: Path) -> None:
    with pytest.raises(BadConfigError, match="'nope://a' has the scheme 'nope', for which neither"):
        handler_of(acker, tmp_path, parking_location="nope://a")
    parking = tmp_path / "parked"
    with pytest.raises(BadConfigError, match="'nope://a/checkpoint' has the scheme 'nope'"):
        ParkingLocation(parking.as_uri(), "streams").claim("q", "nope://a/checkpoint", 0)
    for batch_id in (0, 5):
        with pytest.raises(
            BadConfigError, match=r"is a folder on this machine, but the checkpoint is 'gs://a/checkpoint'"
        ):
            ParkingLocation(str(parking), "streams").claim("q", "gs://a/checkpoint", batch_id)
    assert not parking.exists()
    ParkingLocation(parking.as_uri(), "streams").claim("q", "gs://a/checkpoint", 0)
    ParkingLocation(str(parking), "streams").claim("q", "gs://a/moved", 5)
    assert json.loads((parking / "query.json").read_text())["checkpoint"] == "gs://a/moved"


def test_unreadable_checkpoint_is_an_outage() -> None:
    with object_store() as store:
        parking = ParkingLocation("mock:///parked", "streams")
        parking.claim("q", store.uri("checkpoint"), 0)
        assert parking.committed() is None
        for number in (0, 1, 10):
            store.objects[f"checkpoint/commits/{number}"] = b"v1"
        store.objects["checkpoint/commits/.11.tmp"] = b"v1"
        assert parking.next_batch() == 11
        store.is_down = True
        with pytest.raises(ParkingOutageError, match=r"The checkpoint .* is unreadable \(.*ACCESS_DENIED"):
            parking.committed()
