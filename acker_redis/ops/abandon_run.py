"""Abandon a run that is dead: the roots it left pending fail at once instead of timing out.

The ledger knows a root's spout id, not its run. But a lane has one spout at a time, and it is known which run had it last.
So where that run is over, all roots pending in the lane are this run's, or those of a run before it.
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
        run_id: of the run.
        lanes: that it had last, and no other run since; empty: none, so its roots are not known.
        held: lane -> run and process of a spout that has it now; then roots were not looked for.
        roots: pending in these lanes.
        spout_ids: that own them -> number of roots.
    """

    run_id: str
    lanes: tuple[int, ...]
    held: dict[int, str] = field(default_factory=dict)
    roots: Int64Array = field(default_factory=lambda: np.array([], np.int64))
    spout_ids: Counter[int] = field(default_factory=Counter)


def preview(
    client: Client, config: AckerConfig, run_id: str, progress: Callable[[int], object] | None = None
) -> AbandonedRun:
    """Find the roots that a run left pending: go through the app's ledgers, in steps that hold the server for a moment each.

    Args:
        client: of the server.
        config: of the app.
        run_id: of a run that is over.
        progress: called with how many blocks were looked at since it was called last.

    Raises:
        LedgerLostError, DamagedDataError: as `Acker.stats`.
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
    """Fail these roots, and confirm the outcomes that wait in the run's lanes; returns how many roots failed.

    The note of the run's end is deleted. Its messages don't become dead letters: only the run knew them. Messages that it
    kept in Redis stay for their week, and its run id stays taken. Cut short, the call can be repeated.

    Args:
        client: of the server.
        config: of the app.
        left: as `preview` returns it.
        progress: called with how many roots failed since it was called last.

    Raises:
        BadConfigError: another run took one of the lanes since, and may be over, too; its roots are not touched.
        AckerError: as the server answered; a part may be done.
    """
    last = lane_leases.last_runs(client, config.app)  # the question before this may have waited for long
    if taken := [lane for lane in left.lanes if last.get(lane) != left.run_id]:
        raise BadConfigError(
            f"another run has had lane {', '.join(map(str, taken))} since run {left.run_id!r} was looked at: nothing was "
            "abandoned; look again"
        )
    acker = Acker(client, config, create=False)
    leases = [app_of(acker).lease(lane=lane, run_id=left.run_id) for lane in left.lanes]
    failed = 0
    try:
        for lease in leases:  # no spout begins meanwhile, whose outcomes would be taken
            lease.acquire()
        for at in range(0, len(left.roots), _ROOTS_PER_STEP):
            part = left.roots[at : at + _ROOTS_PER_STEP]
            failed += acker.fail_many(part, reason=REASON).applied
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
