"""Search for poison messages: replay an emission whose job failed in parts, until each failing message is alone.

Other emissions show whether a message is to blame, or something that all messages need, such as a store or the pipeline
itself. While no emission succeeds, messages are emitted one by one, no failure counts against them, and after
a few failures the run ends. A stream doesn't end. There they wait until another emission succeeds. This module does no I/O.
"""

from typing import Literal

import numpy as np

from acker_redis.model.arrays import FloatArray, Int64Array
from acker_redis.spout.in_flight import Attempts, Replays

PARTS = 8
"""Number of parts in which a failed emission is replayed.

Halves would need the fewest emissions. But a failed emission costs twenty times as much as a successful one: Spark attempts
each task four times, every time in a new Python worker. With eight parts a third as many fail as with halves.
"""

DOUBT_AFTER = 2
"""Number of failures in a row after which single messages are emitted until an emission succeeds."""

MOST_ALONE, MOST_ALONE_LATER = 5, 40
"""Number of different messages that failed alone, with no success in between, after which none of them is to blame.

The second number applies once an emission of the search succeeded. Then most other messages are done, and poison messages
follow each other.
"""

_random = np.random.default_rng()


class PoisonSearch:
    """Queue of messages whose emissions' jobs failed, in the groups in which they may be emitted.

    Attributes:
        in_a_row: number of emissions that failed since one succeeded.
        under_way: kind of the current emission: of `others`, of messages that are `searched`, or of one that is `known`.
        goes_on: True if other messages may arrive at any time, as in a stream.
    """

    def __init__(self, *, goes_on: bool = False) -> None:
        self.under_way: Literal["others", "searched", "known"] = "others"
        self.in_a_row = 0
        self.goes_on = goes_on
        self._succeeded = False
        self._alone: set[int] = set()
        self._worked = False
        self._searched: dict[int, Replays] = {}
        self._known = Replays()

    def __len__(self) -> int:
        """Count messages that wait for their next emission."""
        return self.searching + len(self._known)

    @property
    def searching(self) -> int:
        """Number of waiting messages that aren't known to be poison."""
        return sum(map(len, self._searched.values()))

    @property
    def in_doubt(self) -> bool:
        """Return True if recent failures look systemic rather than caused by one message."""
        return self.in_a_row >= DOUBT_AFTER

    @property
    def is_stuck(self) -> bool:
        """Return True if, in a stream, each message left failed alone, or many did, and no emission has succeeded."""
        if not self.goes_on or not self.in_a_row or not self._alone:
            return False
        return self._is_many or all(
            np.isin(pool.all()[0].message_ids, list(self._alone)).all() for pool in self._searched.values()
        )

    @property
    def _is_many(self) -> bool:
        return len(self._alone) >= (MOST_ALONE_LATER if self._worked and not self.goes_on else MOST_ALONE)

    @property
    def is_hopeless(self) -> bool:
        """Return True if no message is to blame, and no further messages will arrive that could show it."""
        return self._is_many and not self.goes_on

    def succeeded(self) -> None:
        """Note that an emission succeeded."""
        self.in_a_row = 0
        self._alone.clear()
        self._worked = self._succeeded = True

    def job_failed(self, message_ids: Int64Array, *, by_outage: bool = False) -> bool:
        """Note that the job of an emission failed. Return True if that counts against its messages.

        It counts against a single message if the previous emission had other messages and succeeded. It also counts if the
        message's turn came again before any emission succeeded, because there are few others. A known poison message that
        fails again is no evidence about the others. In a stream, where others will arrive, an emission must have succeeded
        first.

        Args:
            message_ids: ids of the emission's messages.
            by_outage: True if the error means that something is unreachable, which is no message's fault while no emission
                succeeds.
        """
        may_count = self._succeeded or not self.goes_on
        if self.under_way == "known":
            return may_count and not (by_outage and self.in_a_row > 1)  # 1: this emission itself
        self.in_a_row += 1
        self._worked = self._worked and self.under_way == "searched"
        if len(message_ids) != 1:
            return False
        message = int(message_ids[0])
        is_repeated = (
            message in self._alone and (self._succeeded or not by_outage) and not (self.goes_on and self._is_many)
        )
        counts = self.in_a_row == 1 or is_repeated
        self._alone.add(message)
        return may_count and counts

    def add(self, attempts: Attempts, due: FloatArray, counted: bool) -> None:
        """Add attempts of messages, to emit in groups of at most `Attempts.max_group`. `counted` means known poison."""
        if counted:
            self._known.add(attempts, due)
            return
        for max_group in np.unique(attempts.max_group).tolist():
            rows = _random.permutation(
                np.flatnonzero(attempts.max_group == max_group)
            )  # neighbours may be bad together
            self._searched.setdefault(max_group, Replays()).add(attempts[rows], due[rows])

    def remove(self, message_ids: Int64Array) -> None:
        """Remove messages that are no longer this spout's."""
        for pool in [self._known, *self._searched.values()]:
            pool.remove(message_ids)
        self._alone.difference_update(message_ids.tolist())

    def left_by(self, due_by: float) -> bool:
        """Return True if messages are searched, or are emitted alone and were due by then.

        Messages that wait for a success don't count.
        """
        if self.is_stuck:
            return False
        return bool(self.searching) or (len(self._known) > 0 and self._known.first_due <= due_by)

    def take_searched(self, now: float, room: int | None) -> Attempts:
        """Remove and return the group that waited longest: as many messages as allowed, or one if in doubt."""
        due = {max_group: pool.first_due for max_group, pool in self._searched.items() if len(pool)}
        max_group = min(due, key=lambda max_group: (due[max_group], -max_group), default=None)
        if max_group is None:
            return Attempts.first(np.array([], np.int64))
        count = 1 if self.in_doubt else max_group
        self.under_way = "searched"
        return self._searched[max_group].take_due(now, count if room is None else min(count, room))

    def take_known(self, now: float, room: int | None) -> Attempts:
        """Remove and return a single message that is known to be poison."""
        self.under_way = "known"
        return self._known.take_due(now, 1 if room is None else min(1, room))

    def all(self) -> tuple[Attempts, FloatArray]:
        """Return all waiting attempts and their due times."""
        pools = [pool.all() for pool in [self._known, *self._searched.values()]]
        return Attempts.concatenate([attempts for attempts, _ in pools]), np.concatenate([due for _, due in pools])
