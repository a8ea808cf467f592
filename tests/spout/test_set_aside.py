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
from tests.support.spouts import new_spout

BROKEN = OperatorBrokenError("'geocode' is broken.")
BAD = {3, 5}


def made_of(messages: int, max_pending: int | None = None) -> Spout:
    retry = RetryPolicy(max_attempts=1, first_delay_secs=0)
    return new_spout(fake_acker(), messages, retry=retry, max_spout_pending=max_pending)


def emitting(
    spout: Spout, mark: Callable[[Emission, np.ndarray], None]
) -> tuple[Callable[[Emission], None], list[list[int]]]:
    """Ack all messages but the bad ones, which are marked and fail."""
    emitted: list[list[int]] = []

    def emit(emission: Emission) -> None:
        emitted.append(sorted(emission.message_ids.tolist()))
        is_bad = np.isin(emission.message_ids, list(BAD))
        spout.acker.init_many(emission.roots, np.full(len(emission.roots), 7), 0)
        mark(emission, emission.roots[is_bad])
        for root, fails in zip(emission.roots.tolist(), is_bad.tolist(), strict=True):
            if fails:
                spout.acker.fail(root, reason="broke")
            else:
                spout.acker.ack(root, 7)

    return emit, emitted


@pytest.mark.parametrize("max_pending", [None, 1, 2])
def test_run_with_messages_set_aside_completes_the_others_and_raises(max_pending: int | None) -> None:
    spout = made_of(9, max_pending)
    emit, emitted = emitting(spout, lambda emission, bad: spout.marks.set_aside(bad, "geocode", BROKEN))
    with pytest.raises(OperatorBrokenError, match="'geocode' is broken"):
        run_spout(spout, emit)
    assert (spout.counts.acked, spout.counts.failed, spout.dead_letters, spout.state.left) == (7, 2, {}, 2)
    assert sum(map(len, emitted)) == 9, "none is emitted again"


def test_messages_that_are_brought_back_count_their_failures() -> None:
    spout = made_of(9, 4)

    def mark(emission: Emission, bad: np.ndarray) -> None:
        if emission.number < 2:
            spout.marks.set_aside(bad, "geocode", BROKEN)
        else:
            spout.marks.bring_back("geocode")

    run_spout(spout, emitting(spout, mark)[0])
    assert {letter.message_id: letter.attempts for letter in spout.dead_letters.values()} == {3: 1, 5: 1}
    assert spout.counts.acked == 7


def test_messages_that_succeed_are_not_set_aside() -> None:
    spout = made_of(9)

    def emit(emission: Emission) -> None:
        spout.acker.init_many(emission.roots, np.full(len(emission.roots), 7), 0)
        spout.marks.set_aside(emission.roots, "geocode", BROKEN)
        spout.acker.ack_many(emission.roots, np.full(len(emission.roots), 7))

    assert run_spout(spout, emit).acked == 9


def test_withdrawn_messages_are_not_left_aside() -> None:
    spout = made_of(2)
    emission = spout.next_emission()
    assert emission is not None
    spout.acker.init_many(emission.roots, np.full(2, 7), 0)
    spout.marks.set_aside(emission.roots, "geocode", BROKEN)
    spout.acker.fail_many(emission.roots)
    spout.poll()
    assert (spout.state.aside, spout.state.left) == ("geocode", 2)
    spout.withdraw(emission.message_ids)
    assert (spout.state.aside, spout.done) == (None, True)
