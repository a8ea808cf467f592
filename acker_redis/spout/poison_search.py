"""Search for poison messages: an emission whose job failed goes out again in parts, until each that fails is alone. No I/O.

Whether a message is to blame, or what all of them need (a store that is down, a mistake in the pipeline), is seen from what
else succeeds: while nothing does, messages go out one by one, no failure counts against them, and after a few it ends. In a
stream it doesn't end: they wait until something else succeeds.
"""

from typing import Literal

import numpy as np

from acker_redis.model.arrays import FloatArray, Int64Array
from acker_redis.spout.in_flight import Attempts, Replays

PARTS = 8
"""An emission that broke goes out again in so many parts.

Halves would need the fewest emissions. But one that breaks costs twenty times as much as one that doesn't: Spark
attempts each spout_id four times, every time in a new Python worker. Of these there are a third as many as with halves.
"""

DOUBT_AFTER = 2
"""So many emissions that broke in a row, and single messages go out until one succeeds."""

MOST_ALONE, MOST_ALONE_LATER = 5, 40
"""So many different messages that broke their emission alone, with no success in between: none of them is to blame.

The second once something succeeded in the search: where most of the innocent are done, those to blame follow each other.
"""

_random = np.random.default_rng()


class PoisonSearch:
    """Messages of emissions whose jobs failed, in the groups that they may go out in.

    Attributes:
        in_a_row: emissions that broke since one succeeded.
        under_way: what the emission under way is of: `others`, messages that are `searched`, or one that is `known`.
        goes_on: whether other messages may come at any time, as in a stream.
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
        """How many messages wait for their next emission."""
        return self.searching + len(self._known)

    @property
    def searching(self) -> int:
        """How many of them are not known to be poison."""
        return sum(map(len, self._searched.values()))

    @property
    def in_doubt(self) -> bool:
        """Whether it looks as if no emission can succeed now."""
        return self.in_a_row >= DOUBT_AFTER

    @property
    def is_stuck(self) -> bool:
        """Whether each that is left broke its emission alone, or many did, and nothing has succeeded: in a stream."""
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
        """Whether it is none of the messages' fault, and others that could tell will not come."""
        return self._is_many and not self.goes_on

    def succeeded(self) -> None:
        """An emission did not break."""
        self.in_a_row = 0
        self._alone.clear()
        self._worked = self._succeeded = True

    def job_failed(self, message_ids: Int64Array, *, by_outage: bool = False) -> bool:
        """The job of an emission did not succeed; return True if that counts against its messages.

        It does against one alone, if the emission before was another's and succeeded, or if its turn came again before any
        succeeded, as there are few others. That a known one does it again says nothing about the others. In a stream, where
        others will come, something has to have succeeded first.

        Args:
            message_ids: of the emission.
            by_outage: whether the error says that something can't be reached, which is nobody's fault while nothing
                succeeds.
        """
        may_count = self._succeeded or not self.goes_on
        if self.under_way == "known":
            return may_count and not (by_outage and self.in_a_row > 1)  # 1: it was that itself
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
        """Emissions to make of messages that may go out with `Attempts.max_group` at most; `counted`: of known poison."""
        if counted:
            self._known.add(attempts, due)
            return
        for max_group in np.unique(attempts.max_group).tolist():
            rows = _random.permutation(
                np.flatnonzero(attempts.max_group == max_group)
            )  # neighbours may be bad together
            self._searched.setdefault(max_group, Replays()).add(attempts[rows], due[rows])

    def left_by(self, due_by: float) -> bool:
        """Whether any are searched, or go out alone and were due by then. Those that wait for a success are not among them."""
        if self.is_stuck:
            return False
        return bool(self.searching) or (len(self._known) > 0 and self._known.first_due <= due_by)

    def take_searched(self, now: float, room: int | None) -> Attempts:
        """One group, that which waited longest: of as many as may be together, or one message in doubt."""
        due = {most: pool.first_due for most, pool in self._searched.items() if len(pool)}
        most = min(due, key=lambda most: (due[most], -most), default=None)
        if most is None:
            return Attempts.first(np.array([], np.int64))
        count = 1 if self.in_doubt else most
        self.under_way = "searched"
        return self._searched[most].take(now, count if room is None else min(count, room))

    def take_known(self, now: float, room: int | None) -> Attempts:
        """One message, alone."""
        self.under_way = "known"
        return self._known.take(now, 1 if room is None else min(1, room))

    def all(self) -> tuple[Attempts, FloatArray]:
        """All that wait, and when each is due."""
        pools = [pool.all() for pool in [self._known, *self._searched.values()]]
        return Attempts.concatenate([attempts for attempts, _ in pools]), np.concatenate([due for _, due in pools])
