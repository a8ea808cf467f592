"""Offsets: only what is contiguously done is committed."""

from pathlib import Path

import numpy as np
import pytest

from acker_redis import BadBatchError, BadConfigError
from acker_redis.offsets import Offsets

IDS = np.array([50, 40, 30, 20, 10, 60])
OF = np.array([0, 0, 0, 1, 1, 1])
AT = np.array([0, 1, 2, 7, 8, 9])


def tracked(path: Path) -> Offsets:
    offsets = Offsets(path)
    offsets.track(IDS, ["a", "b"], OF, AT)
    return offsets


def test_offsets_below_zero_and_partitions_without_messages(tmp_path: Path) -> None:
    offsets = Offsets(tmp_path / "offsets.json")
    offsets.track(np.array([1, 2]), ["none", "below"], np.array([1, 1]), np.array([-3, -2]))
    assert offsets.save() == {"below": -3}
    offsets.complete(np.array([1]))
    assert offsets.save() == {"below": -2}


def test_what_is_done_above_a_gap_is_not_committed(tmp_path: Path) -> None:
    offsets = tracked(tmp_path / "sub" / "offsets.json")
    assert offsets.save() == {"a": 0, "b": 7}
    offsets.complete(np.array([40, 20, 999]))
    assert offsets.save() == {"a": 0, "b": 8}
    offsets.complete(np.array([50]))
    assert offsets.save() == {"a": 2, "b": 8}
    offsets.complete(np.array([30, 10, 60]))
    assert offsets.save() == {"a": 3, "b": 10}
    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["offsets.json"]


def test_a_new_run_begins_where_the_last_one_ended(tmp_path: Path) -> None:
    offsets = tracked(tmp_path / "offsets.json")
    offsets.complete(np.array([50]))
    offsets.save()
    again = Offsets(tmp_path / "offsets.json")
    assert again.known() == {"a": 1, "b": 7}
    again.complete(np.array([1]))
    assert again.save() == {"a": 1, "b": 7}


@pytest.mark.parametrize("text", ["", "[1]", '{"a": "x"}', '{"a": null}'])
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(text)
    with pytest.raises(BadConfigError, match="holds no offsets"):
        Offsets(path)
    assert path.read_text() == text


def test_ids_that_stand_twice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadBatchError, match="more than once"):
        Offsets(tmp_path / "x").track(np.array([1, 1]), ["a"], np.array([0, 0]), np.array([0, 1]))
