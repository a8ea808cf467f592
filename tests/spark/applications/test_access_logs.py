"""The pipeline over access logs as a user runs it, killed in the middle and started again, and the logs it is tried on."""

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acker_redis import Acker, RowFailedError
from spark.applications.access_logs.demo import until_counted
from spark.applications.access_logs.logs import Place, Truth, generate
from spark.applications.access_logs.pipeline import LINE, enrich, parse
from spark.applications.access_logs.report import letters_of
from spark.applications.access_logs.store import Store
from spark.support.services import kill
from tests.support import java
from tests.support.spark.warm import Warm

ROOT = Path(__file__).resolve().parents[3]


def lines_of(folder: Path) -> dict[tuple[str, int], str]:
    return {
        (path.name, row): text.decode("latin-1")
        for path in sorted((folder / "logs").iterdir())
        for row, text in enumerate(path.read_bytes().split(b"\n")[:-1])
    }


def test_generated_logs_depend_on_the_seed_only(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        generate(tmp_path / name, 300, seed, 3)
    contents = {
        name: {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
        for name in "abc"
    }
    assert contents["a"] == contents["b"] != contents["c"]
    assert len(contents["a"]) == 5


def test_generated_truth_matches_the_parsed_lines(tmp_path: Path) -> None:
    """Counted anew from the text, with the pipeline's parser, which the generator doesn't know."""
    generated = generate(tmp_path, 2000, 5, 7)
    truth = Truth.read(tmp_path / "truth.json")
    assert truth == generated
    lines = lines_of(tmp_path)
    assert len(lines) == truth.lines == sum(truth.files.values())
    assert {(p.file, p.row): p.line for p in (*truth.malformed, *truth.poison)}.items() <= lines.items()
    assert {place.kind for place in truth.malformed} == {"cut", "status", "date", "junk"}
    assert any(any(char > "\x7f" for char in place.line) for place in truth.malformed)
    assert len(set(lines.values())) < len(lines)  # some stand twice
    unparsed, poison, hits, sent = set(), set(), 0, 0
    for place, line in lines.items():
        try:
            (hit,) = parse({"line": line, "message_id": 1, "file": "", "row": 0})
        except RowFailedError:
            unparsed.add(place)
            continue
        if hit["prefix"] == "/legacy":
            poison.add(place)
            continue
        hits, sent = hits + 1, sent + hit["bytes"]
    assert unparsed == {(place.file, place.row) for place in truth.malformed}
    assert poison == {(place.file, place.row) for place in truth.poison}
    assert sum(row["hits"] for row in truth.per_minute) == hits == len(truth.good())
    assert sum(row["bytes"] for row in truth.per_minute) == sent


@pytest.mark.parametrize(("module", "option"), [("logs", "--out"), ("demo", "--folder")])
def test_log_generator_refuses_a_non_empty_folder(tmp_path: Path, module: str, option: str) -> None:
    (tmp_path / "logs").mkdir()
    command = [sys.executable, "-m", f"spark.applications.access_logs.{module}", option, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert option in done.stderr


GOOD = '192.0.2.1 - - [02/Mar/2026:09:59:59 +0100] "GET /cart?x=1 HTTP/1.1" 503 - "-" "curl/8"'


def test_log_line_time_is_parsed_into_utc() -> None:
    (hit,) = parse({"line": GOOD, "message_id": 1, "file": "f", "row": 0})
    assert (hit["prefix"], hit["minute"], hit["status"], hit["bytes"]) == ("/cart", "2026-03-02 08:59", 503, 0)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (GOOD[:-1], "not in combined log format"),
        (GOOD.replace("503", "999"), "no such status: 999"),
        (GOOD.replace("02/Mar", "31/Feb"), "no such time: 31/Feb"),
        ("\x16\x03\x01\x00\xff", "not in combined log format"),
    ],
)
def test_malformed_log_line_fails_with_its_reason(line: str, reason: str) -> None:
    with pytest.raises(RowFailedError, match=reason):
        list(parse({"line": line, "message_id": 1, "file": "f", "row": 0}))


def test_broken_reference_row_fails_the_log_line() -> None:
    with pytest.raises(ValueError, match="'n/a'"):
        list(enrich({"budget_bytes": "n/a", "bytes": 5, "section": "legacy"}))
    (row,) = enrich({"budget_bytes": None, "bytes": 5, "section": None})
    assert (row["section"], row["over_budget"]) == ("other", False)


def group(minute: str, *messages: int) -> dict[str, Any]:
    hits = [{"message_id": one, "bytes": 10 * one, "status": 500, "over_budget": one > 2} for one in messages]
    return {"minute": minute, "section": "home", "hits": hits}


def test_message_repeated_in_groups_is_counted_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.count(0, [group("08:00", 1, 2), group("08:01", 3)])
    store.count(0, [group("08:00", 1, 2)])
    store.count(1, [group("08:00", 2, 4), group("08:01", 3, 3)])
    assert Store(tmp_path).minutes() == [("08:00", "home", 3, 70, 3, 1), ("08:01", "home", 1, 30, 1, 1)]
    assert store.counted() == {1, 2, 3, 4}


def test_ids_and_sums_are_stored_atomically(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(KeyError):
        store.count(0, [group("08:00", 1), {"minute": "08:01"}])
    assert (store.minutes(), store.counted()) == ([], set())


def test_log_pipeline_docs_quote_the_actual_code() -> None:
    page = (ROOT / "docs" / "guides" / "log-pipeline.md").read_text(encoding="utf-8")
    sources = [
        path.read_text(encoding="utf-8") for path in (ROOT / "spark" / "applications" / "access_logs").glob("*.py")
    ]
    bare = ["".join(source.split()) for source in sources]  # the formatter breaks lines elsewhere in a page
    quoted = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(quoted) == 4
    assert all(any("".join(block.split()) in source for source in bare) for block in quoted)
    for label in re.findall(r"^(.*?) +yes$", page, re.MULTILINE):
        assert any(label.replace("after 3", "after {max_attempts}") in source for source in sources), label


@pytest.fixture
def rotator(url: str) -> Iterator[None]:
    command = [sys.executable, "-m", "acker_redis", "rotator", "--redis", url, "--all"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    yield
    process.terminate()
    process.wait(timeout=30)


@pytest.mark.spark
@pytest.mark.usefixtures("rotator")
def test_killed_and_restarted_log_job_accounts_for_every_line(url: str, warm: Warm, tmp_path: Path) -> None:
    """Both from the outside and by the program's own comparison."""
    truth = generate(tmp_path, 600, 11, 4)
    out = tmp_path / "out"
    module, *options = [
        "spark.applications.access_logs", "--redis", url, "--app", "logs", "--master", "local[2,4]",
        "--logs", str(tmp_path / "logs"), "--reference", str(tmp_path / "reference.csv"), "--out", str(out),
        "--message-timeout-secs", "60", "--truth", str(tmp_path / "truth.json"), "--json",
    ]  # fmt: skip
    command = [sys.executable, "-m", module, *options]
    with subprocess.Popen(command, cwd=ROOT, env=java.preloaded(), process_group=0, stdout=subprocess.DEVNULL) as job:
        assert until_counted(job, out / "minutes.sqlite", batch=1)
        kill(job)
    commits = out / "checkpoint" / "commits"
    in_the_middle = not (commits / "1").exists()  # else it was quicker than this process
    counted_before = ids_in(out)
    assert len(counted_before) > 300 * 0.9

    status, printed, errors = warm.run_module(module, *options, url=url)
    assert status == 0, errors + printed
    result = json.loads(printed)
    assert all(result["checks"].values()) and len(result["checks"]) == 6
    assert (result["batches"], result["pending"]) == (int(in_the_middle), 0)
    assert sorted(path.name for path in commits.glob("[0-9]*")) == ["0", "1"]

    lines = lines_of(tmp_path)
    good = truth.good()
    assert good == lines.keys() - {(p.file, p.row) for p in (*truth.malformed, *truth.poison)}
    hits = pa.concat_tables(pq.read_table(path) for path in (out / "hits").glob("*.parquet"))
    places = {
        message: (file.rpartition("/")[2], row)
        for message, file, row in zip(*(hits[name].to_pylist() for name in ("message_id", "file", "row")), strict=True)
    }
    assert len(places) == len(good)
    assert set(places.values()) == good
    if in_the_middle:  # some were written twice, so that it matters that readers take each id once
        assert len(hits) > len(good)
    for hit in hits.slice(0, 50).to_pylist():
        found = LINE.fullmatch(lines[places[hit["message_id"]]])
        assert found is not None and (hit["path"], hit["ip"]) == (found["path"], found["ip"])
    assert ids_in(out) == places.keys() >= counted_before
    with closing(sqlite3.connect(out / "minutes.sqlite")) as database:
        database.row_factory = sqlite3.Row
        rows = database.execute("SELECT * FROM per_minute ORDER BY minute, section")
        assert [dict(row) for row in rows] == truth.per_minute

    with Acker.open_existing(url, "logs") as acker:
        letters = letters_of(acker, tmp_path / "logs")
        assert acker.dead_letters.count() == sum(map(len, letters.values()))
        stats = acker.stats()
        assert (stats.pending, stats.unconfirmed_outcomes) == (0, 0)
    assert_letters(letters, truth.malformed, "parse")
    assert_letters(letters, truth.poison, "enrich")
    assert len(letters) == len(truth.malformed) + len(truth.poison)


def assert_letters(letters: dict[tuple[str, int], list[Any]], places: list[Place], stage: str) -> None:
    assert places
    for place in places:
        for letter in letters[place.file, place.row]:
            assert (letter.reason, letter.last_component, letter.attempts) == ("failed", stage, 3)
            assert json.loads(letter.payload)["line"] == place.line
            assert stage == "parse" or letter.detail == "ValueError: invalid literal for int() with base 10: 'n/a'"


def ids_in(out: Path) -> set[int]:
    with closing(sqlite3.connect(out / "minutes.sqlite")) as database:
        return {one for (one,) in database.execute("SELECT message_id FROM counted")}
