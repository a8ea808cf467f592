"""lua/scripts/claim_bin.lua: claims of a topology's bins by compare-and-set."""

from typing import Any

from acker_redis.client import scripts

KEY = "acker:{lab}:turn:run:7"
CLAIMED, SENT, OTHER, CLOSED = range(4)
KEEP_MS = 60_000


def claim(client: Any, number: int, digest: bytes) -> int:
    call = scripts.load("claim_bin").call({"turn": KEY}, number, digest, KEEP_MS)
    ((status,),) = client.run([call])
    return int(status)


def test_first_claim_is_granted_and_kept(client, raw: Any) -> None:
    raw.hset(KEY, "state", "open")
    assert claim(client, 3, b"one") == CLAIMED
    assert raw.hgetall(KEY) == {b"state": b"open", b"3": b"cone"}
    assert 0 < raw.pttl(KEY) <= KEEP_MS


def test_claim_of_the_same_updates_is_granted_again(client, raw: Any) -> None:
    raw.hset(KEY, mapping={"state": "open", "3": "cone"})
    assert claim(client, 3, b"one") == CLAIMED
    assert claim(client, 4, b"two") == CLAIMED, "bins are claimed one by one"


def test_claim_of_other_updates_is_refused(client, raw: Any) -> None:
    for held in ("cone", "sone"):
        raw.hset(KEY, mapping={"state": "open", "3": held})
        assert claim(client, 3, b"two") == OTHER
        assert raw.hget(KEY, "3") == held.encode()


def test_claim_of_updates_that_were_sent_says_so(client, raw: Any) -> None:
    raw.hset(KEY, mapping={"state": "open", "3": "sone"})
    assert claim(client, 3, b"one") == SENT


def test_closed_and_forgotten_turns_grant_no_claim(client, raw: Any) -> None:
    assert claim(client, 3, b"one") == CLOSED
    assert raw.keys("*") == []
    raw.hset(KEY, "state", "closed")
    assert claim(client, 3, b"one") == CLOSED
    assert raw.hgetall(KEY) == {b"state": b"closed"}
