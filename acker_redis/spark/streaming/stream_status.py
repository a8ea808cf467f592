"""Status of a stream, and its form in Redis."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from acker_redis.spout.state import Cause, SpoutCounts
from acker_redis.store.outages import Outage, SetAside


@dataclass(frozen=True)
class StreamStatus:
    """Status of a stream at one moment.

    Attributes:
        batch_id: number of the last micro-batch, in this process or before; None: none yet.
        batches: number of micro-batches that ended since the query was started in this process.
        counts: counters of emissions and outcomes since then.
        in_flight: number of messages whose roots are open.
        parked: number of messages that left their micro-batch and are not done, by reason and last component of their last
            attempt. Reason "" means in flight for the first time. Reason "queued" means waiting for an earlier message
            with the same id.
        oldest_secs: time for which the oldest of them has been parked, in seconds.
        completed_offsets: partition -> first offset that is not known to be done; see `Acker.completed_offsets`.
        commit_problem: why offsets could not be committed to the `kafka_group` the last time; None: they could, or there is
            no group.
        is_full: whether a micro-batch waits because more than `max_parked` messages are not done, or `max_spout_pending` are
            in flight.
        outages: operators and sinks that messages wait for, because something is unreachable; the longest outage first.
        set_aside: operators for which parked messages are set aside: each of them failed there in `max_attempts` attempts
            and for an hour, and the operator has processed no other message. They are emitted again once it has, and at the
            next start.
        error: error that ended the stream, in one line. The next micro-batch or `drain` raises it. None: no error.
    """

    batch_id: int | None = None
    batches: int = 0
    counts: SpoutCounts = field(default_factory=SpoutCounts)
    in_flight: int = 0
    parked: Mapping[Cause, int] = field(default_factory=dict)
    oldest_secs: float = 0.0
    completed_offsets: Mapping[str, int] = field(default_factory=dict)
    is_full: bool = False
    commit_problem: str | None = None
    outages: Sequence[Outage] = ()
    set_aside: Sequence[SetAside] = ()
    error: str | None = None


def to_json(status: StreamStatus) -> str:
    """Convert a status to JSON."""
    parked = [[*cause, number] for cause, number in status.parked.items()]
    return json.dumps(asdict(status) | {"parked": parked})


def from_json(text: str) -> StreamStatus:
    """Read a status from JSON. Fields of other versions are left out."""
    values = json.loads(text)
    counts = SpoutCounts(**_known(SpoutCounts, values["counts"]))
    parked = {(reason, component): number for reason, component, number in values["parked"]}
    outages = tuple(Outage(*row) for row in values.get("outages", ()))
    set_aside = tuple(SetAside(*row) for row in values.get("set_aside", ()))
    known = _known(StreamStatus, values)
    return StreamStatus(
        **known | {"counts": counts, "parked": parked, "outages": outages, "set_aside": set_aside},
    )


def _known(kind: type[SpoutCounts | StreamStatus], values: dict[str, Any]) -> dict[str, Any]:
    return {one.name: values[one.name] for one in fields(kind) if one.name in values}
