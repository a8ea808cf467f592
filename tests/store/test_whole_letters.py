"""Letters of whole outputs: marked until their run has written, and removed by a later one that has."""

import json

from acker_redis import Acker, DeadLetter
from acker_redis.acker import app_of
from acker_redis.client.client import Client
from acker_redis.store.dead_letters import DeadLetters

KEY, MARKS = "acker:{test}:dead_letters", "acker:{test}:unwritten_runs"


def store(acker: Acker, run_id: str, *messages: int, spout_id: int = 0, unwritten: bool = True) -> None:
    acker.dead_letters.add(
        [DeadLetter(number, run_id, 3, "failed", spout_id=spout_id, unwritten=unwritten) for number in messages]
    )


def stored(acker: Acker) -> list[tuple[str, int, bool]]:
    return [(letter.run_id, letter.message_id, letter.unwritten) for letter in acker.dead_letters.read()]


def test_letters_are_unwritten_until_their_run_has_written(source, raw, connect) -> None:
    acker: Acker = connect()
    store(acker, "monday", 1, 2)
    store(acker, "other", 3, unwritten=False)
    assert stored(acker) == [("monday", 1, True), ("monday", 2, True), ("other", 3, False)]
    (entry_id,) = [letter.entry_id for letter in acker.dead_letters.read(count=1)]
    (letter,) = acker.dead_letters.get([entry_id])
    assert letter is not None
    assert letter.unwritten
    assert app_of(acker).output_written("monday", 0) == 0
    assert stored(acker) == [("monday", 1, False), ("monday", 2, False), ("other", 3, False)]
    assert not raw.exists(MARKS)
    assert b"unwritten" not in dict(raw.xrange(KEY)[0][1])


def test_letters_of_unwritten_runs_before_are_removed(source, raw, connect) -> None:
    acker: Acker = connect()
    store(acker, "sunday", 1, unwritten=False)
    store(acker, "monday", 1, 2)
    store(acker, "theirs", 1, spout_id=1)
    store(acker, "tuesday", 2)
    store(acker, "wednesday", 2, 3)
    assert app_of(acker).output_written("wednesday", 0) == 3
    assert stored(acker) == [
        ("sunday", 1, False),
        ("theirs", 1, True),
        ("wednesday", 2, False),
        ("wednesday", 3, False),
    ]
    assert list(raw.hgetall(MARKS)) == [b"theirs"]
    assert app_of(acker).output_written("wednesday", 0) == 0


def test_letters_of_a_run_under_way_are_kept(source, connect) -> None:
    """A run without messages writes without holding the lane."""
    acker: Acker = connect()
    store(acker, "running", 1)
    lease = app_of(acker).lease(lane=0, run_id="running")
    lease.acquire()
    assert app_of(acker).output_written("empty", 0) == 0
    lease.release()
    assert app_of(acker).output_written("empty", 0) == 1


def test_damaged_mark_does_not_block_reading(source, raw, connect) -> None:
    acker: Acker = connect()
    store(acker, "monday", 1)
    for run_id, text in {
        "a": b"\xff",
        "b": b"{}",
        "c": b"[]",
        "d": json.dumps({"spout_id": "x", "since_ms": 1}),
    }.items():
        raw.hset(MARKS, run_id, text)
    assert stored(acker) == [("monday", 1, True)]
    assert app_of(acker).output_written("tuesday", 0) == 1


def test_missing_permission_for_marks_does_not_block_reading(url, raw, connect) -> None:
    store(connect(), "monday", 1)
    raw.execute_command("ACL", "SETUSER", "reader", "reset", "on", ">secret", "+@all", f"~{KEY}", "~acker:{test}:dead")
    client = Client(url.replace("redis://", "redis://reader:secret@"))
    try:
        assert [(letter.message_id, letter.unwritten) for letter in DeadLetters(client, "test").read()] == [(1, False)]
    finally:
        client.close()
