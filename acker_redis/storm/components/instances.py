"""Objects of tasks: made from a component's class, or copied from its object."""

import copy
from typing import Any

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm.definition.graph import Component


def make_instance(component: Component) -> Any:
    """Make the object of one task: from a class, or as a copy of an object.

    Raises:
        InvalidTopologyError: the object can't be copied.
    """
    if isinstance(component.maker, type):
        return component.maker()
    try:
        return copy.deepcopy(component.maker)
    except Exception as exc:  # whatever a class's own code raises
        raise InvalidTopologyError(
            f"The object of component {component.name!r} can't be copied for its tasks. Pass its class, or open files and "
            f"connections in initialize(). The copy failed with: {exc!r}."
        ) from exc
