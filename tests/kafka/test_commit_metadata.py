"""The text of commits: what it keeps, how long it gets, and texts that others wrote."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_redis.kafka.commit_metadata import MOST_BYTES, CommitMetadata, Run, decode, encode

TOPIC_ID = "DBghvkV1Qdu1AeRvKJNmTQ"
OFFSETS = st.integers(0, 2**47)


def runs_from(offset: int, pairs: list[tuple[int, int]]) -> list[Run]:
    """Runs by their distances and lengths."""
    runs = []
    for distance, length in pairs:
        begin = offset + distance
        offset = begin + length
        runs.append((begin, offset))
    return runs


@given(
    OFFSETS, st.integers(-1, 2**31 - 1), st.lists(st.tuples(st.integers(1, 2**20), st.integers(1, 2**20)), max_size=40)
)
def test_runs_survive_the_text(offset: int, epoch: int, pairs: list[tuple[int, int]]) -> None:
    runs = runs_from(offset, pairs)
    text = encode(TOPIC_ID, offset, epoch, runs)
    assert text.startswith(f"acker1 {TOPIC_ID} ")
    assert decode(text, offset) == CommitMetadata(TOPIC_ID, epoch, runs)


@given(OFFSETS, st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), max_size=200), st.integers(0, 400))
def test_longest_runs_are_kept_within_the_limit(offset: int, pairs: list[tuple[int, int]], most_bytes: int) -> None:
    runs = runs_from(offset, pairs)
    text = encode(TOPIC_ID, offset, 0, runs, most_bytes)
    assert len(text) <= most_bytes
    found = decode(text, offset)
    kept = [] if found is None else found.runs
    assert set(kept) <= set(runs)
    left_out = set(runs) - set(kept)
    if kept and left_out:
        assert max(end - begin for begin, end in left_out) <= min(end - begin for begin, end in kept)


def test_number_of_runs_that_fit() -> None:
    runs = [(2 * i + 1, 2 * i + 2) for i in range(5000)]
    text = encode(TOPIC_ID, 0, 12, runs)
    assert MOST_BYTES - 4 <= len(text) <= MOST_BYTES
    found = decode(text, 0)
    assert found is not None
    assert 1480 <= len(found.runs) <= 1530


@given(st.one_of(st.none(), st.text(max_size=100), st.text("acker1 ABab01-_", max_size=80)), OFFSETS)
def test_text_of_another_program_is_ignored(text: str | None, offset: int) -> None:
    assert decode(text, offset) is None or (text or "").startswith("acker1 ")


@given(st.binary(max_size=60), OFFSETS)
def test_hostile_runs_are_sound_or_ignored(packed: bytes, offset: int) -> None:
    body = base64.urlsafe_b64encode(packed).decode().rstrip("=")
    found = decode(f"acker1 {TOPIC_ID} 3 {body}", offset)
    assert found is not None
    at = offset - 1
    for begin, end in found.runs:
        assert at < begin < end < 2**63
        at = end


@pytest.mark.parametrize("body", ["A", "AAAA", "gICAgICAgICAgIB_", "_____w", "AAAAA", "A" * 4096])
def test_damaged_runs_are_ignored(body: str) -> None:
    found = decode(f"acker1 {TOPIC_ID} 3 {body}", 7)
    assert found is None or found.runs == []
