"""lua/scripts/store_letters.lua: the letters of a record of a publish log are stored once."""

from typing import Any

import pytest

from acker_redis.client import scripts
from acker_redis.client.client import Client
from acker_redis.model import keys

ADDED, STORED = 0, 1
LETTERS, LOGS = keys.dead_letters("lab"), keys.letter_logs("lab")


def store(client: Client, record: int, before: int, *messages: int, log: str = "orders") -> list[Any]:
    values = [value for message in messages for value in (4, "message_id", message, "payload", b"\x00\xff")]
    named = {"letter_logs": LOGS, "dead_letters": LETTERS}
    (reply,) = client.run([scripts.load("store_letters").call(named, log, record, before, *values)])
    return list(reply)


def stored(raw: Any) -> list[int]:
    return [int(fields[b"message_id"]) for _, fields in raw.xrange(LETTERS)]


def test_letters_of_a_record_are_added_in_several_calls_each_once(client: Client, raw: Any) -> None:
    status, *entry_ids = store(client, 3, 0, 7, 8)
    assert status == ADDED
    assert [(entry_id, fields) for entry_id, fields in raw.xrange(LETTERS)] == [
        (entry_id, {b"message_id": b"%d" % message, b"payload": b"\x00\xff"})
        for entry_id, message in zip(entry_ids, (7, 8), strict=True)
    ]
    assert store(client, 3, 0, 7, 8) == [STORED]
    assert store(client, 3, 2, 9)[0] == ADDED
    assert store(client, 3, 2, 9) == [STORED]
    assert store(client, 3, 0, 7, 8) == [STORED]
    assert stored(raw) == [7, 8, 9]
    assert raw.hgetall(LOGS) == {b"orders": b"3:3"}


def test_letters_of_an_older_record_come_too_late(client: Client, raw: Any) -> None:
    """A driver that slept was replaced by one that has stored them, and those of later records."""
    assert store(client, 5, 0, 7)[0] == ADDED
    assert store(client, 3, 0, 6) == [STORED]
    assert store(client, 6, 0, 8)[0] == ADDED
    assert stored(raw) == [7, 8]


def test_calls_may_have_other_numbers_of_letters_when_they_are_repeated(client: Client, raw: Any) -> None:
    """The limits of a call may have changed between two starts of a driver."""
    assert store(client, 3, 0, 1, 2, 3)[0] == ADDED
    assert store(client, 3, 0, 1, 2) == [STORED]
    status, *entry_ids = store(client, 3, 2, 3, 4)
    assert (status, len(entry_ids)) == (ADDED, 1)
    assert stored(raw) == [1, 2, 3, 4]
    assert raw.hgetall(LOGS) == {b"orders": b"3:4"}


def test_letter_that_nobody_needs_any_more_keeps_its_place(client: Client, raw: Any) -> None:
    named = {"letter_logs": LOGS, "dead_letters": LETTERS}
    for _ in range(2):
        client.run([scripts.load("store_letters").call(named, "orders", 3, 0, 0, 2, "message_id", 8, 0)])
    assert stored(raw) == [8]
    assert store(client, 3, 2, 9, 10)[0] == ADDED, "9 was one of three"
    assert stored(raw) == [8, 10]


def test_logs_are_kept_apart(client: Client, raw: Any) -> None:
    store(client, 5, 0, 7)
    assert store(client, 3, 0, 7, log="clicks")[0] == ADDED
    assert raw.hgetall(LOGS) == {b"orders": b"5:1", b"clicks": b"3:1"}


def test_call_without_letters_notes_the_record(client: Client, raw: Any) -> None:
    assert store(client, 5, 0) == [ADDED]
    assert raw.hgetall(LOGS) == {b"orders": b"5:0"}


@pytest.mark.parametrize("damaged", [b"", b"nothing", b"5"])
def test_damaged_place_counts_as_none(client: Client, raw: Any, damaged: bytes) -> None:
    raw.hset(LOGS, "orders", damaged)
    assert store(client, 5, 0, 7)[0] == ADDED
