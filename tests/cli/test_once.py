"""`acker-redis once`: what a publish log says, and ways to complete what it decided, or to give it up."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from acker_redis.cli.once import app
from acker_redis.errors import FencedError
from acker_redis.publishing.files import LocalFiles, files_below
from acker_redis.publishing.log_folder import LocalLogFolder
from acker_redis.publishing.messages import MessageNames
from acker_redis.publishing.publish_log import PublishLog
from acker_redis.publishing.records import Accepted, Dead, Owner, Staged
from acker_redis.store.dead_letter import DeadLetter


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def shown(folder: Path) -> dict[str, object]:
    done = run("show", folder, "--json")
    assert done.exit_code == 0
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log" / "monday"


@pytest.fixture
def log(folder: Path) -> PublishLog:
    """Of a run that ended behind its second record with rows: three messages are accepted, and one is dead."""
    log = PublishLog(LocalLogFolder(folder))
    log.begin("run.1", Owner("orders", 3, ("order",)), "0123456789ab")
    accept(log, folder, 1, 2)
    log.publish(LocalFiles("0123456789ab").publish)
    log.bury(Dead("run.1", ("",), (9,), (DeadLetter(9, "run.1", 3, "failed"),)))
    accept(log, folder, 3)
    return log


def accept(log: PublishLog, folder: Path, *ids: int) -> None:
    sinks = []
    for sink in ("items", "orders"):
        stage = folder / "stage" / str(log.state.number) / sink
        stage.mkdir(parents=True)
        (stage / "part-0").write_text(sink)
        sinks.append(Staged(sink, "files", str(folder.parents[1] / sink), str(stage), ("part-0",), len(ids)))
    log.accept(Accepted("run.1", 1, MessageNames.of_ids(np.array(ids)).ranges(), tuple(sinks)))


def tables(folder: Path) -> dict[str, int]:
    return {sink: len(list(files_below(folder.parents[1] / sink))) for sink in ("items", "orders")}


@pytest.mark.usefixtures("log")
def test_log_tells_what_it_decided_and_what_is_left(folder: Path) -> None:
    values = shown(folder)
    waiting = values.pop("not_published")
    assert values == {
        "app": "orders", "spout_id": 3, "ids": "order", "run": "run.1", "records": 4, "accepted": 3, "dead": 1,
        "finished": False, "letters_to_store": 1,
    }  # fmt: skip
    assert waiting == [
        {"number": 4, "sink": sink, "target": str(folder.parents[1] / sink), "rows": 1, "staged": 1}
        for sink in ("items", "orders")
    ]
    text = run("show", folder).stdout
    assert "accepted          3" in text and "record 4: 1 rows for 'items'" in text


def test_publish_completes_what_a_run_left_and_fences_it(folder: Path, log: PublishLog) -> None:
    assert run("publish", folder).exit_code == 1, "nobody confirms"
    assert tables(folder) == {"items": 1, "orders": 1}
    for _ in range(2):
        done = run("publish", folder, "--yes")
        assert done.exit_code == 0
        assert tables(folder) == {"items": 2, "orders": 2}
    assert shown(folder)["not_published"] == []
    with pytest.raises(FencedError):
        accept(log, folder, 4)


def test_file_that_is_nowhere_is_published_only_if_somebody_says_that_it_was_moved(
    folder: Path, log: PublishLog
) -> None:
    (staged, _) = log.state.to_publish[4].staged
    Path(staged.stage, "part-0").unlink()
    refused = run("publish", folder, "--yes")
    assert refused.exit_code == 1
    assert "Record 4 of the publish log, sink 'items'" in refused.stderr
    assert run("publish", folder, "--yes", "--assume-moved").exit_code == 0
    assert shown(folder)["not_published"] == []
    assert tables(folder) == {"items": 1, "orders": 2}


@pytest.mark.usefixtures("log")
def test_rows_of_one_sink_are_given_up_and_those_of_others_published(folder: Path) -> None:
    refused = run("skip", folder, 2, "items", "--yes")
    assert refused.exit_code == 2
    assert (
        "No rows of record 2 wait for the sink 'items'" in refused.stderr and "4 'items', 4 'orders'" in refused.stderr
    )
    assert run("skip", folder, 4, "items", "--yes").exit_code == 0
    assert run("publish", folder, "--yes").exit_code == 0
    assert tables(folder) == {"items": 1, "orders": 2}
    assert len(list(folder.glob("skipped/4-items/part-0"))) == 1, "the next start doesn't remove it"


def test_rows_of_a_delta_table_need_spark_and_come_first(folder: Path, log: PublishLog) -> None:
    table, stage = folder.parents[1] / "delta", folder / "stage" / "delta"
    for place in (table / "_delta_log", stage):
        place.mkdir(parents=True)
    delta = Staged("sold", "delta", str(table), str(stage), (), 2, {"mergeSchema": "true"})
    log.accept(Accepted("run.1", 2, MessageNames.of_ids(np.array([4])).ranges(), (delta,)))
    assert f"{table}: a Delta table, which the next run compares with the log\n" in run("check", folder).stdout
    done = run("publish", folder, "--yes")
    assert done.exit_code == 1
    assert f"record 5 wait for the sink 'sold', a table where only a run can put them (delta): {table}" in done.stderr
    assert tables(folder) == {"items": 2, "orders": 2}, "those before it are there"
    assert run("skip", folder, 5, "sold", "--yes").exit_code == 0
    assert run("publish", folder, "--yes").exit_code == 0
    assert shown(folder)["not_published"] == []


@pytest.mark.usefixtures("log")
def test_giving_up_is_repeated_where_it_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start removes what is left in the stage, and can't move what isn't there."""

    def fails(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(PublishLog, "skip", fails)
        assert run("skip", folder, 4, "items", "--yes").exit_code == 3
    assert run("publish", folder, "--yes").exit_code == 1, "nothing is published as if the files had never been"
    assert run("skip", folder, 4, "items", "--yes").exit_code == 0
    assert run("publish", folder, "--yes").exit_code == 0
    assert tables(folder) == {"items": 1, "orders": 2}
    assert len(list(folder.glob("skipped/4-items/part-0"))) == 1


def test_dead_messages_run_again_at_the_next_start(folder: Path, log: PublishLog) -> None:
    assert run("reopen", folder).exit_code == 1, "nobody confirms"
    assert shown(folder)["dead"] == 1
    for count in (1, 0):
        done = run("reopen", folder, "--yes")
        assert done.exit_code == 0
        assert f"{count} messages run again" in done.stdout
        assert shown(folder)["dead"] == 0
    with pytest.raises(FencedError):
        accept(log, folder, 4)


@pytest.mark.usefixtures("log")
def test_check_counts_files_and_notices_a_log_that_was_set_back(folder: Path) -> None:
    done = run("check", folder)
    assert done.exit_code == 1
    assert f"{folder.parents[1] / 'items'}: 1 files there, 1 gone\n" in done.stdout
    assert "1 records wait" in done.stderr
    assert run("publish", folder, "--yes").exit_code == 0
    assert run("check", folder).exit_code == 0
    next(files_below(folder.parents[1] / "items")).unlink()  # as a compaction does
    done = run("check", folder, "--json")
    assert (done.exit_code, json.loads(done.stdout.splitlines()[0])["gone"]) == (0, 1)
    for number in (4, 5, 6):
        (folder / f"{number:010}.json").unlink()
    done = run("check", folder)
    assert done.exit_code == 1
    assert "files of record 4, which the log lacks" in done.stdout and "lost or set back" in done.stderr


def test_check_of_a_log_that_was_lost_needs_the_tables(folder: Path, log: PublishLog) -> None:
    log.publish(LocalFiles("0123456789ab").publish)
    for file in folder.glob("*.json"):
        file.unlink()
    PublishLog(LocalLogFolder(folder)).begin("run.2", Owner("orders", 3, ("order",)), "0123456789ab")
    done = run("check", folder)
    assert done.exit_code == 1
    assert "knows no table" in done.stderr
    done = run("check", folder, folder.parents[1] / "items", folder.parents[1] / "orders")
    assert done.exit_code == 1
    assert done.stdout.count("files of record 4, which the log lacks") == 2


def test_dead_messages_are_listed(folder: Path, log: PublishLog) -> None:
    log.bury(Dead("run.1", ("clicks/0",), (7,), (DeadLetter(7, "run.1", 3, "failed"),)))
    assert run("show", folder, "--dead").stdout.endswith("dead: 9\ndead: clicks/0 7\n")
    assert json.loads(run("show", folder, "--dead", "--json").stdout)["dead_messages"] == [["", 9], ["clicks/0", 7]]


@pytest.mark.usefixtures("log")
def test_folder_without_a_log_names_the_logs_in_it(folder: Path) -> None:
    done = run("show", folder.parent)
    assert done.exit_code == 2
    assert f"Logs in that folder are {folder}" in done.stderr
    assert run("show", folder.parents[1] / "items").exit_code == 2
    assert run("show", "hdfs:///logs").exit_code == 2


@pytest.mark.usefixtures("log")
def test_log_that_cant_be_written_is_an_error_of_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    done = run("publish", folder, "--yes")
    assert done.exit_code == 3
    assert "No space left on device" in done.stderr and "repeat the command" in done.stderr
