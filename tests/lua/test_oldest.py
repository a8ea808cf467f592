"""lua/oldest.lua: the root that has gone longest without being put into the nursery."""

import pytest

from tests.lua.seeding import FAILED, TICK, WAITING

FOUND, MORE, EMPTY = 0, 1, 2


@pytest.mark.parametrize("steps_back", [0, 1, 2, 3], ids=["nursery", "middle", "oldest", "death row"])
@pytest.mark.parametrize("tick", [TICK, 65_537], ids=["", "stamps wrapped"])
def test_the_oldest_owned_root_of_a_cohort_is_found(lab, tick: int, steps_back: int) -> None:
    shard = lab(tick=tick)
    put = tick - steps_back
    shard.put(1, 5, tick=put, ago_ms=1000, cohort=False)
    oldest = shard.put(2, 5, tick=put, ago_ms=3000, cohort=False)
    shard.put(3, 5, tick=put, ago_ms=2000, cohort=False)
    shard.put(4, 5, tick=put, ago_ms=9000, cohort=False, flags=WAITING)
    shard.put(5, 5, tick=put, ago_ms=9000, cohort=False, flags=FAILED)
    shard.cohort(put, 1, 2, 3, 4, 5, 6)
    before = shard.state()
    status, age_ms, _ = shard.run("oldest", steps_back, 0)
    assert (status, age_ms) == (FOUND, shard.age(oldest))
    assert shard.state() == before


def test_a_root_that_moved_on_is_not_found_where_it_was(lab) -> None:
    shard = lab()
    shard.put(1, 5, tick=TICK)
    shard.cohort(TICK - 3, 1)
    assert shard.run("oldest", 3, 0) == [EMPTY, 0, 0]
    assert shard.run("oldest", 0, 0)[0] == FOUND


@pytest.mark.parametrize(
    ("settled", "replies"),
    [
        (0, [[EMPTY, 0, 0]]),
        (3, [[EMPTY, 0, 0]]),
        (4, [[MORE, 0, 4], [EMPTY, 0, 0]]),
        (5, [[MORE, 0, 4], [EMPTY, 0, 0]]),
        (9, [[MORE, 0, 4], [MORE, 0, 8], [EMPTY, 0, 0]]),
    ],
)
def test_settled_cohorts_are_walked_in_bounded_calls(lab, settled: int, replies: list[list[int]]) -> None:
    shard = lab()
    for root in range(settled):
        shard.cohort(TICK, root, score=root)
    offset = 0
    for expected in replies:
        reply = shard.run("oldest", 0, offset)
        assert reply == expected
        offset = reply[2]


def test_a_root_behind_settled_cohorts_is_found(lab) -> None:
    shard = lab()
    for root in range(6):
        shard.cohort(TICK, root, score=root)
    pending = shard.put(5, 5, cohort=False)
    assert shard.run("oldest", 0, 0) == [MORE, 0, 4]
    assert shard.run("oldest", 0, 4) == [FOUND, shard.age(pending), 0]


@pytest.mark.parametrize("steps_back", [1, 3])
def test_there_is_nothing_before_the_first_tick(lab, steps_back: int) -> None:
    shard = lab(tick=0)
    shard.put(1, 5)
    assert shard.run("oldest", steps_back, 0) == [EMPTY, 0, 0]


def test_the_nursery_of_the_first_tick_is_looked_at(lab) -> None:
    shard = lab(tick=0)
    pending = shard.put(1, 5)
    assert shard.run("oldest", 0, 0) == [FOUND, shard.age(pending), 0]
