"""Offset files: only offsets that are done without a gap are committed, and only for their app and source."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acker_redis import BadConfigError, PipelineError
from acker_redis.spout.offset_file import OffsetFile

IDS = np.array([50, 40, 30, 20, 10, 60])
OF = np.array([0, 0, 0, 1, 1, 1])
AT = np.array([0, 1, 2, 7, 8, 9])


def opened(path: Path, app: str = "orders", partition: str = "file", offset: str = "row") -> OffsetFile:
    return OffsetFile(path).open(app, partition, offset)


@contextmanager
def tracked(path: Path) -> Iterator[OffsetFile]:
    with opened(path) as offsets:
        offsets.track(IDS, ["a", "b"], OF, AT)
        yield offsets


def names(folder: Path) -> list[str]:
    """Of files a person sees."""
    return [path.name for path in folder.iterdir() if not path.name.startswith(".")]


def test_empty_partitions_are_omitted_and_bad_offsets_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "offsets.json") as offsets:
        offsets.track(np.array([1, 2]), ["none", "first"], np.array([1, 1]), np.array([0, 1]))
        assert offsets.save() == {"first": 0}
        offsets.complete(np.array([1]))
        assert offsets.save() == {"first": 1}
        for wrong in (-1, 2**63 - 1):
            with pytest.raises(PipelineError, match="Use offsets from 0"):
                offsets.track(np.array([1, 2]), ["a"], np.array([0, 0]), np.array([0, wrong]))
        offsets.track(np.array([1]), ["last"], np.array([0]), np.array([2**63 - 2]))
        offsets.complete(np.array([1]))
        offsets.save()
    with opened(tmp_path / "offsets.json") as offsets:
        assert offsets.known() == {"first": 1, "last": 2**63 - 1}


@pytest.mark.parametrize("seed", range(20))
def test_restart_repeats_exactly_the_unfinished_messages(tmp_path: Path, seed: int) -> None:
    """Random messages are done, run after run, until all are; the sources give rows from the first gap on, as Spark does."""
    random = np.random.default_rng(seed)
    rows = {
        (name, at): at * 2 + number
        for number, name in enumerate(("a", "b"))
        for at in range(int(random.integers(1, 60)))
    }
    done: set[int] = set()
    for _ in range(40):
        with opened(tmp_path / "offsets.json") as offsets:
            known = offsets.known()
            given = [(name, at, one) for (name, at), one in rows.items() if at >= known.get(name, 0)]
            random.shuffle(given)
            ids = np.array([one for _, _, one in given], np.int64)
            of = np.array(["ab".index(name) for name, _, _ in given], np.int64)
            is_open = offsets.track(ids, ["a", "b"], of, np.array([at for _, at, _ in given], np.int64))
            assert set(ids[is_open].tolist()) == set(rows.values()) - done
            some = ids[is_open][random.random(int(is_open.sum())) < 0.3]
            offsets.complete(some)
            offsets.save()
            done |= set(some.tolist())
        if done == set(rows.values()):
            break
    with opened(tmp_path / "offsets.json") as offsets:
        assert (done == set(rows.values())) == (sum(offsets.known().values()) == len(rows))


def test_only_longest_runs_beyond_gaps_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acker_redis.spout.offset_file.MAX_RUNS", 2)
    ids = np.arange(20)
    with opened(tmp_path / "offsets.json") as offsets:
        offsets.track(ids, ["a"], np.zeros(20, np.int64), ids)
        offsets.complete(np.array([0, 2, 4, 5, 6, 8, 10, 11]))
        offsets.save()
    assert json.loads((tmp_path / "offsets.json").read_text())["beyond"] == {"a": [[4, 7], [10, 12]]}


def test_offsets_done_above_a_gap_are_not_committed(tmp_path: Path) -> None:
    with tracked(tmp_path / "sub" / "offsets.json") as offsets:
        assert offsets.save() == {"a": 0, "b": 7}
        offsets.complete(np.array([40, 20, 999]))
        assert offsets.save() == {"a": 0, "b": 8}
        offsets.complete(np.array([50]))
        assert offsets.save() == {"a": 2, "b": 8}
        offsets.complete(np.array([30, 10, 60]))
        assert offsets.save() == {"a": 3, "b": 10}
    assert names(tmp_path / "sub") == ["offsets.json"]


def test_reopened_offset_file_continues_at_saved_offsets(tmp_path: Path) -> None:
    with tracked(tmp_path / "offsets.json") as offsets:
        offsets.complete(np.array([50]))
        offsets.save()
    with opened(tmp_path / "offsets.json") as again:
        assert again.known() == {"a": 1, "b": 7}
        again.complete(np.array([1]))
        assert again.save() == {"a": 1, "b": 7}


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"app": "billing"}, "app 'orders', but this run has app 'billing'"),
        ({"partition": "topic"}, "partition 'file', but this run has partition 'topic'"),
        ({"offset": "at"}, "offset 'row', but this run has offset 'at'"),
    ],
)
def test_offset_file_of_another_app_or_source_is_refused(tmp_path: Path, other: dict[str, str], text: str) -> None:
    path = tmp_path / "offsets.json"
    with tracked(path) as offsets:
        offsets.save()
    before = path.read_bytes()
    with pytest.raises(BadConfigError, match=f"written for {text}.* move the file away"):
        opened(path, **other)
    assert path.read_bytes() == before
    with opened(path) as offsets:
        assert offsets.known() == {"a": 0, "b": 7}


def changed(**fields: Any) -> str:
    whole = {"format": "acker_redis.offsets", "version": 2, "app": "orders", "partition": "file", "offset": "row"}
    return json.dumps({**whole, "begin": {"a": 1}, "beyond": {}, **fields})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not an offset file"),
        ("[1]", "is not an offset file"),
        ("7", "is not an offset file"),
        ('{"a": 3}', "its format is not"),  # what the first versions wrote
        ('{"format": "x"}', "its format is not"),
        ("[" * 100_000, "is not an offset file"),
        ('{"format": ' + "9" * 10_000 + "}", "is not an offset file"),
        ("\xff\xfe", "is not an offset file"),
        (changed(version=1), "written for version 1"),
        *((changed(beyond={"a": wrong}), "not a set of offset runs") for wrong in (7, [[1]], [[3, 2]], [[1, 3], [2, 4]])),
        (changed(beyond=[]), "not a set of offset runs"),
        *(
            (changed(hashes=wrong), "not a set of hashes")
            for wrong in (7, *({"a": pairs} for pairs in (7, [7], [[0]], [[0, "x"]], [[-1, 7]])))
        ),
        (changed(begin=None), "None of 'begin'"),
        (changed(begin=[1]), r"\[1\] of 'begin'"),
        *(
            (changed(begin={"a": 0, "b": value}), "of 'b' is not an offset")
            for value in (None, "x", "1", True, -1, 1.0, 2**63, 10**4000, float("nan"), [1])
        ),
        (changed().replace(': 1}', ': 1e400}'), "inf of 'a'"),
    ],
)  # fmt: skip
def test_file_with_other_content_is_refused_as_offset_file(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(BadConfigError, match=says) as caught:
        opened(path)
    assert "move the file away" in str(caught.value)
    assert len(str(caught.value)) < 400
    assert path.read_text(encoding="latin-1") == text
    path.write_text(changed())
    with opened(path) as offsets:  # the one that was refused holds nothing
        assert offsets.known() == {"a": 1}


def test_marks_are_the_first_and_last_offset_done(tmp_path: Path) -> None:
    with tracked(tmp_path / "offsets.json") as offsets:
        offsets.add_hashes({"a": (0, np.array([10, 11, 12])), "b": (7, np.array([17, 18, 19]))})
        offsets.complete(np.array([50, 30, 20]))
        offsets.save()
    with opened(tmp_path / "offsets.json") as offsets:
        assert offsets.marks() == {"a": {0: 10, 2: 12}, "b": {0: None, 7: None}}  # what is before 7 wasn't tracked
        offsets.add_marks("b", {0: 5, 7: 6})
        offsets.forget(["a"])
        assert offsets.marks() == {"b": {0: 5, 7: 6}}


def test_unknown_value_of_on_replaced_is_refused() -> None:
    with pytest.raises(BadConfigError, match=r"on_replaced='skip' is unknown\. Use 'raise' or 'read_again'"):
        OffsetFile("x", on_replaced="skip")  # type: ignore[arg-type]


def test_offset_file_in_unwritable_place_is_refused_at_open(tmp_path: Path) -> None:
    with pytest.raises(BadConfigError, match="Pass a path that is writable"):
        opened(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadConfigError, match="Pass a path that is writable"):
        opened(tmp_path / "file" / "offsets.json")
    with pytest.raises(BadConfigError, match="not open"):
        OffsetFile(tmp_path / "offsets.json").save()


def test_duplicate_message_ids_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="1 message ids are duplicates"):
        OffsetFile(tmp_path / "x").track(np.array([1, 1]), ["a"], np.array([0, 0]), np.array([0, 1]))


def test_offset_file_inside_the_source_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    for name in (str(path), path.as_uri(), f"file:{path}"):
        with pytest.raises(BadConfigError, match="outside of the source's folder"):
            OffsetFile(path).track(np.array([1]), [name], np.array([0]), np.array([0]))


PROGRAM = """
import sys
import numpy as np
from acker_redis.spout.offset_file import OffsetFile

offsets = OffsetFile(sys.argv[1]).open("orders", "file", "row")
offsets.track(np.array([1]), ["a"], np.array([0]), np.array([3]))
{before}
print("ready", flush=True)
sys.stdin.readline()
offsets.save()
offsets.close()
"""


@pytest.fixture
def other() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Another process that has a file of offsets open."""
    started: list[subprocess.Popen[str]] = []

    def start(path: Path, before: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM.format(before=before), str(path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_offset_file_in_use_by_another_program_is_refused(tmp_path: Path, other: Any) -> None:
    path = tmp_path / "offsets.json"
    program = other(path)
    (tmp_path / "link.json").symlink_to(path)
    for name in ("offsets.json", "link.json"):
        with pytest.raises(BadConfigError, match="in use by another run"):
            opened(tmp_path / name)
    program.communicate("\n")
    with opened(tmp_path / "link.json") as offsets:
        assert offsets.known() == {"a": 3}
        with pytest.raises(BadConfigError, match="in use by another run"):  # of this process
            opened(path)
        offsets.save()
    assert (tmp_path / "link.json").is_symlink()


def test_draft_of_a_killed_program_is_removed_at_open(tmp_path: Path, other: Any) -> None:
    path = tmp_path / "offsets.json"
    (tmp_path / ".offsets.json.of-somebody-else").write_text("")
    killed = (
        "import os, pathlib; pathlib.Path.replace = lambda *_: (print('ready', flush=True), sys.stdin.readline())\n"
    )
    program = other(path, f"{killed}offsets.save()")
    assert (tmp_path / ".offsets.json.draft").exists()
    program.send_signal(signal.SIGKILL)
    program.wait()
    with opened(path) as offsets:
        assert offsets.known() == {}
        assert not (tmp_path / ".offsets.json.draft").exists()
        offsets.save()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".offsets.json.lock", ".offsets.json.of-somebody-else", "offsets.json",
    ]  # fmt: skip


def test_file_mode_is_kept_when_offsets_are_saved(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    before = os.umask(0o027)
    try:
        with tracked(path) as offsets:
            offsets.save()
            assert stat.S_IMODE(path.stat().st_mode) == 0o640
            path.chmod(0o604)
            offsets.save()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o604
