"""The search for the message that breaks turns, where Spark loses rows that it kept."""

from typing import Any

import pytest

from acker_redis.storm.core.collectors import Emission
from acker_redis.storm.turns.engine import Emitted
from acker_redis.storm.turns.search import MOST_LOSSES, TurnSearch

LOSS = RuntimeError("[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND]")
task: Any = None


def emitted(*ids: int) -> list[Emitted]:
    return [Emitted(task, Emission(tup_id, "default", (tup_id,), None), None) for tup_id in ids]


def taken(search: TurnSearch) -> list[int]:
    return sorted(one.emission.tup_id for one in search.take())


def test_messages_of_lost_rows_go_out_again_together() -> None:
    search = TurnSearch()
    assert search.broke(emitted(*range(20)), LOSS, by_outage=False, by_loss=True) is None
    assert search.in_a_row == 0 and len(search) == 20
    assert taken(search) == list(range(20))
    search.succeeded()
    assert not len(search)


@pytest.mark.parametrize("known", [False, True])
def test_a_message_alone_is_to_blame_once_its_rows_are_lost_again_and_again(known: bool) -> None:
    search = TurnSearch()
    for _ in range(2):  # a success in between begins the count again
        search.begin(is_known=known)
        message = emitted(7)
        for _ in range(MOST_LOSSES):
            assert search.broke(message, LOSS, by_outage=False, by_loss=True) is None
            message = search.take()
            assert [one.emission.tup_id for one in message] == [7]
        search.succeeded()
    search.begin(is_known=known)
    message = emitted(7)
    for _ in range(MOST_LOSSES):
        search.broke(message, LOSS, by_outage=False, by_loss=True)
        message = search.take()
    assert search.broke(message, LOSS, by_outage=False, by_loss=True) == message[0]
    assert not len(search)


def test_rows_that_are_lost_in_a_search_leave_its_other_parts_as_they_are() -> None:
    search = TurnSearch()
    search.broke(emitted(*range(16)), ValueError("poison"), by_outage=False)
    part = search.take()
    assert len(part) == 2 and len(search) == 14
    search.broke(part, LOSS, by_outage=False, by_loss=True)
    assert len(search) == 16 and search.in_a_row == 1
    found: list[int] = []
    while len(search):
        found += taken(search)
        search.succeeded()
    assert sorted(found) == list(range(16))
