"""Move of the state of a topology that is stopped to another number of tasks.

The move is a turn of its own: all changes are written first, and one commit makes them count. Until the move is over, the
stored shape names the numbers of tasks before and after it, so that no run begins. A move that was interrupted is repeated.
"""

import json
import secrets
from collections.abc import Iterator
from typing import Any, NamedTuple

from acker_redis.acker import Acker, app_of
from acker_redis.errors import InvalidTopologyError
from acker_redis.model.keys import StateKeys
from acker_redis.store.topology_state import TopologyState, check
from acker_redis.storm.components.instances import make_instance
from acker_redis.storm.components.stateful import StatefulBolt
from acker_redis.storm.core.java_hash import task_index
from acker_redis.storm.definition.graph import Component, Graph
from acker_redis.storm.definition.groupings import Kind
from acker_redis.storm.state.codec import key_of
from acker_redis.storm.state.shapes import bolts_with_state, shape_of
from acker_redis.storm.state.stopped import check_stopped


class Moved(NamedTuple):
    """State of a bolt that was moved.

    Attributes:
        component: name of the bolt.
        tasks: number of tasks now.
        keys: number of keys.
        moved: number of those that are in another task now.
    """

    component: str
    tasks: int
    keys: int
    moved: int


def rescale(graph: Graph, acker: Acker) -> list[Moved]:
    """Move the state of each bolt whose number of tasks has changed.

    Raises:
        BadConfigError: the topology runs.
        InvalidTopologyError: a bolt's groupings don't decide where a key is, or a key isn't where they put it. Nothing was
            moved.
    """
    app = app_of(acker)
    check_stopped(app, graph.name, "move")
    stored, state = app.topology_state(graph.name).shapes(), app.topology_state(graph.name)
    changed = [
        bolt for bolt in bolts_with_state(graph) if stored.get(bolt.name) not in (None, shape_of(bolt, bolt.tasks))
    ]
    return [_Move(bolt, json.loads(stored[bolt.name]), graph.name, state).run() for bolt in changed]


def _ways_on(*, is_same: bool) -> str:
    number = "Keep the number of tasks" if is_same else "Use the groupings of before"
    return f"{number}, or start without state: `acker-redis topology empty-state`."


class _Move:
    """Move of one bolt's state."""

    def __init__(self, bolt: Component, stored: Any, topology: str, state: TopologyState) -> None:
        self._bolt, self._topology, self._state = bolt, topology, state
        tasks = stored["tasks"]
        self._numbers: list[int] = tasks if isinstance(tasks, list) else [tasks]
        self._instance: StatefulBolt = make_instance(bolt)
        self._has_own_keys = type(self._instance).state_key is not StatefulBolt.state_key
        counts = {
            len(grouping.field_names) if grouping.kind is Kind.FIELDS else 0
            for grouping in (subscription.grouping for subscription in bolt.inputs)
        }
        is_same = shape_of(bolt, tasks) == json.dumps(stored)
        if not is_same or len(counts) != 1 or 0 in counts:
            raise InvalidTopologyError(
                f"The state of the bolt {bolt.name!r} was written with {json.dumps(stored)}, and the bolt now has "
                f"{shape_of(bolt, bolt.tasks)}. Only the number of tasks may change, and every input needs a fields grouping, "
                f"all with as many fields. {_ways_on(is_same=is_same)}"
            )
        self._fields = counts.pop()

    def run(self) -> Moved:
        """Move it. A repeat after an interruption completes it."""
        bolt, state = self._bolt, self._state
        epoch, _ = state.open({})
        turn = state.turn(epoch, 1)
        changes: dict[int, dict[bytes, bytes]] = {}
        known: dict[int, dict[bytes, int]] = {}
        keys = moved = 0
        for place in range(max(self._numbers)):
            task = StateKeys.task(bolt.name, place)
            turn.load(task)
            for part in turn.read_all(task):
                for field, value, target in self._targets(part, place):
                    keys += 1
                    if target != place:
                        moved += 1
                        changes.setdefault(target, {})[field] = value
                        changes.setdefault(place, {})[field] = b""
                        known.setdefault(target, {})[field] = 0
                        known.setdefault(place, {})[field] = len(value)
        state.set_shape(bolt.name, shape_of(bolt, [*self._numbers, bolt.tasks]))
        name, attempts = secrets.token_hex(8), []
        for place, of in changes.items():
            task = StateKeys.task(bolt.name, place)
            turn.load(task)
            attempts.append(turn.write(task, name, of, known[place], is_move=True))
        check(turn.commit(attempts), self._topology, 1)
        for task, attempt_id, _ in attempts:  # no run would load a task that no longer exists
            for _ in turn.fold(task, attempt_id):
                pass
        gone = {StateKeys.task(bolt.name, place) for place in range(bolt.tasks, max(self._numbers))}
        state.forget_tasks(epoch, gone.__contains__)
        state.set_shape(bolt.name, shape_of(bolt, bolt.tasks))
        state.end(epoch, 1)
        return Moved(bolt.name, bolt.tasks, keys, moved)

    def _own(self, key: Any) -> Any:
        """Ask the bolt for the grouping value of a key."""
        try:
            return self._instance.state_key(key)
        except Exception as exc:
            raise InvalidTopologyError(
                f"state_key() of the bolt {self._bolt.name!r} raised {type(exc).__name__} for the key {key!r:.80}: {exc}. "
                "Nothing was moved. Correct it, and use no attributes that initialize() sets, because it isn't called here."
            ) from exc

    def _targets(self, part: dict[bytes, bytes], place: int) -> Iterator[tuple[bytes, bytes, int]]:
        for field, value in part.items():
            key = key_of(field, value)
            own = self._own(key)
            values = list(own) if self._fields > 1 and isinstance(own, tuple) else [own]
            is_guess = self._fields == 1 and isinstance(key, tuple) and not self._has_own_keys
            places = [task_index(values, tasks) for tasks in self._numbers]
            if is_guess or len(values) != self._fields or place not in places:
                raise InvalidTopologyError(
                    f"The key {key!r:.80} of the bolt {self._bolt.name!r} is in task {place}, and {own!r:.80} isn't known to "
                    "be the grouping value that put it there. Define state_key(), and return the grouping value of each key."
                )
            yield field, value, task_index(values, self._bolt.tasks)
