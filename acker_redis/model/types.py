"""The values that cross the library's boundary."""

from typing import Literal, NamedTuple, TypeAlias

MAX_PAYLOAD_BYTES = 1 << 20
"""Size of the longest message that is kept in Redis, for replay or with a dead letter."""

LATE_TICKS, LATE_MS = 2, 2000
"""Rotation is late when some shard has not ticked for so many tick times, and not for one tick time and so many milliseconds.
The reports have the same numbers in lua/lib/lateness.lua."""


class Applied(NamedTuple):
    """What a batch did.

    Attributes:
        applied: root updates that changed the ledger, after combining equal roots.
        duplicate: whether some or all of the batch had been applied before under its idempotency key and was left out now.
    """

    applied: int
    duplicate: bool


State: TypeAlias = Literal["waiting", "owned", "failed", "closed"]


class LedgerRoot(NamedTuple):
    """A root that the ledger holds.

    Attributes:
        root: signed 64-bit root id.
        val: ack value now, signed; a tree completes when it is 0.
        spout_id: owner, or None while the init has not arrived.
        state: `waiting` for its init; `owned` and pending; `failed` and waiting for its init; `closed`: it failed and its
            outcome is written, in a stream or delivered. A closed root changes no more, and is removed when its block expires.
        age_ms: since the first message, by the server's clock.
        last_component: the component that touched the root last, where components are named.
        ticks_left: ticks until its block expires if nothing happens: num_buckets in the nursery, 0 on death row.
    """

    root: int
    val: int
    spout_id: int | None
    state: State
    age_ms: int
    last_component: str | None
    ticks_left: int


class Rotated(NamedTuple):
    """What one `rotate()` did, over all shards.

    Attributes:
        ticked: shards whose buckets turned.
        timed_out: owned roots that expired.
        orphaned: roots without owner that expired silently.
        draining: shards whose death row is not empty yet; the next call goes on.
        due_in_ms: until the next tick is due on some shard.
    """

    ticked: int
    timed_out: int
    orphaned: int
    draining: int
    due_in_ms: int


class Stats(NamedTuple):
    """Counters of one app, over all shards, since the shards were created.

    Attributes:
        pending: owned roots without outcome now; exact.
        unowned: roots that wait for their init now.
        closed: failed roots that are kept now, so that later updates of them count as late.
        oldest_age_ms: age of a pending root among those longest without being put into the nursery; None if none, or if
            more than a bounded number of settled cohorts hides it.
        inits: roots initialised.
        acks: ack updates applied, after combining equal roots; late ones are not among them.
        fails: fail updates applied; late ones are not among them.
        acked: roots completed.
        failed: roots failed by an operator or sink.
        timed_out: owned roots that expired.
        orphaned: roots that expired without owner: their init was lost, or they were made by an ack or fail of a root
            that had left the ledger (acked, timed out, or closed and gone), which looks like one that precedes its init.
        duplicate_inits: inits of roots that had their owner; ignored.
        deduplicated: calls whose idempotency key was seen before, ignored.
        late_updates: acks, fails and `reset_timeout` of roots that have failed already, as long as their block is there
            (at least message_timeout_secs), or were acked, as long as other roots of their block are; and `reset_timeout`
            of roots the ledger does not know. They changed nothing.
        unconfirmed_outcomes: stream entries of outcomes that were not confirmed yet.
        last_rotation_ms: milliseconds since the shard that ticked longest ago did; a dead rotator shows here.
        tick_ms: time between two ticks.
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
    unconfirmed_outcomes: int
    last_rotation_ms: int
    tick_ms: int

    @property
    def rotation_is_late(self) -> bool:
        """Whether the app seems to have no rotator: a tick is long overdue."""
        return self.last_rotation_ms > max(LATE_TICKS * self.tick_ms, self.tick_ms + LATE_MS)
