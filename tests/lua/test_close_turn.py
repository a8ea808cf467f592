"""lua/scripts/close_turn.lua: the end of a topology's turn none of whose bins was claimed."""

from typing import Any

from acker_redis.client import scripts

KEY = "acker:{lab}:turn:run:7"
CLOSED, CLAIMED = 0, 1


def close(client: Any) -> int:
    ((status,),) = client.run([scripts.load("close_turn").call({"turn": KEY}, 60_000)])
    return int(status)


def test_a_turn_without_claims_is_closed(client, raw: Any) -> None:
    raw.hset(KEY, "state", "open")
    assert [close(client), close(client)] == [CLOSED, CLOSED]
    assert raw.hgetall(KEY) == {b"state": b"closed"} and raw.pttl(KEY) > 0


def test_a_turn_with_a_claim_stays_open(client, raw: Any) -> None:
    raw.hset(KEY, mapping={"state": "open", "3": "cone"})
    assert close(client) == CLAIMED
    assert raw.hgetall(KEY) == {b"state": b"open", b"3": b"cone"}


def test_a_turn_that_is_not_there_is_closed(client, raw: Any) -> None:
    assert close(client) == CLOSED
    assert raw.hgetall(KEY) == {b"state": b"closed"}
