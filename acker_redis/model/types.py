"""Values that the public API returns."""

from typing import Literal, NamedTuple, TypeAlias

MAX_PAYLOAD_BYTES = 1 << 20
"""Maximum size of a message kept in Redis, for replay or with a dead letter."""

LATE_TICKS, LATE_MS = 2, 2000
"""Rotation is late if a shard has not ticked for LATE_TICKS tick times, and not for one tick time plus LATE_MS milliseconds.
The reports have the same numbers in lua/lib/lateness.lua."""


class Applied(NamedTuple):
    """Result of a batch.

    Attributes:
        applied: number of root updates that changed the ledger, after combining equal roots.
        duplicate: True if some or all of the batch was skipped, because it was applied before under its idempotency key, or
            under the keys of its records.
    """

    applied: int
    duplicate: bool


State: TypeAlias = Literal["waiting", "owned", "failed", "closed"]


class LedgerRoot(NamedTuple):
    """Root that the ledger holds.

    Attributes:
        root: root id, signed 64-bit.
        val: current ack val, signed. The root completes when it is 0.
        spout_id: owner, or None until the init arrives.
        state: `waiting` for its init; `owned` and pending; `failed` and waiting for its init; or `closed`: it failed and its
            outcome was written, in a stream or delivered. A closed root never changes. It is removed when its block expires.
        age_ms: time since the first message, by the server's clock, in milliseconds.
        last_component: component that updated the root last, if components are named.
        ticks_left: ticks until its block expires without further updates: num_buckets in the nursery, 0 on death row.
    """

    root: int
    val: int
    spout_id: int | None
    state: State
    age_ms: int
    last_component: str | None
    ticks_left: int


class Rotated(NamedTuple):
    """Result of one `rotate()`, over all shards.

    Attributes:
        ticked: number of shards whose buckets turned.
        timed_out: number of owned roots that expired.
        orphaned: number of roots without owner that expired silently.
        draining: number of shards whose death row is not empty yet. The next call continues.
        due_in_ms: time until the next tick is due on some shard, in milliseconds.
    """

    ticked: int
    timed_out: int
    orphaned: int
    draining: int
    due_in_ms: int


class Stats(NamedTuple):
    """Counters of one app, over all shards, since the shards were created.

    Attributes:
        pending: owned roots without outcome now, exact.
        unowned: roots that wait for their init now.
        closed: failed roots kept now, so that their later updates count as late.
        oldest_age_ms: age of a pending root among those that entered the nursery longest ago, in milliseconds. None if
            no root is pending, or if settled roots hide it that are more than the reads find.
        inits: roots initialised.
        acks: ack updates applied, after combining equal roots, without late ones.
        fails: fail updates applied, without late ones.
        acked: roots completed.
        failed: roots failed by an operator or sink, or released.
        timed_out: owned roots that expired.
        orphaned: roots that expired without owner. Either their init was lost, or an ack or fail arrived after the root had
            left the ledger (acked, timed out, or closed and gone). Such an update looks like one before the init.
        duplicate_inits: ignored inits of roots that already had an owner.
        deduplicated: ignored calls whose idempotency key was seen before, and ignored acks whose record key was.
        late_updates: acks, fails and `reset_timeout` that changed nothing. Their root has failed and its block still exists
            (at least message_timeout_secs), or was acked and other roots of its block still exist. Also counts
            `reset_timeout` of unknown roots.
        released: failed roots on which no work failed. A run released them, because they wait for its whole output, are left
            by a run that is over, or because it ended. Or a person abandoned a run that is over.
        unconfirmed_outcomes: stream entries of outcomes that are not confirmed yet.
        last_rotation_ms: milliseconds since the oldest of the shards' last ticks. Grows if no rotator runs.
        tick_ms: time between two ticks, in milliseconds.
    """

    pending: int
    unowned: int
    closed: int
    oldest_age_ms: int | None
    inits: int
    acks: int
    fails: int
    acked: int
    failed: int
    timed_out: int
    orphaned: int
    duplicate_inits: int
    deduplicated: int
    late_updates: int
    released: int
    unconfirmed_outcomes: int
    last_rotation_ms: int
    tick_ms: int

    @property
    def rotation_is_late(self) -> bool:
        """True if the app seems to have no rotator, because a tick is long overdue."""
        return self.last_rotation_ms > max(LATE_TICKS * self.tick_ms, self.tick_ms + LATE_MS)
