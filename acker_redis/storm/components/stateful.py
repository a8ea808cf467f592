"""Bolts with state."""

import logging
from collections.abc import MutableMapping
from typing import Any

from acker_redis.storm.components.bolt import Bolt
from acker_redis.storm.definition.graph import Graph
from acker_redis.storm.definition.groupings import Kind

log = logging.getLogger("acker_redis.storm")

_RANDOM = (Kind.SHUFFLE, Kind.LOCAL_OR_SHUFFLE, Kind.NONE)
"""Groupings that send tuples of one key to any task."""


class StatefulBolt(Bolt):
    """Bolt whose `self.state` belongs to its task (Storm: IStatefulBolt).

    On Spark (`Topology.run`) the state is kept in Redis. It changes once per committed turn, and acks follow the commit. Keys
    are texts, numbers, bytes, None, or tuples of these. Values are pickled at the end of a turn, and have at most 1 MiB. They
    may change in place, and may hold tuples of the topology, a pending one under one key only. A replayed message changes the
    state again, as in Storm.

    In process the state is a dict in memory. A fresh copy after an exception keeps it, and the end of the run loses it. Acks
    aren't kept back, as Storm does until a checkpoint.

    Attributes:
        state: state of this task, a mapping. It is there before `initialize`.

    >>> class Count(StatefulBolt):
    ...     outputs = ["word", "n"]
    ...     def process(self, tup):
    ...         self.state[tup.values.word] = n = self.state.get(tup.values.word, 0) + 1
    ...         self.emit([tup.values.word, n])
    """

    state: MutableMapping[Any, Any]

    def state_key(self, key: Any) -> Any:
        """Return the grouping value that a key of the state belongs to.

        `acker-redis topology rescale` moves the key to the task that receives this value. With several fields, return a tuple
        of their values. The default is the key itself. Override it if a key isn't the value, such as `("seen", word)`.

        >>> def state_key(self, key):
        ...     return key[1] if isinstance(key, tuple) else key
        """
        return key


def warn_of_split_state(graph: Graph) -> None:
    """Log each bolt whose state of a key is split, because any of its tasks receives the key's tuples."""
    for bolt in graph.bolts:
        kind = bolt.maker if isinstance(bolt.maker, type) else type(bolt.maker)
        sources = [subscription.source for subscription in bolt.inputs if subscription.grouping.kind in _RANDOM]
        if sources and bolt.tasks > 1 and issubclass(kind, StatefulBolt):
            log.warning(
                "state of a key is split over tasks, subscribe with Grouping.fields component=%r tasks=%d inputs=%s",
                bolt.name, bolt.tasks, ",".join(sources),
            )  # fmt: skip
