"""State of topologies in parts, and its long values in pieces."""

import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from acker_redis import StateLostError
from acker_redis.client.client import Client
from acker_redis.store import state_pieces, topology_sizes
from acker_redis.store.state_pieces import PIECE_BYTES
from acker_redis.store.topology_sizes import TaskSize
from acker_redis.store.topology_state import MAX_FIELD_BYTES, MAX_VALUE_BYTES, Emptied, Status, TopologyState
from tests.store.state_turns import commit, turns, values


@pytest.fixture
def client(source: Any) -> Any:
    client = Client(source)
    yield client
    client.close()


@pytest.fixture
def state(client: Client) -> TopologyState:
    return TopologyState(client, "app", "words")


def test_parts_are_cut_by_fields_and_bytes(state: TopologyState, raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = turns(state)
    monkeypatch.setattr(state_pieces, "PART_BYTES", 4000)
    changes = {b"%d" % number: b"x" * (number % 50 + 1) for number in range(1300)} | {b"long": b"y" * 9000}
    attempt = turn(1).write("count:0", "one", changes)
    assert attempt.parts > 7
    assert turn(1).commit([attempt]) is Status.OPEN
    left = list(turn(2).fold("count:0", attempt.attempt_id))
    assert left == list(range(attempt.parts))[::-1]
    assert values(turn(2)) == changes
    asked = [b"long", b"nothing", b"long", *changes]
    assert turn(2).read("count:0", asked) == [changes.get(field, b"") for field in asked]
    assert not raw.keys("*attempt*")


def test_no_part_has_more_fields_or_bytes_than_one_call_may_move(state: TopologyState, raw: Any) -> None:
    """250 fields and 128 KiB, whatever the values. A call that moves more of them would hold up the server."""
    rng = random.Random(3)
    sizes = [1] * 700 + [rng.choice([1, 100, 3_000, 40_000, 100_000, 200_000, 1 << 20]) for _ in range(60)]
    changes = {b"%d" % number: b"x" * size for number, size in enumerate(sizes)}
    changes[b"k" * MAX_FIELD_BYTES] = b"x" * MAX_VALUE_BYTES
    attempt = turns(state)(1).write("count:0", "one", changes)
    ((key,),) = [raw.keys("*state_attempt:*")]
    found: list[dict[bytes, bytes]] = []
    for number in range(attempt.parts):
        part = dict(changes_in(raw.hget(key, str(number))))
        size = sum(len(field) + len(value) for field, value in part.items())
        assert 0 < len(part) <= 250 and size <= 128 << 10, (number, len(part), size)
        found.append(part)
    assert {field: value for part in state_pieces.whole(found) for field, value in part.items()} == changes


LENGTHS = (0, 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, 2 * PIECE_BYTES + 1, MAX_VALUE_BYTES)


@pytest.mark.parametrize("before", LENGTHS)
def test_a_value_of_any_length_replaces_one_of_any_other(
    client: Client, state: TopologyState, raw: Any, before: int
) -> None:
    """Whether its length before is known or not. No piece of it stays, and sizes are those of the values."""
    turn, fields = turns(state), [b"%d" % number for number in range(2 * len(LENGTHS))]
    commit(turn(1), dict.fromkeys(fields, b"x" * before))
    turn(2).load("count:0")
    changes = {field: b"y" * LENGTHS[at // 2] for at, field in enumerate(fields)}
    attempt = turn(2).write("count:0", "one", changes, dict.fromkeys(fields[::2], before))
    assert turn(2).commit([attempt]) is Status.OPEN
    assert turn(3).load("count:0") == attempt.attempt_id
    assert turn(3).read("count:0", fields) == list(changes.values())
    left = {field: value for field, value in changes.items() if value}
    assert values(turn(3)) == left
    size = sum(len(field) + len(value) for field, value in left.items())
    assert topology_sizes.read(client, "app") == [TaskSize("words", "count", 0, size, len(left))]
    pieces = sum(-(-len(value) // PIECE_BYTES) for value in left.values())
    assert raw.hlen("acker:{app}:state_values:words:count:0") == pieces, "and nothing else is left"
    assert state.empty() == Emptied(len(left), size)


def test_a_value_that_lacks_a_piece_isnt_there(state: TopologyState, raw: Any) -> None:
    """The next run raises StateLostError once, and goes on with the others."""
    commit(turns(state)(1), {b"long": b"x" * MAX_VALUE_BYTES, b"short": b"y"})
    state.turn(1, 2).load("count:0")
    raw.hdel("acker:{app}:state_values:words:count:0", b"\0\3long")
    with pytest.raises(StateLostError, match="1 of 19 fields of task count:0 are gone"):
        state.open({})
    epoch, _ = state.open({})
    turn = state.turn(epoch, 1)
    turn.load("count:0")
    assert turn.read("count:0", [b"long", b"short"]) == [b"", b"y"] and values(turn) == {b"short": b"y"}


def test_a_value_with_pieces_of_two_turns_isnt_there_and_a_new_one_replaces_all_of_it(
    client: Client, state: TopologyState, raw: Any
) -> None:
    """An attempt that is lost behind the first part of its fold leaves pieces of the value before."""
    commit(turns(state)(1), {b"long": b"x" * 300_000, b"short": b"y"})
    turn = state.turn(1, 2)
    turn.load("count:0")
    attempt = turn.write("count:0", "two", {b"long": b"z" * 300_000})
    assert turn.commit([attempt]) is Status.OPEN
    assert next(state.turn(1, 3).fold("count:0", attempt.attempt_id)) > 0
    raw.delete(f"acker:{{app}}:state_attempt:words:count:0:{attempt.attempt_id}")
    with pytest.raises(StateLostError, match="the last changes of task count:0 are gone"):
        state.open({})
    turn = state.turn(state.open({})[0], 1)
    turn.load("count:0")
    assert turn.read("count:0", [b"long"]) == [b""] and values(turn) == {b"short": b"y"}
    assert turn.commit([turn.write("count:0", "new", {b"long": b"new"}, {b"long": 0})]) is Status.OPEN
    turn = state.turn(turn.epoch, 2)
    turn.load("count:0")
    assert values(turn) == {b"short": b"y", b"long": b"new"}
    assert topology_sizes.read(client, "app") == [TaskSize("words", "count", 0, 13, 2)]
    assert raw.hlen("acker:{app}:state_values:words:count:0") == 2


def test_each_step_of_a_scan_has_at_most_twice_as_many_fields_as_the_one_before(
    state: TopologyState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ones may have short values by chance, and the others long ones."""
    commit(turns(state)(1), {b"%d" % number: b"x" for number in range(2000)})
    state.turn(1, 2).load("count:0")
    asked: list[int] = []
    pipeline = Client.pipeline

    def noting(self: Client, commands: Any, **options: Any) -> Any:
        asked.extend(command[4] for command in commands if command[0] == "HSCAN")
        return pipeline(self, commands, **options)

    monkeypatch.setattr(Client, "pipeline", noting)
    assert len(values(state.turn(1, 2))) == 2000
    assert asked[:6] == [10, 20, 40, 80, 160, 250] and set(asked[5:]) == {250}


def changes_in(part: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Fields and values of a part as it is stored."""
    words, at = [], 0
    while at < len(part):
        (length,) = struct.unpack_from(">I", part, at)
        words.append(part[at + 4 : at + 4 + length])
        at += 4 + length
    return zip(words[::2], words[1::2], strict=True)
