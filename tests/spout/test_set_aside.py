"""Messages that fail in a broken operator are set aside, while all others are completed."""

from collections.abc import Callable

import numpy as np
import pytest

from acker_redis import OperatorBrokenError
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.loop import run_spout
from acker_redis.spout.retry import RetryPolicy
from acker_redis.spout.spout import Spout
from acker_redis.testing import fake_acker
from tests.support.spouts import spout

BROKEN = OperatorBrokenError("'geocode' is broken.")
BAD = {3, 5}


def made_of(messages: int, max_pending: int | None = None) -> Spout:
    retry = RetryPolicy(max_attempts=1, first_delay_secs=0)
    return spout(fake_acker(), messages, retry=retry, max_spout_pending=max_pending)


def emitting(
    made: Spout, mark: Callable[[Emission, np.ndarray], None]
) -> tuple[Callable[[Emission], None], list[list[int]]]:
    """Ack all messages but the bad ones, which are marked and fail."""
    emitted: list[list[int]] = []

    def emit(emission: Emission) -> None:
        emitted.append(sorted(emission.message_ids.tolist()))
        is_bad = np.isin(emission.message_ids, list(BAD))
        made.acker.init_many(emission.roots, np.full(len(emission.roots), 7), 0)
        mark(emission, emission.roots[is_bad])
        for root, fails in zip(emission.roots.tolist(), is_bad.tolist(), strict=True):
            if fails:
                made.acker.fail(root, reason="broke")
            else:
                made.acker.ack(root, 7)

    return emit, emitted


@pytest.mark.parametrize("max_pending", [None, 1, 2])
def test_run_with_messages_set_aside_completes_the_others_and_raises(max_pending: int | None) -> None:
    made = made_of(9, max_pending)
    emit, emitted = emitting(made, lambda emission, bad: made.marks.set_aside(bad, "geocode", BROKEN))
    with pytest.raises(OperatorBrokenError, match="'geocode' is broken"):
        run_spout(made, emit)
    assert (made.counts.acked, made.counts.failed, made.dead_letters, made.state.left) == (7, 2, {}, 2)
    assert sum(map(len, emitted)) == 9, "none is emitted again"


def test_messages_that_are_brought_back_count_their_failures() -> None:
    made = made_of(9, 4)

    def mark(emission: Emission, bad: np.ndarray) -> None:
        if emission.number < 2:
            made.marks.set_aside(bad, "geocode", BROKEN)
        else:
            made.marks.bring_back("geocode")

    run_spout(made, emitting(made, mark)[0])
    assert {letter.message_id: letter.attempts for letter in made.dead_letters.values()} == {3: 1, 5: 1}
    assert made.counts.acked == 7


def test_messages_that_succeed_are_not_set_aside() -> None:
    made = made_of(9)

    def emit(emission: Emission) -> None:
        made.acker.init_many(emission.roots, np.full(len(emission.roots), 7), 0)
        made.marks.set_aside(emission.roots, "geocode", BROKEN)
        made.acker.ack_many(emission.roots, np.full(len(emission.roots), 7))

    assert run_spout(made, emit).acked == 9


def test_withdrawn_messages_are_not_left_aside() -> None:
    made = made_of(2)
    emission = made.next_emission()
    assert emission is not None
    made.acker.init_many(emission.roots, np.full(2, 7), 0)
    made.marks.set_aside(emission.roots, "geocode", BROKEN)
    made.acker.fail_many(emission.roots)
    made.poll()
    assert (made.state.aside, made.state.left) == ("geocode", 2)
    made.withdraw(emission.message_ids)
    assert (made.state.aside, made.done) == (None, True)
