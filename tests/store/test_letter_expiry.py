"""The retention of dead letters: which letters a pass removes, and which stay."""

from collections.abc import Callable
from typing import Any

import pytest

from acker_redis import Acker, DamagedDataError, DeadLetter, Limits
from acker_redis.acker import app_of
from acker_redis.store.dead_letter import DeadLetterFilter
from acker_redis.store.letter_expiry import LETTERS_PER_STEP, LetterExpiry

KEY = "acker:{test}:dead_letters"


def put_old(raw: Any, count: int, **fields: Any) -> list[str]:
    """Letters that were written two days ago."""
    first_ms = raw.time()[0] * 1000 - 2 * 24 * 3600 * 1000 + raw.xlen(KEY)
    letter = {"format": 2, "message_id": 1, "run_id": "run", "attempts": 3, "reason": "failed", **fields}
    return [raw.xadd(KEY, letter, id=f"{first_ms + number}-1").decode() for number in range(count)]


def expire(acker: Acker) -> int:
    expiry = LetterExpiry(app_of(acker).client, acker.config.app)
    while not expiry.is_over:
        expiry.step()
    return expiry.removed


def left(acker: Acker) -> list[str]:
    return [letter.entry_id for letter in acker.dead_letters.read()]


def test_letters_stay_without_a_retention(source: Any, raw: Any, connect: Callable[..., Acker]) -> None:
    acker = connect()
    old = put_old(raw, 3)
    acker.admin.set_limits(Limits(max_pending=5))
    assert (expire(acker), left(acker)) == (0, old)


def test_old_letters_are_removed_in_several_steps(source: Any, raw: Any, connect: Callable[..., Acker]) -> None:
    acker = connect()
    count = LETTERS_PER_STEP + 50
    put_old(raw, count)
    young = acker.dead_letters.add([DeadLetter(1, "run", 3, "failed")])
    acker.admin.set_limits(Limits(dead_letter_days=3))
    assert expire(acker) == 0
    acker.admin.set_limits(Limits(dead_letter_days=1.5))
    assert (expire(acker), left(acker)) == (count, young)


def test_letters_of_an_open_request_stay_until_it_is_over(source: Any, raw: Any, connect: Callable[..., Acker]) -> None:
    acker = connect()
    acker.admin.set_limits(Limits(dead_letter_days=1))
    first, _ = put_old(raw, 2, message_id=1, spout_id=7, payload="{}", replay="payload")
    put_old(raw, 1, message_id=2)
    first_only = DeadLetterFilter(message_ids=frozenset({1}))
    assert acker.dead_letters.replay(first_only) == 2
    raw.zrem("acker:{test}:replay:7", left(acker)[1])
    assert (expire(acker), left(acker)) == (2, [first])
    raw.delete("acker:{test}:replay:7")
    assert (expire(acker), left(acker)) == (1, [])


def test_unwritten_letters_are_removed_by_their_age(source: Any, raw: Any, connect: Callable[..., Acker]) -> None:
    """The next run that writes its output still finds its own."""
    acker = connect()
    acker.admin.set_limits(Limits(dead_letter_days=1))
    acker.dead_letters.add([DeadLetter(1, "gone", 3, "failed", unwritten=True)])
    raw.delete(KEY)
    put_old(raw, 2, run_id="gone")
    (entry_id,) = acker.dead_letters.add([DeadLetter(2, "gone", 3, "failed", unwritten=True)])
    assert expire(acker) == 2
    assert [(letter.entry_id, letter.unwritten) for letter in acker.dead_letters.read()] == [(entry_id, True)]
    assert app_of(acker).output_written("next", 0) == 1
    assert left(acker) == []


def test_damaged_limits_remove_nothing(source: Any, raw: Any, connect: Callable[..., Acker]) -> None:
    acker = connect()
    put_old(raw, 1)
    raw.hset("acker:{test}:limits", "dead_letter_days", "-1")
    with pytest.raises(DamagedDataError, match="acker-redis limit --app test"):
        expire(acker)
    assert acker.dead_letters.count() == 1
