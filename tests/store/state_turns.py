"""Turns of a state, for tests of the store."""

from collections.abc import Callable

from acker_redis.store.topology_state import StateTurn, Status, TopologyState


def turns(state: TopologyState) -> Callable[[int], StateTurn]:
    epoch, _ = state.open({"count": "shape"})
    return lambda number: state.turn(epoch, number)


def values(turn: StateTurn, task: str = "count:0") -> dict[bytes, bytes]:
    return {field: value for part in turn.read_all(task) for field, value in part.items()}


def commit(turn: StateTurn, changes: dict[bytes, bytes], task: str = "count:0") -> None:
    turn.load(task)
    assert turn.commit([turn.write(task, "one", changes)]) is Status.OPEN
