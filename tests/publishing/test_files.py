"""Staged files that go into a table, while other processes do the same."""

import errno
import os
from pathlib import Path

import pytest

from acker_redis.errors import BadConfigError, FilesNotMovedError, PipelineError
from acker_redis.publishing.files import LocalFiles, check_partitions, check_rename, files_below, local_folder
from acker_redis.publishing.records import Staged


def staged(folder: Path, *names: str) -> Staged:
    (folder / "stage").mkdir()
    for name in names:
        (folder / "stage" / name).parent.mkdir(exist_ok=True)
        (folder / "stage" / name).write_text(name)
    return Staged("orders", "files", str(folder / "table"), str(folder / "stage"), names, len(names))


def test_files_are_moved_once_with_their_partitions(tmp_path: Path) -> None:
    rows, files = staged(tmp_path, "day=1/a", "day=2/b"), LocalFiles("0123456789ab")
    for _ in range(2):
        files.publish(3, rows)
        LocalFiles("0123456789ab").publish(3, rows)
    names = ["day=1/acker-0123456789ab-0000000003-orders-a", "day=2/acker-0123456789ab-0000000003-orders-b"]
    assert [str(path.relative_to(tmp_path / "table")) for path in sorted(files_below(tmp_path / "table"))] == names
    assert files.newest_number(rows.target) == 3


def test_names_in_a_table_are_on_the_disk_when_it_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, seen = staged(tmp_path, "day=1/a", "b"), list[str]()
    monkeypatch.setattr(os, "fsync", lambda file: seen.append(f"{path_of(file)} {len(list(path_of(file).iterdir()))}"))
    LocalFiles("0123456789ab").publish(3, rows)
    table = tmp_path / "table"
    assert {f"{table} 2", f"{table / 'day=1'} 1", f"{tmp_path} 2"} <= {*seen}
    assert seen.index(f"{tmp_path} 2") < seen.index(f"{table / 'day=1'} 1")
    seen.clear()
    LocalFiles("0123456789ab").publish(3, rows)  # the process died before it had synced them
    assert {f"{table} 2", f"{table / 'day=1'} 1"} <= {*seen}


def path_of(file: int) -> Path:
    return Path(f"/proc/self/fd/{file}").readlink()


def test_file_that_another_process_moves_meanwhile_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It moves the file after this one has seen it in the stage, and before it looks into the table."""
    rows, files = staged(tmp_path, "a"), LocalFiles("0123456789ab")
    source, place = tmp_path / "stage" / "a", files.place_of(3, rows, "a")
    exists = Path.exists

    def move_after_a_look(self: Path) -> bool:
        found = exists(self)
        if self == source and found:
            place.parent.mkdir()
            source.rename(place)
        return found

    monkeypatch.setattr(Path, "exists", move_after_a_look)
    files.publish(3, rows)
    assert place.read_text() == "a"


def test_file_in_the_stage_and_in_the_table_is_an_error(tmp_path: Path) -> None:
    rows, files = staged(tmp_path, "a"), LocalFiles("0123456789ab")
    place = files.place_of(3, rows, "a")
    place.parent.mkdir()
    place.write_text("other")
    with pytest.raises(FilesNotMovedError, match="exists, and so does"):
        files.publish(3, rows)
    assert (place.read_text(), (tmp_path / "stage" / "a").read_text()) == ("other", "a")


def test_file_that_is_nowhere_is_an_error_unless_it_is_assumed_to_be_moved(tmp_path: Path) -> None:
    rows = staged(tmp_path, "a")
    (tmp_path / "stage" / "a").unlink()
    with pytest.raises(FilesNotMovedError, match="neither in the stage"):
        LocalFiles("0123456789ab").publish(3, rows)
    LocalFiles("0123456789ab", assume_moved=True).publish(3, rows)


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        ("/data/a", "/data/a"),
        ("file:/data/a", "/data/a"),
        ("file:///data/a:b", "/data/a:b"),
        ("/data/a:b", "/data/a:b"),
    ],
)
def test_folder_of_this_machine_has_a_path(location: str, folder: str) -> None:
    assert str(local_folder(location, "The table")) == folder


@pytest.mark.parametrize("location", ["s3a://bucket/a", "hdfs:///a", "dbfs:/a"])
def test_folder_elsewhere_is_refused(location: str) -> None:
    with pytest.raises(BadConfigError, match=r"The table .* isn't on a local disk"):
        local_folder(location, "The table")


def test_files_that_readers_skip_are_no_rows(tmp_path: Path) -> None:
    for name in ("a", "_SUCCESS", ".a.crc", "_day=1/b", "_temporary/c", ".hidden/d"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert sorted(str(path.relative_to(tmp_path)) for path in files_below(tmp_path)) == ["_day=1/b", "a"]


@pytest.mark.parametrize("table", ["table", "none/there"])
def test_renaming_is_tried_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    (tmp_path / "table").mkdir()
    check_rename(tmp_path / "stage", tmp_path / table)
    refusals = {errno.EXDEV: BadConfigError, errno.EACCES: BadConfigError, errno.ENOSPC: OSError}
    for number, error in refusals.items():

        def refuse(self: Path, target: Path, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(Path, "rename", refuse)
        with pytest.raises(error, match=os.strerror(number)):
            check_rename(tmp_path / "stage", tmp_path / table)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["stage", "table"]


def test_other_partitions_than_those_of_the_table_are_refused(tmp_path: Path) -> None:
    check_partitions("orders", tmp_path, Path("Day=1/a"), Path("day=2/b"))
    with pytest.raises(PipelineError, match=r"partitioned by \['day'\], and the writer partitions by nothing"):
        check_partitions("orders", tmp_path, Path("day=1/a"), Path("b"))
