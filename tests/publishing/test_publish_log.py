"""One log, and what its users are told."""

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from acker_redis.errors import BadConfigError, DamagedDataError, FencedError, FilesNotMovedError
from acker_redis.publishing.files import LocalFiles, short_name
from acker_redis.publishing.log_folder import LocalLogFolder
from acker_redis.publishing.messages import MessageNames
from acker_redis.publishing.publish_log import PublishLog
from acker_redis.publishing.records import Accepted, Dead, Owner, Staged
from acker_redis.store.dead_letter import DeadLetter

OWNER = Owner("shop", 0, ("order",))


def log_in(folder: Path, run: str | None = None) -> PublishLog:
    log = PublishLog(LocalLogFolder(folder), snapshot_every=4)
    if run is None:
        log.read()
    else:
        log.begin(run, OWNER, "orders")
    return log


def accepted(*ids: int, staged: tuple[Staged, ...] = ()) -> Accepted:
    return Accepted("run", 1, MessageNames.of_ids(np.array(ids)).ranges(), staged)


def dead(*ids: int) -> Dead:
    return Dead("run", ("",) * len(ids), ids, tuple(DeadLetter(message, "run", 3, "failed") for message in ids))


def is_done(log: PublishLog, *ids: int) -> list[bool]:
    return [bool(done) for done in log.is_done(MessageNames.of_ids(np.array(ids)))]


def test_older_run_is_fenced_and_decides_nothing(tmp_path: Path) -> None:
    older, newer = log_in(tmp_path, "older"), log_in(tmp_path, "newer")
    for decide in (older.accept, older.accept):
        with pytest.raises(FencedError, match="newer run"):
            decide(accepted(1))
    assert newer.accept(accepted(1)) == 3
    assert is_done(log_in(tmp_path), 1) == [True]


def test_message_is_accepted_or_dead_and_never_both(tmp_path: Path) -> None:
    log = log_in(tmp_path, "run")
    assert log.accept(accepted(1, 2)) == 2
    number, buried = log.bury(dead(2, 3)) or (0, dead())
    assert (number, buried.numbers, [letter.message_id for letter in buried.letters]) == (3, (3,), [3])
    assert log.bury(dead(1, 2, 3)) is None
    assert log.accept(accepted(3, 4)) is None
    assert is_done(log, 1, 2, 3, 4) == [True, True, True, False]


def test_letter_reopens_a_message_that_is_dead_by_its_record(tmp_path: Path) -> None:
    log = log_in(tmp_path, "run")
    names, (number, _) = MessageNames.of_ids(np.array([3, 4])), log.bury(dead(3, 4)) or (0, None)
    assert not log.reopen("run", names, np.array([number - 1, number - 1])).any()
    assert log.reopen("run", names, np.array([number - 1, number])).tolist() == [False, True]
    assert is_done(log, 3, 4) == [True, False]
    again = log_in(tmp_path, "again")
    assert again.reopen("again", names, np.array([number, number])).all(), "4 waits for nobody else"
    assert (again.state.number, is_done(again, 3, 4)) == (5, [False, False])
    again.accept(accepted(3))
    again.bury(dead(4))
    assert again.outdated(names, np.array([number, number])).all()
    assert not again.reopen("again", names, np.array([number, number])).any()


def test_old_run_leaves_the_letter_of_a_newer_one(tmp_path: Path) -> None:
    older, newer = log_in(tmp_path, "older"), log_in(tmp_path, "newer")
    number, _ = newer.bury(dead(3)) or (0, None)
    with pytest.raises(FencedError):
        older.reopen("older", MessageNames.one("", 3), np.array([number]))


def test_records_of_dead_messages_are_read_until_a_snapshot_replaces_them(tmp_path: Path) -> None:
    log = log_in(tmp_path, "run")
    numbers = [(log.bury(dead(message)) or (0, None))[0] for message in (3, 4)]
    assert {number: buried.numbers for number, buried in log.buried(0).items()} == {2: (3,), 3: (4,)}
    assert [*log.buried(3)] == [3]
    assert log.state.newest_stored == 0
    for number in numbers:
        log.stored(number)
    log.reopen("run", MessageNames.one("", 3), np.array([2]))
    log.compact(at_once=True)
    again = log_in(tmp_path)
    assert (again.state.newest_stored, again.state.newest_reopened, again.buried(0)) == (3, 4, {})


def test_snapshot_replaces_records_once_nothing_is_left_to_do(tmp_path: Path) -> None:
    log = log_in(tmp_path, "run")
    for message in range(4):
        log.accept(accepted(message))
        log.compact()
    assert len(list(tmp_path.iterdir())) == 5
    log.publish(lambda number, staged: None)
    log.compact()
    assert [file.name for file in tmp_path.iterdir()] == ["0000000005.snap"]
    again = log_in(tmp_path, "next")
    assert (again.state.number, is_done(again, 0, 3, 4)) == (6, [True, True, False])


def test_publishing_stops_at_the_first_error_and_goes_on_there(tmp_path: Path) -> None:
    log = log_in(tmp_path, "run")
    sinks = tuple(Staged(name, "files", "", "") for name in ("a", "b"))
    for message in range(3):
        log.accept(accepted(message, staged=sinks))
    seen: list[tuple[int, str]] = []

    def publish(number: int, staged: Staged) -> None:
        seen.append((number, staged.name))
        if seen == [(2, "a"), (2, "b"), (3, "a")]:
            raise OSError("the table is away")

    with pytest.raises(OSError, match="away"):
        log.publish(publish)
    log.publish(publish)
    assert seen == [(2, "a"), (2, "b"), (3, "a"), (3, "a"), (3, "b"), (4, "a"), (4, "b")]


def test_what_is_published_is_noted_once(tmp_path: Path) -> None:
    log = log_in(tmp_path, "run")
    for message in range(2):
        log.accept(accepted(message))
    log.publish(lambda number, staged: None)
    for _ in range(2):
        log.note_published()
    again = log_in(tmp_path)
    assert (again.state.number, again.state.is_settled) == (4, True)


def test_log_of_something_else_is_refused_before_a_record_is_written(tmp_path: Path) -> None:
    log_in(tmp_path, "run")
    with pytest.raises(BadConfigError, match=r"belongs to .*shop"):
        PublishLog(LocalLogFolder(tmp_path)).begin("other", Owner("shop", 0, ("customer",)), "orders")
    assert len(list(tmp_path.iterdir())) == 1


def test_log_keeps_its_id_and_a_new_one_in_its_place_has_another(tmp_path: Path) -> None:
    seen = [log_in(tmp_path, run).state.log_id for run in ("a", "b")]
    log = log_in(tmp_path, "c")
    log.compact(at_once=True)
    seen += [log.state.log_id, log_in(tmp_path).state.log_id]
    assert len({*seen}) == 1 and log.state.name == "orders"
    moved = tmp_path.rename(tmp_path.with_name("elsewhere"))
    again = log_in(moved, "d")
    assert (again.state.log_id, again.state.name) == (seen[0], "orders"), "so it knows its files in the tables"
    for file in moved.iterdir():
        file.unlink()
    assert log_in(moved, "a").state.log_id not in {*seen, ""}


def test_damaged_record_is_named(tmp_path: Path) -> None:
    log_in(tmp_path, "run")
    (tmp_path / "0000000002.json").write_text("{")
    with pytest.raises(DamagedDataError, match=r"0000000002\.json"):
        log_in(tmp_path, "next")


def test_file_is_created_once(tmp_path: Path) -> None:
    folder = LocalLogFolder(tmp_path / "new")
    assert folder.names() == []
    assert (folder.create("a", b"1"), folder.create("a", b"2"), folder.read("a")) == (True, False, b"1")
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["a"]


def test_start_removes_drafts_of_processes_that_died(tmp_path: Path) -> None:
    for name, age_secs in ((".a.draft", -600), (".b.draft", 600), ("c.draft", -600)):
        (tmp_path / name).write_text("{")
        os.utime(tmp_path / name, (time.time() + age_secs,) * 2)
    log_in(tmp_path, "run")
    assert {file.name for file in tmp_path.iterdir()} == {".b.draft", "c.draft", "0000000001.json"}


def test_draft_that_another_start_removes_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other run has begun, and took it for one of a process that died."""
    older, link, removed = log_in(tmp_path, "older"), os.link, list[Path]()

    def begin_meanwhile(draft: Path, place: Path) -> None:
        if not removed:
            removed.append(draft)
            os.utime(draft, (0, 0))
            log_in(tmp_path, "newer")
            assert not draft.exists()
        link(draft, place)

    monkeypatch.setattr(os, "link", begin_meanwhile)
    with pytest.raises(FencedError):
        older.accept(accepted(1))
    removed.clear()
    newest = log_in(tmp_path, "newest")  # once more, while it begins itself
    assert newest.accept(accepted(1)) == newest.state.number
    assert not list(tmp_path.glob(".*"))


def test_snapshot_whose_draft_is_removed_is_written_again_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, link, removed = log_in(tmp_path, "run"), os.link, list[Path]()
    log.accept(accepted(*range(0, 9000, 3)))
    log.publish(lambda *_: None)

    def remove_first(draft: Path, place: Path) -> None:
        if not removed:
            removed.append(draft)
            draft.unlink()
        link(draft, place)

    monkeypatch.setattr(os, "link", remove_first)
    log.compact(at_once=True)
    assert [file.name for file in tmp_path.iterdir()] == ["0000000002.snap"]
    assert len(log_in(tmp_path).state.accepted) == 3000


def test_log_that_was_restored_around_a_newer_one_is_refused(tmp_path: Path) -> None:
    log_in(tmp_path / "old", "run")
    other = log_in(tmp_path / "new", "run")
    log_in(tmp_path / "new", "next")
    shutil.copy(tmp_path / "old" / f"{1:010}.json", tmp_path / "new")
    with pytest.raises(DamagedDataError, match="Record 2 of the publish log belongs to another log"):
        other.read()


def test_snapshot_that_is_missing_is_noticed(tmp_path: Path) -> None:
    log = log_in(tmp_path, "run")
    for number in range(5):
        log.accept(accepted(number))
        log.publish(lambda *_: None)
        log.compact()
    log.accept(accepted(9))
    (snapshot,) = tmp_path.glob("*.snap")
    snapshot.unlink()
    with pytest.raises(DamagedDataError, match="lacks record 1, or the snapshot"):
        log_in(tmp_path)


def test_stage_of_a_record_that_may_exist_is_needed_until_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, stage = log_in(tmp_path / "log", "run"), tmp_path / "stage"
    staged = Staged("orders", "files", "/table", str(stage / "1"), ("part-0",), 1)

    def fail(*_: object) -> bool:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input"):
        patch.setattr(LocalLogFolder, "create", fail)
        log.accept(accepted(1, staged=(staged,)))
    assert [log.may_need(folder) for folder in (stage, stage / "1", stage / "2", tmp_path / "other")] == [
        True, True, False, False,
    ]  # fmt: skip
    log.settle()
    assert log.may_need(stage)
    log.publish(lambda *_: None)
    assert not log.may_need(stage)


def files_of(tmp_path: Path, *names: str) -> Staged:
    for name in names:
        (tmp_path / "stage" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "stage" / name).write_text(name)
    return Staged("to orders!", "files", str(tmp_path / "table"), str(tmp_path / "stage"), names)


def test_files_move_into_the_table_under_names_that_tell_their_record(tmp_path: Path) -> None:
    log = short_name("logs/monday")
    files, staged = LocalFiles(log), files_of(tmp_path, "day=1/part-0.parquet", "part-1.parquet")
    assert files.newest_number(staged.target) == 0
    for publisher in (files, files, LocalFiles(log)):
        publisher.publish(7, staged)
    moved = {file.relative_to(tmp_path / "table").as_posix() for file in (tmp_path / "table").rglob("*.parquet")}
    assert moved == {
        f"day=1/acker-{log}-0000000007-to-orders-part-0.parquet",
        f"acker-{log}-0000000007-to-orders-part-1.parquet",
    }
    assert (files.newest_number(staged.target), LocalFiles(short_name("logs")).newest_number(staged.target)) == (
        7,
        0,
    )


def test_file_that_is_nowhere_is_an_error_unless_it_is_said_to_have_moved(tmp_path: Path) -> None:
    log = short_name("logs/monday")
    staged = files_of(tmp_path, "a.parquet", "b.parquet")
    LocalFiles(log).publish(7, staged)
    LocalFiles(log).place_of(7, staged, "a.parquet").unlink()
    with pytest.raises(FilesNotMovedError, match=r"a\.parquet is neither in the stage"):
        LocalFiles(log).publish(7, staged)
    LocalFiles(log, assume_moved=True).publish(7, staged)


def test_file_that_is_in_both_places_is_an_error(tmp_path: Path) -> None:
    files, staged = LocalFiles(short_name("logs/monday")), files_of(tmp_path, "a.parquet")
    files.publish(7, staged)
    files_of(tmp_path, "a.parquet")
    with pytest.raises(FilesNotMovedError, match=r"exists, and so does"):
        LocalFiles(short_name("logs/monday")).publish(7, staged)
    assert (tmp_path / "stage" / "a.parquet").exists()
