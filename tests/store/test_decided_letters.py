"""Letters that a publish log has decided."""

from collections.abc import Sequence
from typing import Any

from acker_redis import Acker
from acker_redis.acker import app_of
from acker_redis.model import keys
from acker_redis.store import decided_letters
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.decided_letters import Decision
from acker_redis.store.limits import Limits


def letters_of(count: int, size: int = 10) -> list[DeadLetter]:
    return [DeadLetter(number, "run", 5, "failed", payload=bytes(size)) for number in range(count)]


def add(acker: Acker, record: int, letters: Sequence[DeadLetter]) -> None:
    decided = [(letter, Decision("orders-1", record, "a/0", letter.message_id)) for letter in letters]
    decided_letters.add(app_of(acker).client, acker.config.app, decided)


def test_many_letters_take_several_calls_and_are_stored_once(url: str, connect: Any) -> None:
    acker: Acker = connect()
    for letters in (letters_of(250), letters_of(3, 200_000)):
        before = acker.dead_letters.count()
        for _ in range(2):
            add(acker, 3 + before, letters)
        assert acker.dead_letters.count() == before + len(letters)
    add(acker, 3, letters_of(1))
    assert [letter.message_id for letter in acker.dead_letters.read()] == [*range(250), *range(3)]


def test_newest_record_is_known_unless_the_server_lost_it(url: str, connect: Any, raw: Any) -> None:
    acker: Acker = connect()
    client, app = app_of(acker).client, acker.config.app
    assert decided_letters.newest(client, app, "orders-1") == 0
    add(acker, 7, letters_of(3))
    decided_letters.note(client, app, "orders-2", 9)
    assert [decided_letters.newest(client, app, f"orders-{log}") for log in (1, 2)] == [7, 9]
    raw.hset(keys.letter_logs(app), "orders-1", "damaged")
    assert decided_letters.newest(client, app, "orders-1") == 0


def test_payload_above_the_limit_is_dropped(url: str, connect: Any) -> None:
    acker: Acker = connect()
    acker.admin.set_limits(Limits(max_payload_bytes=5))
    add(acker, 1, letters_of(1))
    assert acker.dead_letters.read()[0].payload is None


def test_letter_has_its_record_which_other_readers_ignore(url: str, connect: Any, raw: Any) -> None:
    acker: Acker = connect()
    plain, *_ = acker.dead_letters.add(letters_of(1))
    add(acker, 7, letters_of(130))
    letters = acker.dead_letters.read()
    assert [letter._replace(entry_id="") for letter in letters] == letters_of(1) + letters_of(130)
    damaged = raw.xadd(keys.dead_letters(acker.config.app), {"format": 2, "decision": "{}"}).decode()
    entry_ids = [plain, damaged, "1-1", *(letter.entry_id for letter in letters[1:])]
    found = decided_letters.decisions(app_of(acker).client, acker.config.app, entry_ids)
    of_log = decided_letters.find(app_of(acker).client, acker.config.app, "orders-1")
    assert [entry_id for entry_id, _ in of_log] == [letter.entry_id for letter in letters[1:]]
    assert not list(decided_letters.find(app_of(acker).client, acker.config.app, "orders-2"))
    assert list(found) == [None, None, None, *(Decision("orders-1", 7, "a/0", number) for number in range(130))]
