"""Bolts that hold tuples for batches or windows: what brings them to process the last ones."""

import logging

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm.components.batch_spout import BatchSpout
from acker_redis.storm.components.batching import BatchingBolt, TicklessBatchingBolt
from acker_redis.storm.components.windowed import WindowedBolt, ends_by_time, is_of_one, period_secs
from acker_redis.storm.definition import settings
from acker_redis.storm.definition.graph import Component, Graph
from acker_redis.storm.state.shapes import holds_tuples

log = logging.getLogger("acker_redis.storm")


def is_a(bolt: Component, kind: type) -> bool:
    """Return True if the tasks of a bolt are of this class."""
    return issubclass(bolt.maker if isinstance(bolt.maker, type) else type(bolt.maker), kind)


def tick_secs(graph: Graph, bolt: Component) -> float | None:
    """Return the time between two ticks of a bolt, in seconds. None: it has none."""
    secs: float | None = {**graph.config, **bolt.config}.get(settings.TICK_SECS)
    return secs


def timer_secs(graph: Graph, bolt: Component) -> float | None:
    """Return the time between two calls of a bolt for batches or windows, in seconds. None: it needs none."""
    if is_a(bolt, TicklessBatchingBolt):
        return float(bolt.maker.secs_between_batches)
    return period_secs(graph, bolt)


def is_timed(graph: Graph, bolt: Component) -> bool:
    """Return True if time alone brings a bolt to process the last tuples that it holds."""
    if is_a(bolt, BatchingBolt):
        return is_a(bolt, TicklessBatchingBolt) or tick_secs(graph, bolt) is not None
    return ends_by_time(graph, bolt)


def _holds_none(graph: Graph, bolt: Component) -> bool:
    """Return True if each tuple is a batch or a window of its own, so that the bolt holds none behind a turn."""
    return bolt.maker.batch_size == 1 if is_a(bolt, BatchingBolt) else is_of_one(graph, bolt)


def check_rows_of_batches(graph: Graph, *, goes_on: bool) -> None:
    """Check that no bolt holds rows of a micro-batch until rows of the next one come, which waits for their messages.

    A bolt that has other inputs, too, or that gets tuples of other bolts, is only warned about.

    Args:
        graph: the topology.
        goes_on: True if the run goes on while the spouts emit nothing. Otherwise batches are processed then.

    Raises:
        InvalidTopologyError: there is such a bolt.
    """
    spouts = {spout.name for spout in graph.components.values() if is_a(spout, BatchSpout)}
    for bolt in filter(holds_tuples, graph.bolts):
        if _holds_none(graph, bolt):
            continue
        found = sorted(spouts & _upstream_of(graph, bolt))
        if not found or is_timed(graph, bolt) or not (goes_on or is_a(bolt, WindowedBolt)):
            continue
        if {subscription.source for subscription in bolt.inputs} == {found[0]}:
            raise InvalidTopologyError(
                f"The bolt {bolt.name!r} holds rows of BatchSpout {found[0]!r} until rows of its next batch come. Spark "
                "begins that batch only once these rows are done, so their messages would time out. Use ticks, a "
                "TicklessBatchingBolt, or windows by the time of arrival."
            )
        log.warning(
            "bolt may hold rows of a micro-batch until rows of the next one come, their messages time out bolt=%r spouts=%s",
            bolt.name, ",".join(found),
        )  # fmt: skip


def _upstream_of(graph: Graph, bolt: Component) -> set[str]:
    """Return the names of all components whose tuples reach a bolt."""
    found: set[str] = set()
    left = [bolt]
    while left:
        fresh = {subscription.source for subscription in left.pop().inputs} - found
        left += map(graph.components.__getitem__, fresh)
        found |= fresh
    return found
