"""Turns: claims of bins, on every server."""

from collections.abc import Callable

from acker_redis import Acker
from acker_redis.acker import app_of
from acker_redis.store.turns import Claim, Turn


def opened(acker: Acker, number: int = 1) -> Turn:
    turn = app_of(acker).turn("run", number)
    turn.open()
    return turn


def test_a_bin_is_sent_for_one_digest_and_once(connect: Callable[..., Acker], source: object) -> None:
    turn = opened(connect())
    assert turn.claim(0, b"first") is Claim.CLAIMED
    assert turn.claim(0, b"second") is Claim.OTHER
    assert turn.claim(0, b"first") is Claim.CLAIMED, "a task that died before it sent all runs again"
    turn.sent(0, b"first")
    assert turn.claim(0, b"first") is Claim.SENT
    assert turn.claim(0, b"second") is Claim.OTHER


def test_a_closed_turn_grants_no_claim_and_a_claimed_one_cant_be_closed(
    connect: Callable[..., Acker], source: object
) -> None:
    acker = connect()
    closed, claimed = opened(acker, 1), opened(acker, 2)
    assert closed.close() and closed.claim(0, b"late") is Claim.CLOSED
    assert claimed.claim(0, b"one") is Claim.CLAIMED and not claimed.close()


def test_a_turn_is_forgotten_after_two_dedup_windows(connect: Callable[..., Acker], source: object) -> None:
    turn = opened(connect(num_buckets=3, message_timeout_secs=30))
    assert turn.keep_ms == 2 * 4 * 15_000
    turn.keep()
