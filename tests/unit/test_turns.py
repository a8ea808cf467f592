"""Turns of a rotator's apps: what an app with a share lets pass, and when nobody has to wait."""

from collections import Counter

import pytest

from acker_redis.turns import Turns


def calls_of(turns: Turns, wanted: dict[str, int], passes: int) -> Counter[str]:
    """What each app had after so many passes, each app wanting so many calls in each of its turns."""
    had = Counter[str]()
    for _ in range(passes):
        for name in turns.next(list(wanted)):
            had[name] += wanted[name]
            turns.took(name, wanted[name], list(wanted))
    return had


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("others", [{"a": 100}, {"a": 7}, {"a": 50, "b": 300}])
def test_an_app_has_its_share_of_all_calls(share: float, others: dict[str, int]) -> None:
    turns = Turns()
    turns.share({"limited": share})
    had = calls_of(turns, {"limited": 100, **others}, 3000)
    owed, one_pass = 100 * (1 - share) / share, sum(others.values())
    assert 100 / (100 + owed + one_pass) - 0.01 <= had["limited"] / had.total() <= share + 0.01


def test_alone_it_has_every_turn() -> None:
    turns = Turns()
    turns.share({"limited": 0.01})
    assert calls_of(turns, {"limited": 10}, 100) == {"limited": 1000}


def test_of_several_with_a_share_none_waits_for_the_others() -> None:
    turns = Turns()
    turns.share({"a": 0.1, "b": 0.2})
    had = calls_of(turns, {"a": 10, "b": 10}, 100)
    assert had.total() >= 1000


def test_without_shares_all_go_in_each_pass() -> None:
    assert calls_of(Turns(), {"a": 1, "b": 2}, 10) == {"a": 10, "b": 20}


def test_a_share_that_is_taken_away_is_owed_for_no_more() -> None:
    turns = Turns()
    turns.share({"limited": 0.001})
    assert turns.next(["limited", "other"]) == ["limited", "other"]
    turns.took("limited", 10, ["limited", "other"])
    assert turns.next(["limited", "other"]) == ["other"]
    turns.share({})
    assert turns.next(["limited", "other"]) == ["limited", "other"]
