"""The spout's run: emissions that fail, outages that it waits for, roots that a server lost, and errors raised at once."""

import json
import logging
from itertools import chain
from threading import Event
from unittest.mock import Mock

import numpy as np
import pytest
from redis.backoff import NoBackoff

from acker_redis import (
    AckerConfig,
    AckerError,
    BadConfigError,
    ConnectionLostError,
    InexactPipelineError,
    JobFailedError,
    OutageError,
    ServerOutOfMemoryError,
    ServerRefusesWritesError,
    UnprovenEmissionError,
)
from acker_redis.acker import app_of
from acker_redis.client.replies import as_dict
from acker_redis.model import keys
from acker_redis.outages import Backoff
from acker_redis.spout import emission_thread
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.loop import SpoutLoop, run_spout
from acker_redis.spout.retry import LOST_LIMIT, RetryPolicy
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.testing import fake_acker, wait_until
from tests.support.spouts import expire, letters, new_spout


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acker_redis.spout.emission_thread.Backoff", lambda **options: NoBackoff())


def test_run_goes_on_until_every_message_is_acked_or_dead() -> None:
    acker = fake_acker()
    spout = new_spout(acker, messages=4, retry=RetryPolicy(max_attempts=2, first_delay_secs=0))
    emitted: list[list[int]] = []

    def emit(emission: Emission) -> None:
        emitted.append(sorted(emission.message_ids.tolist()))
        acker.init_many(emission.roots, np.full(len(emission.roots), 7), 0)
        for message, attempt, root in zip(emission.message_ids, emission.attempts, emission.roots, strict=True):
            if message == 0 or (message == 1 and attempt == 0):
                acker.fail(int(root))
            else:
                acker.ack(int(root), 7)

    counts = run_spout(spout, emit)
    assert emitted[0] == [0, 1, 2, 3]
    assert sorted(chain.from_iterable(emitted[1:])) == [0, 1]  # together, or each as its outcome came
    assert (counts.acked, counts.failed, counts.replayed, counts.dead_lettered) == (3, 3, 2, 1)
    assert letters(spout) == {0: DeadLetter(0, "run", 2, "failed")}


@pytest.mark.parametrize("settled_late", [True, False])
def test_message_that_always_times_out_before_its_emission_has_ended_is_dead_at_last(settled_late: bool) -> None:
    acker = fake_acker()
    spout = new_spout(acker, messages=3, retry=RetryPolicy(max_attempts=2, first_delay_secs=0))
    in_time: list[int] = []

    def emit(emission: Emission) -> None:
        acker.init_many(emission.roots, np.full(len(emission.roots), 7), 0)
        of_one = emission.roots[emission.message_ids == 1]
        if emission.number == LOST_LIMIT - 1:
            in_time.extend(of_one.tolist())
            acker.ack_many(of_one, np.full(len(of_one), 7))
        timed_out = (
            spout.counts.timed_out + len(emission.roots) - (len(of_one) if emission.number == LOST_LIMIT - 1 else 0)
        )
        expire(acker)
        wait_until(lambda: spout.counts.timed_out == timed_out, "timeouts to be taken before the emission ends")
        if settled_late:
            acker.fail_many(emission.roots[:1])
            acker.ack_many(emission.roots[1:], np.full(len(emission.roots) - 1, 7))

    counts = run_spout(spout, emit)
    assert (counts.acked, counts.dead_lettered, len(in_time)) == (1, 2, 1), "these timeouts are no attempts at first"
    assert counts.emitted == 2 * (LOST_LIMIT + 2) + LOST_LIMIT
    assert letters(spout) == {message: DeadLetter(message, "run", 2, "timeout") for message in (0, 2)}


def test_lost_root_after_timeouts_that_were_no_attempts_is_emitted_again() -> None:
    acker = fake_acker(AckerConfig(app="test", shards=1, message_timeout_secs=0.01))
    spout = new_spout(acker, messages=2, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))

    def emit(emission: Emission) -> None:
        is_late = emission.attempts < LOST_LIMIT
        is_lost = (emission.attempts == LOST_LIMIT) & (emission.message_ids == 1)
        if is_late.any():
            timed_out = spout.counts.timed_out + is_late.sum()
            acker.init_many(emission.roots[is_late], np.full(is_late.sum(), 7), 0)
            expire(acker)
            wait_until(lambda: spout.counts.timed_out == timed_out, "timeouts to be taken before the emission ends")
        if (is_done := ~is_late & ~is_lost).any():
            acker.init_many(emission.roots[is_done], np.zeros(is_done.sum(), np.int64), 0)

    counts = run_spout(spout, emit)
    assert (counts.timed_out, counts.lost, counts.acked, counts.dead_lettered) == (2 * LOST_LIMIT, 1, 2, 0)


def test_timeouts_while_a_server_is_away_are_never_attempts() -> None:
    acker = fake_acker()
    spout = new_spout(acker, messages=1, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    outages = 2 * LOST_LIMIT

    def emit(emission: Emission) -> None:
        acker.init_many(emission.roots, [7 if emission.number < outages else 0], 0)
        if emission.number < outages:
            spout.state.ignore_losses()  # as after each outage
            expire(acker)
            wait_until(lambda: spout.counts.timed_out == emission.number + 1, "timeouts to be taken")

    counts = run_spout(spout, emit)
    assert (counts.timed_out, counts.acked, counts.dead_lettered) == (outages, 1, 0)


def test_run_replays_messages_that_failed_emission_did_not_init(no_pauses: None) -> None:
    acker = fake_acker()
    spout = new_spout(acker, messages=3)

    def emit(emission: Emission) -> None:
        part = emission.roots if emission.number else emission.roots[:1]
        acker.init_many(part, np.full(len(part), 7), 0)
        acker.ack_many(part, np.full(len(part), 7))
        if emission.number == 0:
            raise UnprovenEmissionError("a spout_id was lost")

    counts = run_spout(spout, emit)
    assert (counts.acked, counts.lost, counts.replayed) == (3, 2, 2)


def test_run_ends_after_three_unproven_emissions_in_a_row(no_pauses: None) -> None:
    spout = new_spout(fake_acker(), messages=1)

    def emit(emission: Emission) -> None:
        raise UnprovenEmissionError("spout_ids were lost")

    with pytest.raises(
        AckerError, match=r"3 emissions in a row had no effect.* The last error was: spout_ids were lost"
    ):
        run_spout(spout, emit)
    assert (spout.counts.emitted, spout.counts.dead_lettered, spout.done) == (3, 0, False)


def test_program_error_ends_the_run_and_consumes_no_attempt(no_pauses: None) -> None:
    acker = fake_acker()
    spout = new_spout(acker, messages=20, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))

    def emit(emission: Emission) -> None:
        acker.init_many(emission.roots, np.full(20, 7), 0)
        raise KeyError("a typo")

    with pytest.raises(KeyError, match="a typo") as caught:
        run_spout(spout, emit)
    assert "No message is to blame" in caught.value.__notes__[0]
    expire(acker)
    spout.poll()
    assert (spout.counts.emitted, spout.counts.dead_lettered, spout.state.left) == (20, 0, 20)


class Clock:
    def __init__(self) -> None:
        self.now, self.pauses = 1000.0, [0.0]

    def monotonic(self) -> float:
        self.now += 5.0  # each wait asks for the time
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Pauses between emissions pass at once, and are as long as they may become."""
    fake = Clock()

    class Longest(Backoff):
        def compute(self, failures: int) -> float:
            fake.pauses.append(min(self._cap, self._base * 2 ** min(failures, 64)))
            return fake.pauses[-1]

    monkeypatch.setattr(emission_thread, "Backoff", Longest)
    monkeypatch.setattr(emission_thread, "time", fake)
    return fake


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError("no metastore"), OutageError("no store"), OSError(28, "No space left on device")]
)
def test_outage_of_other_service_is_awaited_and_costs_no_attempt(
    clock: Clock, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    acker = fake_acker()
    spout = new_spout(acker, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))

    def emit(emission: Emission) -> None:
        if clock.now < 1500:
            acker.init_many(emission.roots, np.full(len(emission.roots), 7), 0)
            spout.marks.exempt(emission.roots)
            acker.fail_many(emission.roots)
            raise error
        acker.init_many(emission.roots, np.zeros(len(emission.roots), np.int64), 0)

    assert run_spout(spout, emit).acked == 3
    assert (spout.counts.dead_lettered, max(clock.pauses)) == (0, 30)
    assert caplog.text.count("outage, pipeline is waiting max_wait_secs=600") == 1
    assert caplog.text.count("outage over, pipeline resumed") == 1


def test_outage_is_noted_for_people_on_call_until_it_is_over(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acker_redis.spout.loop._NOTE_SECS", 0.0)
    acker = fake_acker()
    spout, key = new_spout(acker), keys.outages(acker.config.app)
    noted = list[dict[bytes, bytes]]()

    def emit(emission: Emission) -> None:
        (fields,) = app_of(acker).client.pipeline([("HGETALL", key)])
        noted.append(as_dict(fields))
        if emission.number < 3:
            raise ConnectionRefusedError("no metastore")
        acker.init_many(emission.roots, np.zeros(len(emission.roots), np.int64), 0)

    with SpoutLoop(spout, emit) as loop:
        while not spout.done:
            loop.step(block_ms=1)
        loop.step(block_ms=1)
        assert loop.outages == []
    (outage,) = json.loads(noted[-1][b"0"])["outages"]
    assert (outage["operator"], outage["messages"]) == ("", 3)
    assert outage["error"] == "ConnectionRefusedError: no metastore"
    assert app_of(acker).client.pipeline([("EXISTS", key)]) == [0]


def test_outage_is_noted_again_by_a_spout_that_has_rested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run of the lane removes what it finds."""
    monkeypatch.setattr("acker_redis.spout.loop._NOTE_SECS", 0.0)
    monkeypatch.setattr("acker_redis.spout.emission_thread.WAIT_BASE_SECS", 600.0)
    monkeypatch.setattr("acker_redis.spout.emission_thread._WAIT_CAP_SECS", 600.0)
    acker = fake_acker()
    spout, key = new_spout(acker), keys.outages(acker.config.app)
    client = app_of(acker).client

    def emit(emission: Emission) -> None:
        raise ConnectionRefusedError("no metastore")

    with pytest.raises(AckerError, match="the end"), SpoutLoop(spout, emit) as loop:
        while client.pipeline([("EXISTS", key)]) == [0]:
            loop.step(block_ms=1)
        loop.rest()
        client.pipeline([("DEL", key)])
        loop.step(block_ms=1)
        assert client.pipeline([("EXISTS", key)]) == [1]
        raise AckerError("the end")


def test_an_outage_that_lasts_for_ten_minutes_ends_the_run(clock: Clock) -> None:
    spout = new_spout(fake_acker(), retry=RetryPolicy(max_attempts=1, first_delay_secs=0))

    def emit(emission: Emission) -> None:
        raise ConnectionRefusedError("no metastore")

    with pytest.raises(
        AckerError, match=r"No emission succeeded for 600 s.* run again\. The last error was: no metastore"
    ):
        run_spout(spout, emit)
    assert clock.now - 1000 > 600
    assert spout.counts.dead_lettered == 0


def test_timeout_of_unproven_emission_consumes_no_attempt(no_pauses: None) -> None:
    acker = fake_acker()
    spout = new_spout(acker, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))

    def emit(emission: Emission) -> None:
        acker.init_many(emission.roots, np.full(len(emission.roots), 0 if emission.number else 7), 0)
        if emission.number == 0:
            expire(acker)
            wait_until(lambda: spout.counts.timed_out == 3, "timeouts to be taken")

    counts = run_spout(spout, emit)
    assert (counts.timed_out, counts.acked, counts.dead_lettered) == (3, 3, 0)


def test_timeout_of_proven_emission_consumes_an_attempt(no_pauses: None) -> None:
    acker = fake_acker()
    spout = new_spout(acker, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))

    def emit(emission: Emission) -> None:
        acker.init_many(emission.roots, np.full(len(emission.roots), 7), 0)

    def let_time_out(busy: bool) -> None:
        if not busy:
            acker.admin.rotate(force=True)

    counts = run_spout(spout, emit, let_time_out)
    assert (counts.timed_out, counts.dead_lettered) == (3, 3)


def test_message_that_is_never_initialised_becomes_dead_letter() -> None:
    acker = fake_acker(AckerConfig(app="test", shards=1, message_timeout_secs=0.01))
    spout = new_spout(acker, messages=2)

    def emit_one_of_them(emission: Emission) -> None:
        own = emission.roots[emission.message_ids == 0]
        if len(own):
            acker.init_many(own, [7], 0)
            acker.fail_many(own)

    counts = run_spout(spout, emit_one_of_them)
    assert letters(spout)[1] == DeadLetter(1, "run", LOST_LIMIT, "lost")
    assert counts.lost == LOST_LIMIT


@pytest.mark.parametrize("at_the_end", [False, True])
def test_error_after_the_last_ack_is_raised(at_the_end: bool) -> None:
    """Of an emission whose messages were all acked nothing is replayed: nobody would hear of the error."""
    acker = fake_acker()
    spout = new_spout(acker, messages=4, max_spout_pending=2)

    def emit_and_raise(emission: Emission) -> None:
        acker.init_many(emission.roots, np.zeros(len(emission.roots), np.int64), 0)
        if emission.number == at_the_end:
            raise OSError("can't tidy up")

    with pytest.raises(OSError, match="can't tidy up"):
        run_spout(spout, emit_and_raise)


def test_outage_after_the_last_ack_is_logged_only(caplog: pytest.LogCaptureFixture) -> None:
    acker = fake_acker()
    spout = new_spout(acker)

    def emit_until_the_server_goes(emission: Emission) -> None:
        acker.init_many(emission.roots, np.zeros(3, np.int64), 0)
        raise ConnectionLostError("gone")

    assert run_spout(spout, emit_until_the_server_goes).acked == 3
    assert "gone" in caplog.text


def test_job_error_is_raised_if_all_its_messages_are_dead_letters(no_pauses: None) -> None:
    acker = fake_acker()
    spout = new_spout(acker, messages=1, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))

    def fail_and_raise(emission: Emission) -> None:
        acker.init_many(emission.roots, np.ones(1, np.int64), 0)
        spout.marks.search_for_poison(emission)
        acker.fail_many(emission.roots)
        raise JobFailedError("out of order")

    with pytest.raises(AckerError, match=r"nothing is left to retry.*: out of order"):
        run_spout(spout, fail_and_raise)
    assert spout.counts.dead_lettered == 1


def test_messages_that_never_become_roots_end_the_run_early() -> None:
    """Not after ten losses each, every one of them four timeouts long."""
    acker = fake_acker(AckerConfig(app="test", shards=1, message_timeout_secs=3600))
    spout = new_spout(acker, messages=250)

    def emit_others(emission: Emission) -> None:
        acker.init_many(emission.roots + 1, np.zeros(len(emission.roots), np.int64), 0)

    with pytest.raises(InexactPipelineError, match="None of the 250 messages of this emission became a root"):
        run_spout(spout, emit_others)
    assert (spout.counts.emitted, spout.counts.dead_lettered) == (500, 0)


def test_messages_that_a_replaced_server_lost_twice_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    acker = fake_acker(AckerConfig(app="test", shards=1, message_timeout_secs=3600))
    spout = new_spout(acker)
    servers = [0]
    monkeypatch.setattr(app_of(acker).client, "server_ids", lambda: frozenset([(str(servers[-1]), "")]))

    def emit(emission: Emission) -> None:
        if emission.number == 3:
            acker.init_many(emission.roots, np.zeros(3, np.int64), 0)

    def replace(busy: bool) -> None:
        if not busy and spout.counts.emitted > 3 * (len(servers) - 1):
            servers.append(len(servers))

    counts = run_spout(spout, emit, replace)
    assert (counts.acked, counts.lost) == (3, 9)


def test_ledger_lost_with_two_emissions_in_flight_is_recovered() -> None:
    acker = fake_acker()
    spout = new_spout(acker)

    def emit(emission: Emission) -> None:
        acker.init_many(emission.roots, np.full(len(emission.roots), 7 if emission.number < 2 else 0), 0)

    def add_then_flush(busy: bool) -> None:
        if not busy and spout.counts.emitted == 3:
            spout.add(np.arange(3, 6))
        elif not busy and spout.counts.emitted == 6 and not spout.counts.lost:
            app_of(acker).client.redis.flushall()

    counts = run_spout(spout, emit, add_then_flush)
    assert (counts.acked, counts.lost, counts.dead_lettered) == (6, 6, 0)


def test_emissions_broken_off_by_outage_consume_no_attempts(no_pauses: None, caplog: pytest.LogCaptureFixture) -> None:
    acker = fake_acker(AckerConfig(app="test", shards=1, message_timeout_secs=0.02))
    spout = new_spout(acker, messages=1, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    broken_off = 2 * LOST_LIMIT

    def emit(emission: Emission) -> None:
        if emission.number < broken_off:
            if emission.number % 4 == 3:  # it gets through, and then times out
                acker.init_many(emission.roots, [7], 0)
            raise ServerOutOfMemoryError("full")
        if emission.number > broken_off:  # one that gets lost without a known cause is only the first of LOST_LIMIT
            acker.init_many(emission.roots, [0], 0)

    def rotate(busy: bool) -> None:
        acker.admin.rotate()
        assert len(spout.state.sent) <= 1

    counts = run_spout(spout, emit, rotate)
    assert (counts.lost, counts.timed_out) == (16, 5)
    assert (counts.acked, counts.dead_lettered) == (1, 0)
    assert caplog.text.count("waiting for the server: error=full") == 1
    assert caplog.text.count("server is back") == 1


def test_an_emission_exempts_roots_that_it_fails(no_pauses: None) -> None:
    """An emission whose Spark tasks were lost fails its roots at once, so that they don't have to time out."""
    acker = fake_acker()
    spout = new_spout(acker, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))

    def emit(emission: Emission) -> None:
        acker.init_many(emission.roots, np.full(len(emission.roots), 7 if emission.number == 0 else 0), 0)
        if emission.number == 0:
            spout.marks.exempt(emission.roots)
            acker.fail_many(emission.roots)
            raise UnprovenEmissionError("lost a spout_id")

    counts = run_spout(spout, emit)
    assert (counts.acked, counts.failed, counts.dead_lettered) == (3, 3, 0)


def test_pause_grows_after_each_failed_emission(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[int] = []

    class Noted(NoBackoff):
        def compute(self, failures: int) -> float:
            pauses.append(failures)
            return 0.0

    monkeypatch.setattr("acker_redis.spout.emission_thread.Backoff", lambda **options: Noted())
    acker = fake_acker()
    spout = new_spout(acker)

    def emit(emission: Emission) -> None:
        if emission.number < 2:
            raise UnprovenEmissionError("lost a spout_id")
        acker.init_many(emission.roots, np.zeros(3, np.int64), 0)

    assert run_spout(spout, emit).acked == 3
    assert pauses == [1, 2]


@pytest.mark.parametrize("waiting_in_another_lane", [False, True])
def test_roots_forgotten_by_server_are_replayed_before_timeout(waiting_in_another_lane: bool) -> None:
    acker = fake_acker(AckerConfig(app="test", shards=1, message_timeout_secs=3600, lanes=2))
    if waiting_in_another_lane:
        acker.init(99, 0, spout_id=1)
    spout = new_spout(acker)

    def emit(emission: Emission) -> None:
        acker.init_many(emission.roots, np.full(3, 7 if emission.number == 0 else 0), 0)
        if emission.number == 0:  # as after a failover that lost the last writes
            app_of(acker).client.redis.delete("acker:{test:0}:ledger")
            app_of(acker).client.redis.hincrby("acker:{test:0}:stats", "inits", -3)

    counts = run_spout(spout, emit)
    assert (counts.acked, counts.lost, counts.emitted) == (3, 3, 6)


def test_roots_lost_by_replaced_server_are_replayed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counters don't show the loss: roots of another spout make up for ours."""
    acker = fake_acker(AckerConfig(app="test", shards=1, message_timeout_secs=3600))
    spout = new_spout(acker)
    servers = ["first"]
    monkeypatch.setattr(app_of(acker).client, "server_ids", lambda: frozenset([(servers[-1], "")]))

    def emit(emission: Emission) -> None:
        acker.init_many(emission.roots, np.full(3, 7 if emission.number == 0 else 0), 0)
        if emission.number == 0:
            app_of(acker).client.redis.delete("acker:{test:0}:ledger")

    def replace(busy: bool) -> None:
        if not busy and len(servers) == 1:
            servers.append("second")

    counts = run_spout(spout, emit, replace)
    assert (counts.acked, counts.lost) == (3, 3)


def test_permanent_error_ends_the_run() -> None:
    spout = new_spout(fake_acker())

    def emit_wrongly(emission: Emission) -> None:
        raise BadConfigError("no such setting")

    with pytest.raises(BadConfigError, match="no such setting"):
        run_spout(spout, emit_wrongly)
    assert spout.counts.emitted == 3


def test_log_of_error_that_ends_the_run_promises_no_replay(caplog: pytest.LogCaptureFixture) -> None:
    spout = new_spout(fake_acker())

    def emit(emission: Emission) -> None:
        raise InexactPipelineError("rows are missing")

    with pytest.raises(InexactPipelineError):
        run_spout(spout, emit)
    assert "replayed" not in caplog.text


def test_interrupted_run_logs_that_it_waits_for_emission(caplog: pytest.LogCaptureFixture) -> None:
    spout, interrupted = new_spout(fake_acker()), Event()

    def emit(emission: Emission) -> None:
        interrupted.wait(30)

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            interrupted.set()

    def interrupt(busy: bool) -> None:
        raise KeyboardInterrupt

    logger, heard = logging.getLogger("acker_redis.spout"), Heard()
    logger.addHandler(heard)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_spout(spout, emit, interrupt)
    finally:
        logger.removeHandler(heard)
    assert interrupted.is_set()
    assert "run ending, waiting for the current emission" in caplog.text and "error=KeyboardInterrupt" in caplog.text


def test_a_run_waits_for_a_server_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    acker = fake_acker()
    spout = new_spout(acker)
    poll_batches, failures = (
        acker.poll_batches,
        iter([ConnectionLostError("gone"), ServerRefusesWritesError("replica")]),
    )

    def poll(*args: object, **options: object) -> object:
        for error in failures:
            raise error
        return poll_batches(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(acker, "poll_batches", poll)
    monkeypatch.setattr("acker_redis.outages.Backoff", lambda **options: NoBackoff())

    def emit_all(emission: Emission) -> None:
        acker.init_many(emission.roots, np.zeros(3, np.int64), 0)

    assert run_spout(spout, emit_all).acked == 3
    assert "waiting for the server: error=replica" in caplog.text


def test_run_warns_once_when_no_rotator_runs(caplog: pytest.LogCaptureFixture) -> None:
    acker = fake_acker(AckerConfig(app="test", shards=1, message_timeout_secs=0.2))
    spout = new_spout(acker, messages=2)
    sent: list[Emission] = []

    def emit_later(emission: Emission) -> None:
        sent.append(emission)
        acker.init_many(emission.roots, [7, 7], 0)

    def ack_after_the_warning(busy: bool) -> None:
        if "start acker-redis rotator app=" in caplog.text:
            acker.ack_many(sent[0].roots, [7, 7])

    assert run_spout(spout, emit_later, ack_after_the_warning).acked == 2
    assert caplog.text.count("no rotator running") == 1


def test_step_with_last_outcome_notices_end_of_emission() -> None:
    """A step more would wait for outcomes of nothing: of a micro-batch 200 ms."""
    acker = fake_acker()
    spout = new_spout(acker, messages=4)
    acked, may_end = Event(), Event()

    def emit(emission: Emission) -> None:
        acker.init_many(emission.roots, np.zeros(len(emission.roots), np.int64), 0)
        acked.set()
        may_end.wait()

    with SpoutLoop(spout, emit) as loop:
        loop.step(0)
        acked.wait()
        while spout.pending:
            loop.step(0)
        assert loop.emission is not None
        may_end.set()
        loop.step(60_000)
        assert loop.emission is None


def test_error_of_the_last_emission_is_raised_as_it_is() -> None:
    """All its messages are done, so nothing makes up for it."""
    acker, may_end = fake_acker(), Event()
    spout = new_spout(acker, messages=1)

    def emit(emission: Emission) -> None:
        acker.init_many(emission.roots, np.zeros(1, np.int64), 0)
        may_end.wait(60)
        raise LookupError("typo")

    with pytest.raises(LookupError, match="typo"), SpoutLoop(spout, emit) as loop:
        while loop.emission is None or spout.pending:
            loop.step(0)
        may_end.set()


def test_interrupt_at_the_end_is_raised_in_place_of_an_emissions_error() -> None:
    loop = SpoutLoop(new_spout(fake_acker(), messages=1), lambda _: None)
    loop.start()
    loop._emitter.job_failed(LookupError("typo"), 1)
    loop._emitter.wait = Mock(side_effect=KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        loop.stop()
