"""Letters whose messages a run processes again: which ones are selected, and when they go."""

import logging

import numpy as np
import pytest

from acker_redis import Acker, DeadLetter, DeadLetterFilter
from acker_redis.acker import app_of
from acker_redis.store.dead_letter import EVERY_LETTER
from acker_redis.store.selected_letters import SelectedLetters
from acker_redis.testing import fake_acker


def letter(message: int, run_id: str = "monday", **fields: object) -> DeadLetter:
    return DeadLetter(message, run_id, 3, "failed", **fields)  # type: ignore[arg-type]


def select(acker: Acker, wanted: DeadLetterFilter = EVERY_LETTER, spout_id: int = 0) -> SelectedLetters:
    return app_of(acker).selected_letters(spout_id, wanted)


def done(letters: SelectedLetters, *messages: int) -> None:
    letters.done(np.array(messages, np.int64))


def left(acker: Acker) -> list[tuple[int, str]]:
    return [(letter.message_id, letter.run_id) for letter in acker.dead_letters.read()]


def test_letters_of_a_message_are_deleted_once_it_is_done() -> None:
    acker = fake_acker()
    acker.dead_letters.add([letter(1), letter(2), letter(1), letter(1, "tuesday")])
    letters = select(acker, DeadLetterFilter(run_id="monday"))
    assert letters.message_ids.tolist() == [1, 2]
    assert len(left(acker)) == 4
    acker.dead_letters.add([letter(1, "again")])
    done(letters, 1, 7)
    assert left(acker) == [(2, "monday"), (1, "tuesday"), (1, "again")]
    assert (letters.message_ids.tolist(), letters.matching, letters.left) == ([2], 3, 1)
    done(letters, 1, 2)
    assert left(acker) == [(1, "tuesday"), (1, "again")]
    assert letters.left == 0


def test_letters_without_message_in_the_source_stay(caplog: pytest.LogCaptureFixture) -> None:
    acker = fake_acker()
    acker.dead_letters.add([letter(1), letter(2), letter(2), letter(3)])
    letters = select(acker)
    letters.keep_only(np.array([3, 1]))
    assert letters.message_ids.tolist() == [1, 3]
    assert "not_in_source=2" in caplog.text
    assert "missing_message_ids=2" in caplog.text
    done(letters, 1, 2, 3)
    assert left(acker) == [(2, "monday"), (2, "monday")]
    assert letters.left == 2


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"spout_id": 1}, "of_other_spout_ids"),
        ({"unwritten": True}, "of_unwritten_output"),
        ({"place": '{"group": "orders"}'}, "of_kafka"),
    ],
)
def test_letters_that_another_run_has_to_deal_with_stay(
    fields: dict[str, object], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    acker = fake_acker(lanes=2)
    acker.dead_letters.add([letter(1, "theirs", **fields), letter(2)])
    letters = select(acker)
    letters.keep_only(np.array([1, 2]))
    assert (letters.message_ids.tolist(), letters.left) == ([2], 2)
    assert f"{why}=1" in caplog.text
    done(letters, 1, 2)
    assert left(acker) == [(1, "theirs")]


@pytest.mark.parametrize("replay", ["payload", "source"])
def test_letter_that_a_spout_was_asked_to_replay_stays(replay: str, caplog: pytest.LogCaptureFixture) -> None:
    acker = fake_acker()
    acker.dead_letters.add([letter(1, replay=replay, payload=b"{}")])
    acker.dead_letters.replay()
    acker.dead_letters.add([letter(2, replay=replay, payload=b"{}")])
    letters = select(acker)
    letters.keep_only(np.array([1, 2]))
    assert letters.message_ids.tolist() == [2]
    assert "replay_requested=1" in caplog.text
    done(letters, 1, 2)
    assert (left(acker), acker.dead_letters.replaying()) == ([(1, "monday")], 1)


def test_request_that_its_run_left_behind_is_removed_with_the_letter() -> None:
    acker = fake_acker()
    count = 2_001  # more than are read and deleted at a time
    acker.dead_letters.add([letter(number, replay="run") for number in range(count)])
    lease = app_of(acker).lease(lane=0, run_id="monday")
    lease.acquire()
    assert acker.dead_letters.replay() == count
    lease.release()
    letters = select(acker)
    assert len(letters.message_ids) == count
    done(letters, *range(1, count))
    assert (left(acker), acker.dead_letters.replaying()) == ([(0, "monday")], 1)


def test_filter_without_match_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    acker = fake_acker()
    acker.dead_letters.add([letter(1)])
    letters = select(acker, DeadLetterFilter(run_id="mondya"))
    letters.keep_only(np.array([], np.int64))
    assert (letters.message_ids.tolist(), letters.left) == ([], 0)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "no dead letter to run again" in record.getMessage()
    assert "mondya" in record.getMessage()
