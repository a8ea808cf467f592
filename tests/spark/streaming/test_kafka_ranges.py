"""Ranges of micro-batches, read from files as Spark writes them, and gaps in what was read."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acker_redis.spark.streaming.kafka_ranges import Gap, Ranges, gap_of, offsets_in, read_ends, read_ranges

METADATA = {"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {"spark.sql.shuffle.partitions": "4"}}


def write(folder: Path, name: str, *lines: Any, before: str = "v1\n") -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(before + "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))


def test_range_begins_at_the_end_of_the_one_before(tmp_path: Path) -> None:
    write(tmp_path, "offsets/6", METADATA, {"t": {"0": 5, "1": 7}})
    write(tmp_path, "offsets/7", METADATA, {"t": {"0": 9, "1": 7, "2": 3}})
    assert read_ranges(str(tmp_path), 7) == Ranges({("t", 0): 5, ("t", 1): 7}, {("t", 0): 9, ("t", 1): 7, ("t", 2): 3})
    assert read_ends(str(tmp_path), 7) == {("t", 0): 9, ("t", 1): 7, ("t", 2): 3}
    assert read_ends(str(tmp_path), 8) == read_ends(str(tmp_path), -1) == {}


def test_first_range_begins_where_its_source_began(tmp_path: Path) -> None:
    """That file begins with a zero byte."""
    write(tmp_path, "sources/0/0", {"t": {"0": 40}}, before="\0v1\n")
    write(tmp_path, "offsets/0", METADATA, {"t": {"0": 50}})
    assert read_ranges(str(tmp_path), 0) == Ranges({("t", 0): 40}, {("t", 0): 50})
    write(tmp_path / "files", "offsets/0", METADATA, {"logOffset": 0})
    assert read_ranges(str(tmp_path / "files"), 0) == Ranges({}, {})


def test_offsets_of_other_sources_are_left_out() -> None:
    lines = [
        "v1",
        json.dumps(METADATA),
        json.dumps({"logOffset": 3}),
        "-",
        "17",
        json.dumps({"a": {"0": 4}, "b": {"1": 5}}),
    ]
    assert offsets_in("\n".join(lines).encode()) == {("a", 0): 4, ("b", 1): 5}
    two = "\n".join(["v1", json.dumps({"a": {"0": 4}}), json.dumps({"a": {"0": 2, "1": 9}})])
    assert offsets_in(two.encode()) == {("a", 0): 2, ("a", 1): 9}
    for damaged in (b"", b"\xff\xfe", b'v1\n{"a"', b"v1\n{}", b'v1\n{"a": {"x": 1}}', b'v1\n{"a": {"0": true}}'):
        assert offsets_in(damaged) == {}


@pytest.mark.parametrize(
    ("read", "gap"),
    [
        ([20, 21, 22, 23], None),
        ([], Gap(20, 24, 4)),
        ([22, 23, 24, 99], Gap(20, 22, 2)),
        ([20, 21, 22], Gap(23, 24, 1)),
        ([3, 20, 23], Gap(21, 23, 2)),
        ([21, 23], Gap(20, 23, 2)),
    ],
)
def test_gap_spans_the_offsets_that_were_not_read(read: list[int], gap: Gap | None) -> None:
    assert gap_of(np.array(read, np.int64), 20, 24) == gap


def test_gap_is_that_of_a_plain_search() -> None:
    draw = random.Random(5)
    for _ in range(300):
        begin, end = sorted((draw.randrange(20), draw.randrange(20)))
        read = [offset for offset in range(25) if draw.random() < 0.7]
        draw.shuffle(read)
        missing = [offset for offset in range(begin, end) if offset not in read]
        expected = Gap(missing[0], missing[-1] + 1, len(missing)) if missing else None
        assert gap_of(np.array(read, np.int64), begin, end) == expected
