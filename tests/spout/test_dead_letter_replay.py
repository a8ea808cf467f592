"""Dead letters that are replayed: no message is lost, whichever process dies, and whenever."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from acker_redis import Acker, BadBatchError, BadConfigError, DeadLetter, ServerOutOfMemoryError
from acker_redis.acker import app_of
from acker_redis.errors import FencedError
from acker_redis.model.arrays import Int64Array
from acker_redis.spout.dead_letter_replay import MOST_AT_ONCE
from acker_redis.spout.retry import RetryPolicy
from acker_redis.spout.spout import Spout
from acker_redis.store.dead_letter import DeadLetterFilter
from acker_redis.testing import fake_acker, wait_until
from acker_redis.testing.server import Server
from tests.support.spouts import emit, new_spout


def letter(message: int, **fields: object) -> DeadLetter:
    values = {"run_id": "before", "attempts": 3, "reason": "failed", "payload": b"{}", "replay": "payload", **fields}
    return DeadLetter(message, **values)  # type: ignore[arg-type]


def taker(acker: Acker, refused: Iterable[int] = (), **options: object) -> Spout:
    def take(letters: list[DeadLetter]) -> list[int]:
        return [letter.message_id for letter in letters if letter.message_id not in refused]

    given = {
        "messages": 0,
        "retry": RetryPolicy(max_attempts=1, first_delay_secs=0),
        "replay": take,
        "payload": payloads,
        **options,
    }
    return new_spout(acker, **given)  # type: ignore[arg-type]


def payloads(ids: list[int]) -> list[bytes | None]:
    return [b"{}" for _ in ids]


def settle(spout: Spout, *failing: int) -> None:
    emission = emit(spout)
    for message, root in zip(emission.message_ids.tolist(), emission.roots.tolist(), strict=True):
        if message in failing:
            spout.acker.fail(root, reason="again")
        else:
            spout.acker.ack(root, 7)
    while spout.pending:
        spout.poll()


def left(acker: Acker) -> list[tuple[int, str]]:
    return [(letter.message_id, letter.run_id) for letter in acker.dead_letters.read()]


def test_dead_letter_is_deleted_on_ack_and_replaced_on_failure() -> None:
    acker = fake_acker()
    acker.dead_letters.add([letter(number) for number in (1, 2, 3)])
    spout = taker(acker)
    assert acker.dead_letters.replay(DeadLetterFilter(message_ids=frozenset({1, 2}))) == 2
    assert acker.dead_letters.replaying() == 2
    spout.claim_replays()
    assert left(acker) == [(1, "before"), (2, "before"), (3, "before")]  # until they are done
    settle(spout, 2)
    assert left(acker) == [(3, "before"), (2, "run")]
    assert acker.dead_letters.replaying() == 0
    spout.claim_replays()
    assert spout.done
    (_, again) = acker.dead_letters.read()
    assert (again.attempts, again.detail, again.replay, again.spout_id) == (1, "again", "payload", 0)


def test_dead_letters_of_killed_spout_are_replayed_by_the_next() -> None:
    acker = fake_acker()
    acker.dead_letters.add([letter(1)])
    acker.dead_letters.replay()
    died = taker(acker)
    died.claim_replays()
    emit(died)
    follower = taker(acker, run_id="next")
    follower.claim_replays()
    settle(follower)
    assert left(acker) == []
    assert acker.dead_letters.replaying() == 0


def test_dead_letter_of_a_message_in_flight_waits() -> None:
    acker = fake_acker()
    spout = taker(acker, messages=2)
    acker.dead_letters.add([letter(1)])
    acker.dead_letters.replay()
    spout.claim_replays()
    assert spout.replaying == []
    settle(spout)
    assert left(acker) == [(1, "before")]  # what was acked is another one
    spout.claim_replays()
    assert spout.replaying == [1]
    settle(spout)
    assert left(acker) == []


def test_two_dead_letters_of_a_message_are_replayed_once() -> None:
    acker = fake_acker()
    acker.dead_letters.add([letter(1), letter(1)])
    acker.dead_letters.replay()
    spout = taker(acker)
    spout.claim_replays()
    spout.claim_replays()
    settle(spout)
    assert left(acker) == []
    assert spout.counts.emitted == 1


def test_dead_letter_refused_by_the_source_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    acker = fake_acker()
    acker.dead_letters.add([letter(1), letter(2)])
    acker.dead_letters.replay()
    spout = taker(acker, refused={2})
    spout.claim_replays()
    settle(spout)
    assert left(acker) == [(2, "before")]
    assert acker.dead_letters.replaying() == 0
    assert "dead letters not replayed, their source no longer has the messages count=1" in caplog.text


def test_dead_letter_deleted_before_its_replay_is_skipped() -> None:
    acker = fake_acker()
    acker.dead_letters.add([letter(1), letter(2)])
    acker.dead_letters.replay()
    acker.dead_letters.delete([acker.dead_letters.read()[0].entry_id])
    spout = taker(acker)
    spout.claim_replays()
    assert spout.replaying == [2]
    settle(spout)
    assert acker.dead_letters.replaying() == 0


def test_dead_letters_wait_for_a_spout_that_is_not_ready() -> None:
    acker = fake_acker()
    acker.dead_letters.add([letter(1)])
    acker.dead_letters.replay()
    taker(acker, replay=lambda letters: None).claim_replays()
    assert acker.dead_letters.replaying() == 1


def test_many_dead_letters_are_taken_in_bounded_parts() -> None:
    acker = fake_acker()
    acker.dead_letters.add([letter(number) for number in range(2 * MOST_AT_ONCE + 7)])
    acker.dead_letters.replay()
    spout = taker(acker)
    seen: list[int] = []
    while not seen or seen[-1]:
        spout.claim_replays()
        seen.append(len(spout.replaying))
        if spout.replaying:
            settle(spout)
    assert seen == [MOST_AT_ONCE, MOST_AT_ONCE, 7, 0]
    assert left(acker) == []


def test_spout_takes_dead_letters_of_its_spout_id_only() -> None:
    acker = fake_acker(lanes=2)
    acker.dead_letters.add([letter(1), letter(2, spout_id=1), letter(3, replay=None)])
    assert acker.dead_letters.survey() == (3, 2, {0: 1, 1: 1})
    assert acker.dead_letters.replay() == 2
    spout = taker(acker, spout_id=1)
    spout.claim_replays()
    assert spout.replaying == [2]


def test_dead_letters_written_during_replay_are_not_replayed() -> None:
    """A message that fails again at once would be asked for again and again."""
    acker = fake_acker()
    acker.dead_letters.add([letter(1)])

    def fails_again(count: int) -> None:
        began_ms = acker.dead_letters.now_ms()
        wait_until(lambda: acker.dead_letters.now_ms() > began_ms + 1, "a later millisecond")
        acker.dead_letters.add([letter(1)])

    assert acker.dead_letters.replay(progress=fails_again) == 1
    assert acker.dead_letters.count() == 2


def test_replay_keeps_the_given_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    clock = SimpleNamespace(now=1000.0)

    def monotonic() -> float:
        """Each part takes a quarter of a second."""
        clock.now += 0.25
        return float(clock.now)

    # The module's own, as other threads of this process may sleep, too.
    monkeypatch.setattr("acker_redis.store.dead_letters.time", SimpleNamespace(sleep=slept.append, monotonic=monotonic))
    acker = fake_acker()
    acker.dead_letters.add([letter(number) for number in range(25)])
    steps: list[int] = []
    assert acker.dead_letters.replay(per_sec=10, progress=steps.append) == 25
    assert steps == [10, 10, 5]
    assert slept == [0.75, 0.75]
    with pytest.raises(BadBatchError, match="per_sec"):
        acker.dead_letters.replay(per_sec=0)


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (DeadLetterFilter(), [1, 2, 3]),
        (DeadLetterFilter(message_ids=frozenset({2, 9})), [2]),
        (DeadLetterFilter(reason="timeout"), [2]),
        (DeadLetterFilter(last_component="parse"), [1]),
        (DeadLetterFilter(text="CUSTOMER"), [1]),
        (DeadLetterFilter(run_id="other"), [3]),
        (DeadLetterFilter(reason="failed", run_id="before"), [1]),
        (DeadLetterFilter(since=datetime.fromtimestamp(0.001, UTC)), [1, 2, 3]),
        (DeadLetterFilter(until=datetime.fromtimestamp(0.001, UTC)), []),
        (DeadLetterFilter(since=datetime.fromtimestamp(0, UTC)), [1, 2, 3]),
        (DeadLetterFilter(until=datetime(1960, 1, 1)), []),
    ],
)
def test_dead_letters_are_filtered_by_their_fields(wanted: DeadLetterFilter, ids: list[int]) -> None:
    acker = fake_acker()
    acker.dead_letters.add(
        [
            letter(1, last_component="parse", detail="no such customer"),
            letter(2, reason="timeout"),
            letter(3, run_id="other"),
        ]
    )
    assert [letter.message_id for letter in acker.dead_letters.find(wanted)] == ids


def test_dead_letters_are_filtered_by_time_of_writing() -> None:
    acker = fake_acker()
    acker.dead_letters.add([letter(1), letter(2)])
    first, second = acker.dead_letters.read()
    written, later = (int(letter.entry_id.partition("-")[0]) for letter in (first, second))
    at = datetime.fromtimestamp(written / 1000, UTC)
    after = datetime.fromtimestamp((later + 1) / 1000, timezone(timedelta(hours=5)))
    message_ids = [letter.message_id for letter in acker.dead_letters.find(DeadLetterFilter(since=at))]
    assert message_ids[0] == 1
    assert list(acker.dead_letters.find(DeadLetterFilter(since=after))) == []
    assert list(acker.dead_letters.find(DeadLetterFilter(until=at))) == []
    assert [letter.message_id for letter in acker.dead_letters.find(DeadLetterFilter(until=after))] == [1, 2]
    assert next(acker.dead_letters.find(DeadLetterFilter(since=at.astimezone().replace(tzinfo=None)))) == first


@pytest.mark.parametrize("name", ["since", "until"])
def test_a_time_of_another_type_is_refused(name: str) -> None:
    with pytest.raises(BadConfigError, match=rf"{name}=1 is not a datetime\. Pass a datetime"):
        DeadLetterFilter(**{name: 1})  # type: ignore[arg-type]


def test_dead_letter_has_time_of_first_emission() -> None:
    acker = fake_acker()
    spout = taker(acker, messages=1, retry=RetryPolicy(max_attempts=2, first_delay_secs=0))
    settle(spout, 0)
    spout.state._epoch_secs += 100
    settle(spout, 0)
    (kept,) = acker.dead_letters.read()
    written_secs = int(kept.entry_id.partition("-")[0]) // 1000
    assert kept.first_secs is not None
    assert abs(written_secs - kept.first_secs) <= 30  # and not by the second attempt's clock
    assert np.all(spout.state.pending_notifications == [])


def test_requests_of_a_spout_that_is_gone_are_taken_over_by_one_that_knows_the_letters() -> None:
    acker = fake_acker(lanes=3)
    ours = [letter(number, spout_id=1, place="ours") for number in (1, 2)]
    acker.dead_letters.add([*ours, letter(3, spout_id=1, place="theirs"), letter(4, spout_id=0, place="theirs")])
    assert acker.dead_letters.replay() == 4
    spout = taker(acker, identify=lambda letter: letter.message_id + 100 if letter.place == "ours" else None)
    spout.take_over_replays([1, 2])
    assert app_of(acker).client.redis.smembers("acker:{test}:replay_takers") == {b"0"}  # for the retention of letters
    assert (acker.dead_letters.replaying(0), acker.dead_letters.replaying(1)) == (3, 1)
    spout.claim_replays()
    settle(spout)
    assert left(acker) == [(3, "before"), (4, "before")]
    assert (acker.dead_letters.replaying(0), acker.dead_letters.replaying(1)) == (1, 1)
    assert spout.counts.acked == 2


def test_requests_that_a_full_server_refuses_to_move_stay(
    start_server: Callable[..., Server], open_acker: Callable[..., Acker], plain: Callable[..., Any]
) -> None:
    server = start_server()
    raw = plain(server.url)
    acker = open_acker(server.url, lanes=3, outage_timeout_secs=0.1)
    acker.dead_letters.add([letter(1, spout_id=1)])
    assert acker.dead_letters.replay() == 1
    spout = taker(acker, identify=lambda letter: letter.message_id)
    raw.config_set("maxmemory", 1)
    with pytest.raises(ServerOutOfMemoryError):
        spout.take_over_replays([1])
    raw.config_set("maxmemory", 0)
    assert acker.dead_letters.replaying(1) == 1
    spout.take_over_replays([1])
    assert (acker.dead_letters.replaying(0), acker.dead_letters.replaying(1)) == (1, 0)


class FakeLog:
    """Letters of even messages are needed, and that of 7 is of another log."""

    def __init__(self) -> None:
        self.reopened: list[int] = []

    def bury(self, letters: Sequence[DeadLetter]) -> None:
        raise AssertionError("none is dead")

    def accepted(self, message_ids: Int64Array) -> Int64Array:
        return message_ids

    def judge(self, letters: Sequence[DeadLetter]) -> tuple[set[str], set[str]]:
        foreign = {letter.entry_id for letter in letters if letter.message_id == 7}
        return {letter.entry_id for letter in letters if letter.message_id % 2} - foreign, foreign

    def reopen(self, letters: Sequence[DeadLetter]) -> set[int]:
        self.reopened += [letter.message_id for letter in letters]
        return set(self.reopened)


def test_log_says_which_letters_are_needed_before_they_are_claimed(caplog: pytest.LogCaptureFixture) -> None:
    acker, letter_log = fake_acker(), FakeLog()
    acker.dead_letters.add([letter(message) for message in (1, 2, 4, 7)])
    acker.dead_letters.replay()
    spout = taker(acker, refused=[4])
    spout.state.letter_log = letter_log
    spout.claim_replays()
    assert (letter_log.reopened, spout.replaying) == ([2], [2])
    assert [message for message, _ in left(acker)] == [2, 4, 7]
    assert acker.dead_letters.replaying() == 1
    assert "once= hasn't decided them; they stay count=1" in caplog.text
    settle(spout)
    assert [message for message, _ in left(acker)] == [4, 7]


def test_message_stays_a_letter_if_the_log_cant_reopen_it(monkeypatch: pytest.MonkeyPatch) -> None:
    acker, letter_log = fake_acker(), FakeLog()

    def fail(letters: Sequence[DeadLetter]) -> set[int]:
        raise FencedError("a newer run")

    acker.dead_letters.add([letter(2)])
    acker.dead_letters.replay()
    spout = taker(acker)
    spout.state.letter_log = letter_log
    with monkeypatch.context() as patch:
        patch.setattr(letter_log, "reopen", fail)
        with pytest.raises(FencedError):
            spout.claim_replays()
    assert (spout.replaying, spout.state.left, acker.dead_letters.replaying()) == ([], 0, 1)
    spout.claim_replays()
    assert spout.replaying == [2]
