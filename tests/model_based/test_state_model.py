"""State of topologies: all orders of turns, attempts, zombies, copies, folds, crashes and commits keep each promise.

The promises: what counts is the oracle's state at the committed turns; no value is read half written; nothing of a turn that
was closed or of an older run counts; acks never precede the commit; a held tuple is acked once, and only in the run that holds
it. Each check of the scripts is left out once, and the model must notice that.
"""

import pytest

from tests.model_based.state.world import Budget, World, WrongError, explore

SCENES = {
    "copies": (("ab", "a"), Budget(copies=1)),
    "aborts": (("ab", "a"), Budget(aborts=1, repeats=1)),
    "idle": (("ab", "a", "ab"), Budget(aborts=1)),
    "stalls": (("a", "a", "a"), Budget(copies=1, aborts=1)),
    "repeats": (("a", "a", "a"), Budget(aborts=1, repeats=2)),
    "crashes": (("ab", "a"), Budget(crashes=1, repeats=1)),
    "zombies": (("a", "a"), Budget(copies=1, crashes=1)),
    "expiries": (("a", "a"), Budget(aborts=1, expiries=1)),
}
"""Batches, each of which is processed in one turn or more, by the tasks it has tuples for; and what may go wrong."""

BROKEN = {
    "epoch": "zombies",
    "turn": "aborts",
    "skips": "stalls",
    "persist": "expiries",
    "delete": "aborts",
    "close": "aborts",
    "undo": "copies",
    "cache": "stalls",
    "fold": "stalls",
    "pieces": "stalls",
    "acks": "aborts",
    "names": "copies",
    "roots": "crashes",
}
"""What is left out or done otherwise, and the scene that shows why it is there."""

LONG = {
    "a_task_twice": (("ab", "ab"), Budget(copies=1, aborts=1)),
    "everything": (("a", "a"), Budget(copies=1, crashes=1, aborts=1)),
    "expiries_and_copies": (("a", "a"), Budget(copies=1, aborts=1, expiries=1)),
}
"""Scenes of hundreds of thousands of worlds."""


@pytest.mark.parametrize("scene", SCENES)
def test_no_order_of_steps_breaks_a_promise(scene: str) -> None:
    worlds, over = explore(World(*SCENES[scene]))
    assert worlds > 500 and over, "the scene is played to its end"


def test_a_held_tuple_is_acked_if_nothing_goes_wrong() -> None:
    world = World(("ab", "a", "a"), Budget())
    while steps := list(world.steps()):
        world.take(steps[0])
    assert world.is_over and world.acked == {"a": 1}, "`b` still holds its tuple"


@pytest.mark.chaos
@pytest.mark.parametrize("scene", LONG)
def test_no_order_of_more_steps_breaks_a_promise(scene: str) -> None:
    _, over = explore(World(*LONG[scene]))
    assert over


@pytest.mark.parametrize("broken", BROKEN)
def test_each_check_is_needed(broken: str) -> None:
    with pytest.raises(WrongError):
        explore(World(*SCENES[BROKEN[broken]], broken=frozenset({broken})))
