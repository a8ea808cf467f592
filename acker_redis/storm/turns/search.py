"""What broken turns and failed tuples say: which message to blame, and which bolts work.

The search for a message that breaks turns, and the judgement of which bolts work, are those of tracked DataFrames.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from acker_redis.errors import JobFailedError
from acker_redis.model.arrays import Int64Array
from acker_redis.spark.emission.operator_health import OperatorHealth, Verdict
from acker_redis.spark.proof.meters import Processed
from acker_redis.spark.worker.failures import Failure, Reason
from acker_redis.spout.in_flight import Attempts, Emission
from acker_redis.spout.poison_search import PARTS, PoisonSearch
from acker_redis.storm.local.pending import Message
from acker_redis.storm.turns.engine import Emitted

MOST_LOSSES = 3
"""Number of turns in a row whose kept rows were lost, after which a message may be to blame: one that kills its executor."""


class TurnSearch:
    """Messages of broken turns, which go out again in parts until each that breaks a turn is alone."""

    def __init__(self) -> None:
        self._search = PoisonSearch()
        self._emitted: dict[int, Emitted] = {}
        self._numbers = 0
        self._losses = 0
        self._under_way: list[int] = []

    def __len__(self) -> int:
        """Count the messages that wait for their next turn."""
        return self._search.searching

    @property
    def in_a_row(self) -> int:
        """Number of turns that broke since one succeeded."""
        return self._search.in_a_row

    def take(self) -> list[Emitted]:
        """Remove and return the messages of the next turn of the search."""
        self._under_way = self._search.take_searched(time.monotonic(), None).message_ids.tolist()
        return [self._emitted[number] for number in self._under_way]

    def begin(self, *, is_known: bool) -> None:
        """Note that the next turn has other messages, or one that broke a turn before."""
        self._search.under_way = "known" if is_known else "others"
        self._under_way = []

    def succeeded(self) -> None:
        """Note that a turn succeeded."""
        self._search.succeeded()
        self._losses = 0
        self._drop()

    def broke(
        self, emitted: Sequence[Emitted], error: Exception, *, by_outage: bool, by_loss: bool = False
    ) -> Emitted | None:
        """Note that the job of a turn broke. Returns its only message if it is to blame.

        Args:
            emitted: messages of the turn.
            error: error of the job.
            by_outage: True if the error means that something is unreachable.
            by_loss: True if Spark has lost rows that it kept. Then the messages go out again together, and it counts against
                nobody, unless that happens again and again.

        Raises:
            JobFailedError: many turns of a single message broke, and none succeeded, so no message is to blame.
        """
        numbers = self._under_way if len(self._under_way) == len(emitted) else self._numbered(len(emitted))
        ids = np.array(numbers, np.int64)
        for number, one in zip(numbers, emitted, strict=True):
            self._emitted[number] = one
        if by_loss and self._losses < MOST_LOSSES:
            self._losses += 1
            self._add(ids, len(ids))
            return None
        counts = self._search.job_failed(ids, by_outage=by_outage)
        if len(emitted) == 1 and counts:
            self._drop(numbers)
            return emitted[0]
        if self._search.is_hopeless:
            raise JobFailedError(
                f"{self._search.in_a_row} turns in a row broke, the last ones with a single message each, so no message is to "
                f"blame. The last error was: {error}"
            ) from error
        self._add(ids, -(-len(ids) // PARTS))
        return None

    def all(self) -> list[Emitted]:
        """List the messages that wait."""
        return [self._emitted[number] for number in self._search.all()[0].message_ids.tolist()]

    def _add(self, ids: Int64Array, group: int) -> None:
        """Let messages go out again, in groups of this size."""
        attempts = replace(Attempts.first(ids), max_group=np.full(len(ids), max(1, group), np.int32))
        self._search.add(attempts, np.full(len(ids), time.monotonic()), counted=False)
        self._under_way = []

    def _numbered(self, count: int) -> list[int]:
        self._numbers += count
        return list(range(self._numbers - count + 1, self._numbers + 1))

    def _drop(self, numbers: Sequence[int] | None = None) -> None:
        for number in self._under_way if numbers is None else numbers:
            self._emitted.pop(number, None)
        self._under_way = []


class BoltHealth:
    """Which bolts of a run have processed messages, and which failures count."""

    def __init__(self, *, everything_counts: bool) -> None:
        self._health = OperatorHealth(everything_counts=everything_counts)
        self._known: set[str] = set()

    def judge(
        self,
        messages: Sequence[Message],
        failed: Mapping[tuple[str, str, bool, bool], Int64Array],
        worked: Mapping[str, set[int]],
        message_of: Callable[[int], Message | None],
        *,
        is_last: bool,
    ) -> Verdict:
        """Decide which failures of a turn count; see `OperatorHealth.judge`.

        Args:
            messages: messages of the turn.
            failed: (bolt, reason, whether to retry, whether it was expected) -> roots.
            worked: bolt -> up to two roots that it has processed without failing; 0 for tuples that aren't tracked.
            message_of: function that returns the pending message of a root, which may be of an earlier turn.
            is_last: True if no further message can arrive before these have an outcome.
        """
        if not failed and worked.keys() <= self._known:
            return Verdict(np.array([], np.int64))
        messages = [*messages, *_of_earlier_turns(messages, failed, worked, message_of)]
        roots = np.array([message.root for message in messages], np.uint64).view(np.int64)
        numbers = np.array([message.history.number for message in messages], np.int64)
        processed = {}
        for bolt, of_bolt in worked.items():
            pending = np.intersect1d(np.array(sorted(of_bolt), np.uint64).view(np.int64), roots)
            signed = frozenset() if 0 in of_bolt else frozenset(pending.tolist())
            processed[bolt] = Processed(1, signed)
            if len(signed) != 1:
                self._known.add(bolt)
        failures = [
            Failure(bolt, len(of), {Reason(text, retry, is_expected): of.tobytes()})
            for (bolt, text, retry, is_expected), every in failed.items()
            for of in [every[np.isin(every, roots)]]
            if len(of)
        ]
        emission = Emission(0, numbers, np.zeros(len(numbers), np.int64), roots)
        return self._health.judge(emission, failures, processed, is_last=is_last)


def _of_earlier_turns(
    messages: Sequence[Message],
    failed: Mapping[tuple[str, str, bool, bool], Int64Array],
    worked: Mapping[str, set[int]],
    message_of: Callable[[int], Message | None],
) -> list[Message]:
    """Return the pending messages of earlier turns whose held tuples failed or were processed."""
    own = {message.root for message in messages}
    roots = {root for of in failed.values() for root in of.view(np.uint64).tolist()}.union(*worked.values())
    found = map(message_of, sorted(roots - own))
    return [message for message in found if message is not None]
