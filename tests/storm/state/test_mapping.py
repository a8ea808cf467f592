"""State of a task as a mapping: read when it is asked for, written if it changed, and valid while its attempt counts."""

import copy
import pickle
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import fakeredis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_redis import InvalidTopologyError
from acker_redis.client.client import Client
from acker_redis.store.topology_state import Attempt, Status, TopologyState
from acker_redis.storm.state import mapping
from acker_redis.storm.state.codec import decode_key, decode_value, encode_key, encode_value, key_of, with_key
from acker_redis.storm.state.mapping import TaskState

KEYS = st.one_of(
    st.text(max_size=3), st.integers(-3, 3), st.booleans(), st.floats(allow_nan=False), st.binary(max_size=2), st.none()
)


class Lab:
    """A topology's state, and the turns that bolts work in."""

    def __init__(self) -> None:
        self.state = TopologyState(Client(fakeredis.FakeRedis()), "app", "words")
        self.epoch, _ = self.state.open({})
        self.number, self.names = 0, 0
        self.attempt: Attempt | None = None

    def begin(self, of: TaskState) -> TaskState:
        """A task begins in the next turn."""
        of.begin(self.state.turn(self.epoch, self.number + 1))
        return of

    def end(self, of: TaskState) -> Attempt | None:
        self.names += 1
        self.attempt = of.end(f"x{self.names}")
        return self.attempt

    def commit(self) -> None:
        self.number += 1
        named = [] if self.attempt is None else [self.attempt]
        assert self.state.turn(self.epoch, self.number).commit(named) is Status.OPEN
        self.attempt = None

    def close(self) -> None:
        self.number += 1
        assert self.state.turn(self.epoch, self.number).close()
        self.attempt = None

    def committed(self) -> dict[Any, Any]:
        """What another worker reads in the next turn."""
        return dict(self.begin(task_state()))


def task_state() -> TaskState:
    return TaskState("count", "count:0")


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The fields that were read from the server."""
    from acker_redis.store.topology_state import StateTurn

    found: list[Any] = []
    read = StateTurn.read

    def noted(self: StateTurn, task: str, fields: Any) -> Any:
        found.extend(fields)
        return read(self, task, fields)

    monkeypatch.setattr(StateTurn, "read", noted)
    yield found


@given(st.tuples(KEYS, KEYS) | KEYS, KEYS)
@settings(max_examples=200, deadline=None)
def test_keys_are_equal_where_a_dict_takes_them_for_equal(one: Any, other: Any) -> None:
    assert decode_key(encode_key(one)) == one
    assert (encode_key(one) == encode_key(other)) == (one == other)


@pytest.mark.parametrize("key", [object(), frozenset(), ("a", object()), b"x" * 70_000])
def test_other_keys_are_refused_where_they_are_set(lab: Lab, key: Any) -> None:
    state = lab.begin(task_state())
    with pytest.raises(TypeError, match="Use"):
        state[key] = 1
    assert len(state) == 0


OPERATORS: dict[str, Callable[[Any, int], Any]] = {
    "set": lambda of, key: of.__setitem__(key, [key]),
    "get": lambda of, key: of.get(key),
    "del": lambda of, key: of.__delitem__(key),
    "append": lambda of, key: of[key].append(key),
    "len": lambda of, key: len(of),
    "iter": lambda of, key: sorted(of, key=str),
    "in": lambda of, key: key in of,
    "pop": lambda of, key: of.pop(key, None),
    "clear": lambda of, key: of.clear(),
    "copy": lambda of, key: of.copy(),
    "or": lambda of, key: of | {key: [1]},
    "ror": lambda of, key: {key: [1], 7: [2]} | of,
    "ior": lambda of, key: sorted(of.__ior__({key: [1], 7: [2]}), key=str),
    "setdefault": lambda of, key: of.setdefault(key, []).append(1),
    "update": lambda of, key: of.update([(key, [key]), (key + 1, [])], **{"text": [3]}),
    "popitem": lambda of, key: of.popitem() if len(of) < 2 else len(of),  # its order is no promise
    "items": lambda of, key: sorted(of.items(), key=str),
    "values": lambda of, key: sorted(map(str, of.values())),
    "eq": lambda of, key: of == {key: [key]},
    "bool": lambda of, key: bool(of),
    "pickle": lambda of, key: pickle.loads(pickle.dumps(of)) == dict(of),
    "deepcopy": lambda of, key: type(copy.deepcopy(of)),
    "grows": lambda of, key: len([of.setdefault(f"new{key}", []) for _ in of]),
    "shrinks": lambda of, key: [of.pop(max(of, key=str)) for one in of],
    "changes": lambda of, key: len([of[one].append(key) for one in of]),
}
OPERATIONS = st.lists(st.tuples(st.sampled_from(sorted(OPERATORS)), st.integers(0, 5)), max_size=12)


@given(st.lists(st.tuples(OPERATIONS, st.sampled_from(["commit", "close", "dies", "other"])), max_size=6))
@settings(max_examples=60, deadline=None)
def test_a_state_is_a_dict_at_the_committed_turns(turns: list[Any]) -> None:
    """A worker keeps its state from turn to turn; the turn may be closed, the execution die, or another worker's be named."""
    lab, kept, oracle = Lab(), task_state(), dict[Any, Any]()
    for operations, end in turns:
        working = {key: list(value) for key, value in oracle.items()}
        lab.begin(kept)
        for operation, key in operations:
            apply(operation, key, kept, working)
        if end == "dies":
            continue
        lab.end(kept)
        if end == "other":
            other = lab.begin(task_state())
            other[9] = working[9] = [len(oracle)]
            for key in set(working) ^ {9}:
                del working[key]
            for key in set(other) - {9}:
                del other[key]
            lab.end(other)
        if end == "close":
            lab.close()
        else:
            lab.commit()
            oracle = working
        assert lab.committed() == oracle
    assert dict(lab.begin(kept)) == oracle


def apply(operation: str, key: int, state: MutableMapping[Any, Any], oracle: dict[Any, Any]) -> None:
    """Do the same to both."""
    answers: list[Any] = []
    for of in (state, oracle):
        try:
            answers.append(OPERATORS[operation](of, key))
        except (KeyError, RuntimeError) as exc:
            answers.append(type(exc))
    assert answers[0] == answers[1]


def test_only_what_is_asked_for_is_read_and_once(lab: Lab, reads: list[Any]) -> None:
    state = lab.begin(task_state())
    state.update({f"k{number}": number for number in range(20)})
    lab.end(state)
    lab.commit()
    lab.begin(state)
    assert state["k3"] == 3 and not reads, "the worker's attempt is the one that counts"
    lab.end(state)
    lab.commit()
    other = lab.begin(task_state())
    assert (other["k1"], other.get("nothing"), other["k1"], "nothing" in other) == (1, None, 1, False)
    assert reads == [b"sk1", b"snothing"]


def test_many_misses_read_all(lab: Lab, reads: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "MISSES", 5)
    state = lab.begin(task_state())
    state.update({number: number for number in range(30)})
    lab.end(state)
    lab.commit()
    other = lab.begin(task_state())
    assert [other[number] for number in range(30)] == list(range(30))
    assert len(reads) <= 10 + 1, "4 one by one; at 5 misses 25 are too few for the 30 that there are"
    assert other.get("nothing") is None


def test_only_changes_are_written(lab: Lab) -> None:
    state = lab.begin(task_state())
    state["a"], state["b"], state["list"] = 1, 2, [1]
    assert lab.end(state) is not None
    lab.commit()
    lab.begin(state)
    assert state["list"] == [1] and state["b"] == 2 and "new" not in state
    state["a"], state["new"] = 1, None
    del state["new"]
    assert lab.end(state) is None, "nothing changed"
    lab.commit()
    lab.begin(state)
    state["list"].append(2)
    assert lab.end(state) is not None
    lab.commit()
    assert lab.committed() == {"a": 1, "b": 2, "list": [1, 2]}


def test_a_worker_forgets_more_than_it_may_keep(lab: Lab, reads: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "KEPT_BYTES", 10)
    state = lab.begin(task_state())
    state["a"] = "x" * 20
    lab.end(state)
    lab.commit()
    assert lab.begin(state)["a"] == "x" * 20 and reads == [b"sa"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (lambda: None, "can't keep its value for 'k'"),
        (b"x" * (1 << 20), "a value of 1,048,5.. bytes for 'k'"),
    ],
)
def test_values_that_cant_be_kept_are_refused_at_the_end_of_the_turn(lab: Lab, value: Any, text: str) -> None:
    state = lab.begin(task_state())
    state["k"] = value
    with pytest.raises(InvalidTopologyError, match=text):
        lab.end(state)
    assert lab.committed() == {}


@given(KEYS | st.tuples(KEYS, st.tuples(KEYS, KEYS)))
@settings(max_examples=200, deadline=None)
def test_a_value_keeps_the_types_of_its_keys_numbers(key: Any) -> None:
    data = with_key(encode_value([1], key, "count"), key)
    assert repr(key_of(encode_key(key), data)) == repr(key) and decode_value(data) == [1]


def test_keys_that_are_read_have_the_types_with_which_they_were_set(lab: Lab) -> None:
    keys = [1, 2.0, True, ("a", 3.0), -0.0, "x"]
    state = lab.begin(task_state())
    for key in keys[1:]:
        state[key] = [key]
    lab.end(state)
    lab.commit()
    again = lab.begin(task_state())
    assert sorted(map(repr, again)) == sorted(map(repr, keys[1:]))
    assert again[2] == [2.0] and again[True] == [True], "equal keys are one"


def test_floats_of_numpy_are_keys_as_pythons_are() -> None:
    assert encode_key(np.float64(1.5)) == encode_key(1.5)
    assert decode_key(encode_key(np.float64(97.5))) == 97.5
    assert encode_key(np.float64(2)) == encode_key(2)
