"""Held tuples that are too long for their state: which of their messages fail, and when.

A bolt that holds only such tuples is broken. So a message counts as failed once its bolt has processed or kept another one.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

import numpy as np

from acker_redis.storm.turns.engine import Emitted, TurnEngine
from acker_redis.storm.turns.search import BoltHealth


class Refusals:
    """Messages whose tuples a bolt holds, and no state can keep. They stay pending until they are judged.

    The other messages of their turn go out again first, alone. Their turn shows whether the bolt works.
    """

    def __init__(self, engine: TurnEngine, health: BoltHealth, has_held: Callable[[str], bool]) -> None:
        """Begin without messages. `has_held` returns True if batches or windows of a bolt have held tuples over a turn."""
        self._engine, self._health, self._has_held = engine, health, has_held
        self._refused: dict[int, tuple[str, str]] = {}
        self._is_last = False
        self._others: list[Emitted] = []

    @property
    def has_others(self) -> bool:
        """True if other messages wait for a turn of their own."""
        return bool(self._others)

    @property
    def unjudged(self) -> Collection[int]:
        """Roots of the messages that wait for their judgement. It may come long after their timeout."""
        return self._refused.keys()

    def pending_of(self, refused: Mapping[int, tuple[str, str]]) -> dict[int, tuple[str, str]]:
        """Return those of these roots whose messages are pending."""
        return {root: why for root, why in refused.items() if self._engine.message_of(root) is not None}

    def note(self, refused: Mapping[int, tuple[str, str]], *, is_last: bool) -> None:
        """Note that a turn broke because of held tuples, and was closed.

        Args:
            refused: root of a pending message -> bolt, and the reason.
            is_last: True if no further message can arrive before these have an outcome.
        """
        self._refused |= refused
        self._is_last = is_last
        self._others += self._engine.withdraw(refused)

    def take_others(self) -> list[Emitted]:
        """Remove and return the messages that go out again alone."""
        others, self._others = self._others, []
        return others

    def judge(self) -> list[Emitted]:
        """Fail the messages that count. Returns the others, which were withdrawn and go out again.

        Raises:
            OperatorBrokenError: many messages broke the turns of a bolt that has processed none.
        """
        engine, refused = self._engine, self.pending_of(self._refused)
        self._refused = {}
        if not refused:
            return []
        failed: dict[tuple[str, str, bool, bool], list[int]] = defaultdict(list)
        for root, (bolt, reason) in refused.items():
            if not self._has_held(bolt):
                failed[bolt, reason, False, False].append(root)
        verdict = self._health.judge(
            [],
            {key: np.array(roots, np.uint64).view(np.int64) for key, roots in failed.items()},
            {},
            engine.message_of,
            is_last=self._is_last,
        )
        again = list(refused) if verdict.broken is not None else verdict.exempt.view(np.uint64).tolist()
        withdrawn = engine.take_back([message for root in again if (message := engine.message_of(root)) is not None])
        if verdict.broken is not None:
            raise verdict.broken
        engine.refuse(self.pending_of(refused))
        return withdrawn
