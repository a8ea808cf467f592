"""The state of a bolt of a stopped topology is deleted as a whole or not at all."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from acker_redis import Acker
from acker_redis.acker import app_of
from acker_redis.client.client import Client
from acker_redis.store import topology_sizes
from acker_redis.storm.state import stopped
from acker_redis.storm.state.shapes import shapes_of
from acker_redis.testing import fake_acker
from tests.storm.state.test_rescale import WORDS, fill, topology


class DiesError(Exception):
    pass


@pytest.fixture
def acker() -> Iterator[Acker]:
    with fake_acker() as fake:
        yield fake


def die_at(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """Let the client die before its call of this number. Returns the number of calls that are left until then."""
    left = [number]

    def dying(send: Callable[[Client, Any], Any]) -> Any:
        def call(self: Client, commands: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise DiesError
            return send(self, commands)

        return call

    for name in ("run", "pipeline"):
        monkeypatch.setattr(Client, name, dying(getattr(Client, name)))
    return left


def test_a_deletion_that_dies_anywhere_leaves_all_or_nothing_and_is_completed_by_the_next_one(
    acker: Acker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values without a shape would be accepted by a run with other tasks, which looks for its keys elsewhere."""
    state = app_of(acker).topology_state("words")
    for died_at in range(1, 30):
        fill(acker, 2, WORDS)
        with monkeypatch.context() as patched, suppress(DiesError):
            left = die_at(patched, died_at)
            stopped.empty("words", acker, "count")
        is_kept = state.tasks() == ["count:0", "count:1"] and state.shapes().keys() == {"count"}
        assert is_kept or not (state.tasks() or state.shapes())
        assert (state.open(shapes_of(topology(3)))[1] is not None) == is_kept, "a run with other tasks is refused"
        assert bool(stopped.empty("words", acker, "count").bytes) == is_kept
        assert not (state.tasks() or state.shapes()) and topology_sizes.read(app_of(acker).client, "test") == []
        if left[0] > 0:
            return
    raise AssertionError("no deletion was completed at once")
