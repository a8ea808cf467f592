"""State of a topology that is stopped: a check that it is, and its deletion."""

from acker_redis.acker import Acker, app_of
from acker_redis.errors import BadConfigError
from acker_redis.ledger.app import App
from acker_redis.model.keys import StateKeys
from acker_redis.store import topology_counts, topology_sizes
from acker_redis.store.topology_counts import RUNNING
from acker_redis.store.topology_state import Emptied


def check_stopped(app: App, topology: str, verb: str) -> None:
    """Check that a topology doesn't run.

    Raises:
        BadConfigError: it runs.
    """
    counts = topology_counts.read(app.client, app.config.app, topology)
    if counts is not None and counts.state == RUNNING:
        raise BadConfigError(
            f"Topology {topology!r} runs (run {counts.run_id!r}). Its turns would change what you {verb}. Stop it before you "
            f"{verb} its state."
        )


def empty(topology: str, acker: Acker, bolt: str | None = None) -> Emptied:
    """Delete the state of a topology, or of one bolt, in one step. Its next run begins without it, and may have other tasks.

    Raises:
        BadConfigError: the topology runs.
        StateLostError: the server lost writes of the last run, or may have. Nothing was deleted. The next call deletes.
    """
    app = app_of(acker)
    check_stopped(app, topology, "empty")
    state = app.topology_state(topology)
    if bolt is None:
        return state.empty()
    sizes = [size for size in topology_sizes.read(app.client, app.config.app, topology) if size.component == bolt]
    own = StateKeys.task(bolt, 0).removesuffix("0")
    epoch, _ = state.open({})
    state.forget_tasks(epoch, lambda task: task.startswith(own), bolt)
    state.end(epoch, 0)
    return Emptied(sum(size.keys or 0 for size in sizes), sum(size.bytes for size in sizes))
