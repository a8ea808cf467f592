"""Letters that a publish log has decided."""

from typing import Any

from acker_redis import Acker
from acker_redis.acker import app_of
from acker_redis.store import decided_letters
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.limits import Limits


def letters_of(count: int, size: int = 10) -> list[DeadLetter]:
    return [DeadLetter(number, "run", 5, "failed", payload=bytes(size)) for number in range(count)]


def test_many_letters_take_several_calls_and_are_stored_once(url: str, connect: Any) -> None:
    acker: Acker = connect()
    for letters in (letters_of(250), letters_of(3, 200_000)):
        before = acker.dead_letters.count()
        for _ in range(2):
            decided_letters.add(app_of(acker).client, acker.config.app, "orders", 3 + before, letters)
        assert acker.dead_letters.count() == before + len(letters)
    decided_letters.add(app_of(acker).client, acker.config.app, "orders", 3, letters_of(1))
    assert [letter.message_id for letter in acker.dead_letters.read()] == [*range(250), *range(3)]


def test_payload_above_the_limit_is_dropped(url: str, connect: Any) -> None:
    acker: Acker = connect()
    acker.admin.set_limits(Limits(max_payload_bytes=5))
    decided_letters.add(app_of(acker).client, acker.config.app, "orders", 1, letters_of(1))
    assert acker.dead_letters.read()[0].payload is None
