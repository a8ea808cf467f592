"""Dead letters of runs with output `whole`, once such a run has written its output."""

from acker_redis.client.client import Client
from acker_redis.model.config import AckerConfig
from acker_redis.store import lane_leases, unwritten_runs
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.dead_letters import DeadLetters


def output_written(client: Client, config: AckerConfig, run_id: str, spout_id: int) -> int:
    """Keep the letters of a run that has written its output, and remove those of earlier runs that have not.

    Earlier runs are those of this spout_id that are over. The run has processed all of their messages, so it has letters of
    its own for those that still fail. If this is interrupted, the next run that writes its output does the rest.

    Returns the number of letters removed.
    """
    app = config.app
    runs = unwritten_runs.read(client, app)
    if runs.pop(run_id, None) is not None:
        unwritten_runs.forget(client, app, [run_id])
    # A run without messages holds no lane when it writes, so another one may have begun.
    holders = lane_leases.holders(client, app, range(config.lanes)).values()
    under_way = {holder.rpartition(" ")[0] for holder in holders}
    gone = {name: run for name, run in runs.items() if run.spout_id == spout_id and name not in under_way}
    if not gone:
        return 0
    letters = DeadLetters(client, app)
    since_ms = min(run.since_ms for run in gone.values())
    removed = letters.delete(
        letter.entry_id
        for letter in letters.scan(after=f"{since_ms - 1}-{2**64 - 1}")
        if isinstance(letter, DeadLetter) and letter.run_id in gone
    )
    unwritten_runs.forget(client, app, gone)
    return removed
