"""What decides in which task the state of a key is: number of tasks, groupings, and the formula of fields groupings."""

import json
from collections.abc import Mapping

from acker_redis.storm.components.holding import HoldingBolt
from acker_redis.storm.components.stateful import StatefulBolt
from acker_redis.storm.definition.graph import Component, Graph

FORMULA = 1
"""Number of the formula by which a fields grouping chooses tasks."""


def has_state(component: Component) -> bool:
    """Return True if a component is a bolt with state."""
    return issubclass(_class_of(component), StatefulBolt)


def holds_tuples(component: Component) -> bool:
    """Return True if a component is a bolt that holds tuples for batches or windows."""
    return issubclass(_class_of(component), HoldingBolt)


def states_of_task(component: Component) -> int:
    """Return the number of states that each task of a component keeps: one for itself, and one for what it holds."""
    return has_state(component) + holds_tuples(component)


def _class_of(component: Component) -> type:
    maker = component.maker
    return maker if isinstance(maker, type) else type(maker)


def bolts_with_state(graph: Graph) -> list[Component]:
    """List the bolts with state. Components that stand for sinks have none."""
    return [bolt for bolt in graph.bolts if bolt.maker is not None and has_state(bolt)]


def shapes_of(graph: Graph) -> Mapping[str, str]:
    """Describe the tasks of each bolt with state, as JSON."""
    return {bolt.name: shape_of(bolt, bolt.tasks) for bolt in bolts_with_state(graph)}


def shape_of(bolt: Component, tasks: int | list[int]) -> str:
    """Describe the tasks of a bolt. Several numbers of tasks stand for a state that is being moved."""
    groupings = sorted({str(subscription.grouping) for subscription in bolt.inputs})
    return json.dumps({"tasks": tasks, "groupings": groupings, "formula": FORMULA})
