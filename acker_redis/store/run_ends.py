"""End of the last run of each lane, so that people can tell an error from success later.

A run that holds a lane is `begun`. If no process holds its lane any more, the run was killed.
"""

import json
from dataclasses import asdict, dataclass
from typing import Literal

from acker_redis.client import server_info
from acker_redis.client.client import Client
from acker_redis.client.replies import as_dict
from acker_redis.errors import StoppedError
from acker_redis.model import keys
from acker_redis.model.interrupts import interrupt_behind

State = Literal["begun", "finished", "interrupted", "failed"]

TEXT_CHARS = 500
"""Number of characters kept of an error's text."""


@dataclass(frozen=True)
class End:
    """End of a run.

    Attributes:
        run_id: id of the run.
        spout_id: number of its spout.
        state: `begun`: the run continues, or was killed. `finished`: without error. `interrupted`: by Ctrl-C, a signal, or
            a stop of its query. `failed`: with an error.
        at_ms: time of the end by the server's clock, in milliseconds since 1970.
        error: text of the error, if the run failed.
        is_settled: True if the run left no root pending and no outcome unconfirmed.
        emission: number of an emission that runs, while the number of its messages is unknown. `at_ms` is its start. None:
            there is none.
        job: tag of that emission's jobs in Spark.
    """

    run_id: str
    spout_id: int
    state: State
    at_ms: int = 0
    error: str = ""
    is_settled: bool = False
    emission: int | None = None
    job: str = ""


def end_of(
    run_id: str, spout_id: int, error: BaseException | None, *, is_settled: bool, line: str | None = None
) -> End:
    """Describe the end of a run, from the error that ended it or None. `line` describes the error; None: its own text does."""
    if error is None:
        return End(run_id, spout_id, "finished", is_settled=is_settled)
    if isinstance(error, StoppedError) or interrupt_behind(error) is not None:
        return End(run_id, spout_id, "interrupted", is_settled=is_settled)
    text = f"{type(error).__name__}: {error}".partition("\n\tat ")[0] if line is None else line  # without Java's stack
    text = " ".join(text.split())[:TEXT_CHARS]  # people see it in a line
    return End(run_id, spout_id, "failed", 0, text.encode(errors="replace").decode(), is_settled)


def write(client: Client, app: str, lane: int, end: End) -> None:
    """Store the end of a lane's run, in place of the last run's."""
    (at_ms,) = client.ask(server_info.clocks_ms, [keys.ends(app)])
    client.pipeline([("HSET", keys.ends(app), lane, json.dumps(asdict(end) | {"at_ms": at_ms}))])


def read(client: Client, app: str) -> dict[int, End]:
    """Read the end of each lane's last run. Damaged ends are skipped; the lane's next run overwrites them."""
    (reply,) = client.pipeline([("HGETALL", keys.ends(app))])
    ends = {}
    for lane, text in as_dict(reply).items():
        try:
            ends[int(lane)] = End(**json.loads(text))
        except (ValueError, TypeError):
            continue
    return dict(sorted(ends.items()))


def forget(client: Client, app: str, run_id: str) -> None:
    """Remove the ends of a run."""
    lanes = [lane for lane, end in read(client, app).items() if end.run_id == run_id]
    if lanes:
        client.pipeline([("HDEL", keys.ends(app), *lanes)])
