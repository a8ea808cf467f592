"""lua/scripts/*_state.lua: what each checks before it writes. tests/store/test_topology_state.py has their orders."""

import struct
from typing import Any

import pytest

from acker_redis.client import scripts
from acker_redis.client.client import Client
from acker_redis.errors import ServerOutOfMemoryError
from acker_redis.model.keys import StateKeys

KEYS = StateKeys("lab", "words")
TASK, OTHER, ID = "count:0", "count:1", "1:1:one"
NAMED = {
    "state": KEYS.state,
    "sizes": KEYS.sizes,
    "values": KEYS.values(TASK),
    "attempts": KEYS.attempts(TASK),
    "attempt": KEYS.attempt(TASK, ID),
}
OPEN, STALE, LOST, DECIDED, UNFOLDED, EXPIRED, FULL = range(7)


def call(client: Any, name: str, *arguments: Any) -> list[Any]:
    (reply,) = client.run([scripts.load(name).call(NAMED, *arguments)])
    return list(reply)


def packed(**changes: bytes) -> bytes:
    words = [word for name, value in changes.items() for word in (name.encode(), value)]
    return b"".join(struct.pack(">I", len(word)) + word for word in words)


ARGUMENTS = {
    "load_state": (TASK,),
    "read_state": (1000, "a"),
    "write_state": (TASK, ID, 0, 60_000, 2, 1, packed(a=b"1")),
    "commit_state": ("digest", "words", TASK, ID, 1),
    "close_state": (),
}


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize(
    ("stored", "status"),
    [
        ({}, LOST),
        ({"epoch": 2, "turn": 4}, LOST),
        ({"epoch": 3, "turn": 3}, LOST),
        ({"epoch": 4, "turn": 4}, STALE),
        ({"epoch": 3, "turn": 5, "decision": "cother"}, DECIDED),
        ({"epoch": 3, "turn": 6, "decision": "cdigest"}, DECIDED),
    ],
)
def test_a_turn_that_isnt_open_is_refused_and_nothing_is_written(
    client: Any, raw: Any, name: str, stored: dict[str, Any], status: int
) -> None:
    """Turn 5 of epoch 3."""
    if stored:
        raw.hset(KEYS.state, mapping=stored)
    raw.hset(NAMED["attempt"], mapping={"parts": 1, "0": packed(a=b"1")})
    before = {key: raw.hgetall(key) for key in raw.keys("*")}
    assert call(client, name, 3, 5, *ARGUMENTS[name])[0] == status
    assert {key: raw.hgetall(key) for key in raw.keys("*")} == before


def test_a_write_and_a_commit_wait_for_the_fold_of_the_attempt_before(client: Any, raw: Any) -> None:
    raw.hset(KEYS.state, mapping={"epoch": 1, "turn": 1, f"task:{TASK}": "uanother"})
    raw.hset(NAMED["attempt"], mapping={"parts": 1, "0": packed(a=b"1")})
    assert call(client, "write_state", 1, 2, *ARGUMENTS["write_state"]) == [UNFOLDED]
    assert call(client, "commit_state", 1, 2, *ARGUMENTS["commit_state"]) == [UNFOLDED]
    raw.hset(KEYS.state, f"task:{TASK}", "fanother")
    assert call(client, "commit_state", 1, 2, *ARGUMENTS["commit_state"]) == [OPEN]


def test_a_commit_of_fewer_parts_than_were_written_is_refused(client: Any, raw: Any) -> None:
    raw.hset(KEYS.state, mapping={"epoch": 1, "turn": 0})
    assert call(client, "write_state", 1, 1, TASK, ID, 1, 60_000, 2, 1, packed(a=b"1")) == [EXPIRED]
    assert call(client, "write_state", 1, 1, *ARGUMENTS["write_state"]) == [OPEN]
    assert call(client, "commit_state", 1, 1, "digest", "words", TASK, ID, 2) == [EXPIRED]
    assert raw.hget(KEYS.state, "turn") == b"0" and raw.pttl(NAMED["attempt"]) > 0


def test_a_fold_moves_and_deletes_fields_part_by_part(client: Any, raw: Any) -> None:
    raw.hset(KEYS.state, mapping={"epoch": 1, "turn": 1, f"task:{TASK}": f"u{ID}"})
    raw.hset(NAMED["attempt"], mapping={"parts": 2, "0": packed(a=b"1", b=b""), "1": packed(c=b"3" * 300)})
    raw.hset(NAMED["values"], mapping={"b": "2", "d": "4"})
    raw.sadd(NAMED["attempts"], ID, "another")
    assert call(client, "fold_state", 2, TASK, ID) == [LOST, 0]
    assert call(client, "fold_state", 0, TASK, ID) == [STALE, 0]
    assert call(client, "fold_state", 1, TASK, "another") == [OPEN, 0], "nothing is left to do"
    assert call(client, "fold_state", 1, TASK, ID) == [OPEN, 1]
    assert raw.hgetall(NAMED["attempt"]) == {b"parts": b"2", b"folded": b"1", b"1": packed(c=b"3" * 300)}
    assert raw.hgetall(NAMED["values"]) == {b"a": b"1", b"d": b"4"}
    assert call(client, "fold_state", 1, TASK, ID) == [OPEN, 0]
    assert raw.hgetall(NAMED["values"]) == {b"a": b"1", b"c": b"3" * 300, b"d": b"4"}
    assert raw.hget(KEYS.state, f"task:{TASK}") == f"f{ID}".encode()
    assert not raw.exists(NAMED["attempt"]) and raw.smembers(NAMED["attempts"]) == {b"another"}
    assert call(client, "fold_state", 1, TASK, ID) == [OPEN, 0], "a fold that was late"


def test_a_fold_counts_the_pieces_of_longer_values(client: Any, raw: Any) -> None:
    """Their names begin with a zero byte. The others are the keys."""
    raw.hset(KEYS.state, mapping={"epoch": 1, "turn": 1, f"task:{TASK}": f"u{ID}"})
    raw.hset(NAMED["values"], mapping={"a": "1", "\0\1a": "1", "\0\2a": "1"})
    first = packed(**{"a": b"2", "\0\1a": b"2", "\0\2a": b"", "\0\3a": b"", "b": b"", "\0\1c": b"3", "\0\1d": b"4"})
    raw.hset(NAMED["attempt"], mapping={"parts": 2, "0": first, "1": packed(**{"\0\1c": b"", "e": b"5"})})
    raw.hset(KEYS.state, f"pieces:{TASK}", 2)
    assert call(client, "fold_state", 1, TASK, ID) == [OPEN, 1]
    left = {b"a": b"2", b"\0\1a": b"2", b"\0\1c": b"3", b"\0\1d": b"4"}
    assert raw.hgetall(NAMED["values"]) == left
    assert raw.hmget(KEYS.state, f"keys:{TASK}", f"pieces:{TASK}") == [b"4", b"3"]
    assert call(client, "fold_state", 1, TASK, ID) == [OPEN, 0]
    assert raw.hmget(KEYS.state, f"keys:{TASK}", f"pieces:{TASK}") == [b"4", b"2"]


def test_a_read_ends_at_its_bytes_and_has_the_first_field_at_least(client: Any, raw: Any) -> None:
    raw.hset(KEYS.state, mapping={"epoch": 1, "turn": 1})
    raw.hset(NAMED["values"], mapping={"a": "x" * 60, "b": "y" * 60, "c": "z"})
    assert call(client, "read_state", 1, 2, 100, "a", "c", "none", "b") == [OPEN, b"x" * 60, b"z", b""]
    assert call(client, "read_state", 1, 2, 10, "b", "c") == [OPEN, b"y" * 60]


def test_above_maxmemory_changes_are_refused_and_commits_folds_and_closings_arent(real_url: str, raw: Any) -> None:
    client = Client(real_url)
    raw.hset(KEYS.state, mapping={"epoch": 1, "turn": 0})
    assert call(client, "write_state", 1, 1, *ARGUMENTS["write_state"]) == [OPEN]
    raw.config_set("maxmemory", "1")
    try:
        with pytest.raises(ServerOutOfMemoryError):
            call(client, "write_state", 1, 1, TASK, ID, 1, 60_000, 2, 1, packed(a=b"1"))
        assert call(client, "commit_state", 1, 1, *ARGUMENTS["commit_state"]) == [OPEN]
        assert call(client, "fold_state", 1, TASK, ID) == [OPEN, 0]
        assert call(client, "close_state", 1, 2) == [OPEN]
        assert call(client, "open_state", "server", "count", "shape") == [0, 2]
    finally:
        raw.config_set("maxmemory", "0")
        client.close()


def test_an_open_behind_a_run_without_an_end_is_suspect_on_another_server_only(client: Any, raw: Any) -> None:
    assert call(client, "open_state", "one") == [0, 1]
    assert raw.hgetall(KEYS.state) == {b"epoch": b"1", b"turn": b"0", b"decision": b"", b"server": b"one"}
    raw.hset(KEYS.state, "turn", 7)
    assert call(client, "open_state", "one", "count", "shape") == [0, 2]
    raw.hset(KEYS.state, "turn", 7)
    assert call(client, "open_state", "two", "count", "another") == [1, 0, b"count", b"shape"]
    assert call(client, "open_state", "two", "count", "shape") == [2, 3, b"2", b"7"]
    assert call(client, "open_state", "two") == [2, 4, b"3", b"0"], "a reply may be lost"
    assert call(client, "end_state", 4, 0) == [OPEN]
    assert call(client, "open_state", "three") == [0, 5]


def test_an_end_is_noted_once_and_never_by_an_older_run(client: Any, raw: Any) -> None:
    stored = {"epoch": 3, "turn": 5, "server": "one"}
    raw.hset(KEYS.state, mapping=stored)
    assert call(client, "end_state", 2, 5) == [STALE] and raw.hget(KEYS.state, "server") == b"one"
    for epoch, turn, status in ((3, 6, LOST), (3, 5, OPEN), (3, 4, OPEN), (4, 0, LOST)):
        raw.hset(KEYS.state, mapping=stored)
        assert call(client, "end_state", epoch, turn) == [status]
        assert raw.hgetall(KEYS.state) == {b"epoch": b"3", b"turn": b"5"}


def test_a_check_finds_what_is_gone_and_accepts_what_is_there(client: Any, raw: Any) -> None:
    raw.hset(KEYS.state, mapping={"epoch": 1, f"task:{TASK}": f"u{ID}", f"keys:{TASK}": 2, f"pieces:{TASK}": 1})
    raw.hset(KEYS.sizes, mapping={"total": 9, f"words:{TASK}": 4})
    raw.hset(NAMED["values"], mapping={"a": "1", "b": "2"})
    raw.hset(NAMED["attempt"], "parts", 1)
    arguments = ("words", TASK, ID)
    assert call(client, "check_state", 0, *arguments) == [STALE, 2, 2]
    assert call(client, "check_state", 1, *arguments) == [OPEN, 2, 2]
    raw.hdel(NAMED["values"], "a")
    assert call(client, "check_state", 1, *arguments) == [LOST, 2, 1]
    assert call(client, "check_state", 1, *arguments) == [OPEN, 1, 1]
    raw.unlink(NAMED["attempt"])
    assert call(client, "check_state", 1, *arguments) == [LOST, 1, 1]
    assert raw.hget(KEYS.state, f"task:{TASK}") == b"f" and raw.hget(KEYS.sizes, "total") == b"9"
    raw.unlink(NAMED["values"])
    assert call(client, "check_state", 1, *arguments) == [LOST, 1, 0]
    assert not raw.hexists(KEYS.state, f"pieces:{TASK}")
    assert call(client, "check_state", 1, *arguments) == [OPEN, 0, 0]
    assert raw.hgetall(KEYS.sizes) == {b"total": b"5"}


def test_a_write_and_a_commit_above_the_limit_change_nothing(client: Any, raw: Any) -> None:
    raw.hset(KEYS.state, mapping={"epoch": 1, "turn": 0})
    raw.hset(KEYS.sizes, mapping={"total": 7, "limit": 10})
    write = (TASK, ID, 0, 60_000)
    assert call(client, "write_state", 1, 1, *write, 4, 1, packed(a=b"123")) == [FULL] and not raw.exists(
        NAMED["attempt"]
    )
    assert call(client, "write_state", 1, 1, *write, 3, 1, packed(a=b"12")) == [OPEN]
    move = (TASK, "1:1:move", 0, 60_000, 400, 0, packed(a=b"123"))
    assert call(client, "write_state", 1, 1, *move) == [OPEN], "other tasks of the turn shrink by as much"
    raw.unlink(NAMED["attempt"])
    assert call(client, "write_state", 1, 1, *write, 3, 1, packed(a=b"12")) == [OPEN]
    raw.hset(KEYS.sizes, "limit", 9)
    assert call(client, "commit_state", 1, 1, *ARGUMENTS["commit_state"]) == [FULL]
    assert raw.hgetall(KEYS.state) == {b"epoch": b"1", b"turn": b"0"} and raw.pttl(NAMED["attempt"]) > 0
    raw.hdel(KEYS.sizes, "limit")
    for _ in range(2):
        assert call(client, "commit_state", 1, 1, *ARGUMENTS["commit_state"]) == [OPEN]
        assert raw.hgetall(KEYS.sizes) == {b"total": b"10", f"words:{TASK}".encode(): b"3"}


def test_a_state_that_shrinks_is_never_above_its_limit(client: Any, raw: Any) -> None:
    raw.hset(KEYS.state, mapping={"epoch": 1, "turn": 0})
    raw.hset(KEYS.sizes, mapping={"total": 70, "limit": 10})
    for part, growth in enumerate((0, -3)):
        assert call(client, "write_state", 1, 1, TASK, ID, part, 60_000, growth, 1, packed(a=b"")) == [OPEN]
    assert call(client, "commit_state", 1, 1, "digest", "words", TASK, ID, 2) == [OPEN]


def test_empty_deletes_all_keys_but_the_epoch_unless_a_run_began(client: Any, raw: Any) -> None:
    raw.hset(KEYS.state, mapping={"epoch": 3, "turn": 5, "shape:count": "shape", f"task:{TASK}": f"f{ID}"})
    raw.hset(KEYS.sizes, mapping={"total": 9, f"words:{TASK}": 4, "other:count:0": 5, "limit": 10})
    raw.hset(NAMED["values"], "a", "1")
    raw.hset(NAMED["attempt"], "parts", 1)
    raw.sadd(NAMED["attempts"], ID)
    named = {name: [key] if name in ("values", "attempts", "attempt") else key for name, key in NAMED.items()}

    def empty(epoch: int) -> list[Any]:
        (reply,) = client.run([scripts.load("empty_state").call(named, epoch, "words", TASK)])
        return list(reply)

    assert empty(2) == [STALE] and raw.exists(*NAMED.values()) == 5
    assert empty(3) == [OPEN]
    assert sorted(raw.keys("*")) == sorted(key.encode() for key in (KEYS.state, KEYS.sizes))
    assert raw.hgetall(KEYS.state) == {b"epoch": b"4", b"turn": b"0", b"decision": b""}
    assert raw.hgetall(KEYS.sizes) == {b"total": b"5", b"other:count:0": b"5", b"limit": b"10"}
    assert empty(3) == [STALE]


def test_forget_deletes_all_of_a_task_and_nothing_of_others_unless_a_newer_run_began(client: Any, raw: Any) -> None:
    other = {f"task:{OTHER}": "fx", f"keys:{OTHER}": 1, f"pieces:{OTHER}": 1, "shape:other": "shape"}
    own = {f"task:{TASK}": f"u{ID}", f"keys:{TASK}": 1, f"pieces:{TASK}": 1, "shape:count": "shape"}
    raw.hset(KEYS.state, mapping={"epoch": 3, "turn": 5, **own, **other})
    raw.hset(KEYS.sizes, mapping={"total": 9, f"words:{TASK}": 4, f"words:{OTHER}": 5, "limit": 10})
    for task in (TASK, OTHER):
        raw.hset(KEYS.values(task), "a", "1")
        raw.hset(KEYS.attempt(task, ID), "parts", 1)
        raw.sadd(KEYS.attempts(task), ID)
    named = {name: [key] if name in ("values", "attempts", "attempt") else key for name, key in NAMED.items()}

    def forget(epoch: int, bolt: str = "count") -> list[Any]:
        (reply,) = client.run([scripts.load("forget_state").call(named, epoch, "words", bolt, TASK)])
        return list(reply)

    assert forget(2) == [STALE] and forget(4) == [LOST] and raw.exists(*NAMED.values()) == 5
    assert forget(3, "") == [OPEN] and raw.hexists(KEYS.state, "shape:count")
    for _ in range(2):
        assert forget(3) == [OPEN]
        left = (KEYS.state, KEYS.sizes, KEYS.values(OTHER), KEYS.attempts(OTHER), KEYS.attempt(OTHER, ID))
        assert sorted(raw.keys("*")) == sorted(key.encode() for key in left)
        assert raw.hgetall(KEYS.state).keys() == {b"epoch", b"turn", *(name.encode() for name in other)}
        assert raw.hgetall(KEYS.sizes) == {b"total": b"5", f"words:{OTHER}".encode(): b"5", b"limit": b"10"}
