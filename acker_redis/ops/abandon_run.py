"""Abandon a dead run: fail the roots it left pending at once, instead of waiting for their timeout.

The ledger stores a root's spout id, not its run. But a lane has one spout at a time, and its last run is known. If that run
is over, all roots pending in the lane belong to it or to an earlier run.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from acker_redis.acker import Acker, app_of
from acker_redis.client.client import Client
from acker_redis.errors import BadConfigError
from acker_redis.ledger.inspection import Inspection
from acker_redis.ledger.shards import Shards
from acker_redis.model.arrays import Int64Array
from acker_redis.model.config import AckerConfig
from acker_redis.store import lane_leases, run_ends

REASON = "abandoned by the person on call"

_ROOTS_PER_STEP = 5000


@dataclass(frozen=True)
class AbandonedRun:
    """Roots that a run left pending.

    Attributes:
        run_id: id of the run.
        lanes: lanes whose last run this was. If there are none, its roots are unknown.
        held: run and process of the spout that holds a lane now, by lane. If there are any, roots were not searched.
        roots: roots pending in these lanes.
        spout_ids: number of these roots, by spout id of the owner.
    """

    run_id: str
    lanes: tuple[int, ...]
    held: dict[int, str] = field(default_factory=dict)
    roots: Int64Array = field(default_factory=lambda: np.array([], np.int64))
    spout_ids: Counter[int] = field(default_factory=Counter)


def preview(
    client: Client, config: AckerConfig, run_id: str, progress: Callable[[int], object] | None = None
) -> AbandonedRun:
    """Find the roots that a run left pending.

    This scans the app's ledgers in steps that block the server for a moment each.

    Args:
        client: client of the server.
        config: settings of the app.
        run_id: id of a run that is over.
        progress: callback with the number of blocks scanned since its last call.

    Raises:
        LedgerLostError, DamagedDataError: as for `Acker.stats`.
    """
    lanes = tuple(lane for lane, last in lane_leases.last_runs(client, config.app).items() if last == run_id)
    held = lane_leases.holders(client, config.app, lanes)
    if held or not lanes:
        return AbandonedRun(run_id, lanes, held)
    parts, spout_ids = [np.array([], np.int64)], Counter[int]()
    for looked_at, roots, of_spout_ids in Inspection(Shards(client, config, create=False)).each_pending():
        rows = np.isin(of_spout_ids % config.lanes, lanes)
        parts.append(roots[rows])
        spout_ids.update(of_spout_ids[rows].tolist())
        if progress is not None:
            progress(looked_at)
    return AbandonedRun(run_id, lanes, {}, np.unique(np.concatenate(parts)), spout_ids)


def abandon(
    client: Client, config: AckerConfig, left: AbandonedRun, progress: Callable[[int], object] | None = None
) -> int:
    """Fail these roots and confirm the outcomes that wait in the run's lanes. Return the number of roots failed.

    The record of the run's end is deleted. Its messages don't become dead letters, because only the run knew them. Messages
    that it kept in Redis stay for their week, and its run id stays used. You can repeat an interrupted call.

    Args:
        client: client of the server.
        config: settings of the app.
        left: result of `preview`.
        progress: callback with the number of roots failed since its last call.

    Raises:
        BadConfigError: if another run acquired one of the lanes since. It may be over, too, but its roots are not touched.
        AckerError: if the server refuses or fails. A part may be done.
    """
    last = lane_leases.last_runs(client, config.app)  # the confirmation before this may have waited for long
    if taken := [lane for lane in left.lanes if last.get(lane) != left.run_id]:
        raise BadConfigError(
            f"Another run acquired lane {', '.join(map(str, taken))} after the preview of run {left.run_id!r}. Nothing was "
            "abandoned. Check the run again."
        )
    acker = Acker(client, config, create=False)
    leases = [app_of(acker).lease(lane=lane, run_id=left.run_id) for lane in left.lanes]
    failed = 0
    try:
        for lease in leases:  # so that no spout starts meanwhile and loses its outcomes
            lease.acquire()
        for at in range(0, len(left.roots), _ROOTS_PER_STEP):
            part = left.roots[at : at + _ROOTS_PER_STEP]
            failed += app_of(acker).ledger.release(part, REASON).applied  # as the lane's next run would
            if progress is not None:
                progress(len(part))
        for lane in left.lanes:
            for spout_id in [spout_id for spout_id in left.spout_ids if spout_id % config.lanes == lane] or [lane]:
                while batches := acker.poll_batches(10_000, consumer=f"spout-{spout_id}", lane=lane, again=True):
                    acker.confirm_batches(batches)
        run_ends.forget(client, config.app, left.run_id)
    finally:
        for lease in leases:
            lease.release()
    return failed
