"""The values that cross the library's boundary."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

MAX_PAYLOAD_BYTES = 1 << 20
"""Longest message that is kept in Redis, for replay or with a dead letter."""

LATE_TICKS, LATE_MS = 2, 2000
"""Nobody rotates an app, where some shard has not ticked for so many tick times, and for one tick and so long at least. The
reports have the same in lua/lib/lateness.lua."""


class Applied(NamedTuple):
    """What a batch did.

    Attributes:
        applied: root updates that changed the ledger, after combining equal roots.
        seen: whether some or all of the batch had been applied before under its token and was left out now.
    """

    applied: int
    seen: bool


@dataclass(eq=False)
class Receipt:
    """Where delivered outcomes came from: one stream entry, shared by its outcomes, or all entries of a pack.

    Of a pack it has the entries' fields, too, as they came; see `entries.times_of`.
    """

    stream: str
    entry_ids: list[bytes]
    fields: list[list[bytes]] = field(default_factory=list, repr=False)
    unconfirmed: set[int] = field(default_factory=set, repr=False)


class PackedOutcomes(NamedTuple):
    """Outcomes that are alike in all but root and age, from entries of one stream: for spouts that handle many at a time.

    Attributes:
        kind: `ack`, or `fail`.
        task: the spout task that initialised the roots.
        roots: signed 64-bit root ids. One that got two outcomes may stand there twice.
        reason: None for acks, else `failed` or `timeout`.
        last_stage: of fails; None for acks (take `Outcome` for that).
        redelivered: the entries were handed out before and not confirmed since.
        detail: the `reason=` text of the fail calls, where one was given.
        receipt: for `Acker.confirm_packed`; stands for all of the entries.
    """

    kind: Literal["ack", "fail"]
    task: int
    roots: npt.NDArray[np.int64]
    reason: Literal["failed", "timeout"] | None
    last_stage: str | None
    redelivered: bool
    detail: str | None
    receipt: Receipt


class Outcome(NamedTuple):
    """What became of one root. Exactly one is written per tracked root; it is delivered at least once.

    Attributes:
        kind: `ack`, or `fail`.
        root: signed 64-bit root id.
        task: the spout task that initialised the root.
        reason: None for an ack, else `failed` (a bolt failed it) or `timeout`.
        age_ms: from the root's first message of any kind to its end, by the server's clock.
        last_stage: the stage that touched the root last, where stages are named.
        redelivered: this outcome was handed out before and not confirmed since.
        detail: the `reason=` text of the fail call, where one was given.
        receipt: for `Acker.confirm`.
    """

    kind: Literal["ack", "fail"]
    root: int
    task: int
    reason: Literal["failed", "timeout"] | None
    age_ms: int
    last_stage: str | None
    redelivered: bool
    detail: str | None
    receipt: Receipt


State: TypeAlias = Literal["waiting", "owned", "failed", "closed"]


class RootRecord(NamedTuple):
    """A root that the ledger holds.

    Attributes:
        root: signed 64-bit root id.
        val: ack value now, signed; a tree completes when it is 0.
        task: owner, or None while the init has not arrived.
        state: `waiting` for its init; `owned` and pending; `failed` and waiting for its init; `closed`: it failed and its
            outcome is written, in a stream or delivered. A closed record changes no more and goes when its time is over.
        age_ms: since the first message, by the server's clock.
        last_stage: the stage that touched the root last, where stages are named.
        ticks_left: ticks until the record expires if nothing happens: num_buckets in the nursery, 0 on death row.
    """

    root: int
    val: int
    task: int | None
    state: State
    age_ms: int
    last_stage: str | None
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
        closed: failed roots that are kept now, so that late updates are known for what they are.
        oldest_age_ms: age of a pending root among those longest without being put into the nursery; None if none, or if
            more than a bounded number of settled cohorts hides it.
        inits: roots initialised.
        acks: ack updates applied, after combining equal roots; late ones are not among them.
        fails: fail updates applied; late ones are not among them.
        acked: roots completed.
        failed: roots failed by a bolt.
        timed_out: owned roots that expired.
        orphaned: roots that expired without owner: their init was lost, or they were made by an ack or fail of a root
            that had left the ledger (acked, timed out, or closed and gone), which looks like one that precedes its init.
        duplicate_inits: inits of roots that had their owner; ignored.
        fenced: calls whose token was seen before, ignored.
        late_updates: acks, fails and `reset_timeout` of roots that have failed already, as long as their record is there
            (at least message_timeout_secs), or were acked, as long as other roots of their record are; and `reset_timeout`
            of roots the ledger does not know. They changed nothing.
        waiting: stream entries of outcomes not confirmed yet.
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
    fenced: int
    late_updates: int
    waiting: int
    last_rotation_ms: int
    tick_ms: int

    @property
    def rotation_is_late(self) -> bool:
        """Whether nobody seems to rotate the app: a tick is overdue by far."""
        return self.last_rotation_ms > max(LATE_TICKS * self.tick_ms, self.tick_ms + LATE_MS)
