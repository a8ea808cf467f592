"""The garbage collector pauses while spouts emit, and doesn't walk all of their messages afterwards."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from acker_redis.spout import garbage
from acker_redis.spout.garbage import garbage_kept

MANY = 60_000


class Circle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Generations of the collector's runs."""
    found: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            found.append(info["generation"])

    monkeypatch.setattr(garbage, "_unseen", 0)
    gc.unfreeze()  # what the suite has frozen
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)
    gc.collect()
    gc.freeze()


def begin(runs: list[int]) -> None:
    """Leave no new objects, so that no run is due."""
    gc.collect()
    runs.clear()


def collect_messages() -> list[list[int]]:
    with garbage_kept():
        return [[number] for number in range(MANY)]


def test_the_collector_pauses_and_goes_on_after_an_error_too() -> None:
    assert gc.isenabled()
    with pytest.raises(ValueError, match="of a spout"), garbage_kept():
        assert not gc.isenabled()
        raise ValueError("of a spout")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with garbage_kept():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_many_messages_are_old_at_once(runs: list[int]) -> None:
    begin(runs)
    messages = collect_messages()
    others = [[number] for number in range(100)]
    assert runs == [] and len(messages) + len(others) == MANY + 100


def test_few_messages_are_walked_as_usual(runs: list[int]) -> None:
    begin(runs)
    with garbage_kept():
        messages = [[number] for number in range(5000)]
    others = [[number] for number in range(100)]
    assert runs and 2 not in runs and len(messages) + len(others) == 5100


def test_garbage_is_found_from_time_to_time(runs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_MOST", 2 * MANY)
    begin(runs)
    with garbage_kept():
        circle = weakref.ref(Circle())
        messages = [[number] for number in range(MANY)]
    assert runs == [] and circle() is not None
    messages += collect_messages()
    assert runs == [2] and circle() is None
    messages += collect_messages()
    assert runs == [2] and len(messages) == 3 * MANY


def test_objects_that_the_program_froze_stay_so(runs: list[int]) -> None:
    begin(runs)
    gc.freeze()
    count = gc.get_freeze_count()
    messages = collect_messages()
    assert gc.get_freeze_count() > count / 2 > 0 and len(messages) == MANY
