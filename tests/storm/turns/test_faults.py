"""Topologies on Spark with killed workers, hanging bolts, lost shuffle files and late tasks: no false ack, nothing lost."""

import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from acker_redis import Acker
from acker_redis.spark.runtime import jobs
from acker_redis.storm import ReliableSpout, Spout
from acker_redis.storm.local.updates import Updates
from acker_redis.storm.turns import sinks
from acker_redis.storm.turns.steps import ReadBackStep, TurnSpec
from tests.storm.turns import parts
from tests.storm.turns.parts import Does, Heard, Passing, chain, numbered, spout_of
from tests.support.spark.faults import evict, once


def test_a_worker_that_is_killed_once_costs_nothing(run: Any, tmp_path: Path) -> None:
    heard = Heard()
    run(chain(spout_of(numbered(range(40)), heard), Does("kill_once", str(tmp_path / "mark")), Passing))
    assert sorted(heard.acked) == list(range(40))


@pytest.mark.usefixtures("one_attempt")
def test_a_message_that_kills_its_worker_is_found_and_fails_alone(run: Any) -> None:
    heard = Heard()
    run(chain(spout_of(numbered(range(40)), heard), Does("kill_at", 17), Passing))
    assert heard.failed.keys() == {17} and heard.failed[17].startswith("JobFailedError")
    assert sorted(heard.acked) == [number for number in range(40) if number != 17]


@pytest.mark.usefixtures("one_attempt")
def test_a_reliable_message_that_kills_its_worker_is_dead_lettered_and_others_go_on(run: Any, acker: Acker) -> None:
    heard = Heard()
    result = run(chain(spout_of(numbered(range(20)), heard, base=ReliableSpout), Does("kill_at", 3), Passing))
    assert sorted(heard.acked) == [number for number in range(20) if number != 3]
    assert result.dead_letters == 1 and heard.failed.keys() == {3}


@pytest.mark.usefixtures("one_attempt")
def test_an_untracked_tuple_that_kills_its_worker_is_dropped(run: Any) -> None:
    heard = Heard()
    messages = [(number, number if number != 3 else None) for number in range(12)]
    run(chain(spout_of(messages, heard), Does("kill_at", 3), Passing))
    assert sorted(heard.acked) == [number for number in range(12) if number != 3] and not heard.failed


def test_a_bolt_that_never_returns_is_cancelled_and_its_message_found(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a turn begins once a bolt hangs: a busy machine may need as long for one that doesn't."""
    mark = tmp_path / "hangs"

    class SinceItHangs(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            while not mark.exists():
                if super().wait(0.02):
                    return True
            is_ended = super().wait(timeout)
            mark.unlink(missing_ok=True)  # the next turn may hang again
            return is_ended

    monkeypatch.setattr(jobs, "threading", SimpleNamespace(Event=SinceItHangs, Thread=threading.Thread))
    heard = Heard()
    run(chain(spout_of(numbered(range(4)), heard), Does("hang_at", 2, str(mark)), Passing), turn_timeout_secs=2)
    assert heard.failed.keys() == {2} and "turn_timeout_secs=2" in heard.failed[2]
    assert sorted(heard.acked) == [0, 1, 3]


@pytest.mark.parametrize("with_sink", [False, True], ids=["acks", "sinks"])
def test_bolts_that_arent_deterministic_cause_no_false_ack_when_a_worker_is_killed(
    run: Any, tmp_path: Path, with_sink: bool
) -> None:
    heard = Heard()
    bolt = Does("note_drawn_and_die_once", str(tmp_path), None)
    topology = chain(spout_of(numbered(range(60)), heard), Does("draw"), bolt, parts.Seen)
    result = run(topology, sinks={"c": parts.drop} if with_sink else None)
    assert (tmp_path / "died").exists()
    assert sorted(heard.acked) == list(range(60)) and set(heard.acked) <= parts.processed_whole(tmp_path)
    assert result.metrics["b"].executed["a:default"] == result.metrics["a"].emitted["default"], (
        "each execution counts once"
    )


@pytest.mark.classic("it takes shuffle files away")
@pytest.mark.usefixtures("loses_executor")
@pytest.mark.parametrize("with_sink", [False, True], ids=["acks", "sinks"])
def test_lost_shuffle_files_and_bolts_that_arent_deterministic_cause_no_false_ack(
    run: Any, spark: Any, tmp_path: Path, with_sink: bool
) -> None:
    """A stage runs again with other results. Trees that mix both stay open and time out."""
    heard = Heard()
    bolt = Does("note_drawn_and_die_once", str(tmp_path), str(spark.conf.get("spark.local.dir")))
    topology = chain(
        spout_of(numbered(range(60)), heard),
        Does("draw"),
        bolt,
        parts.Seen,
        config={"topology.message.timeout.secs": 1},
    )
    result = run(topology, sinks={"c": parts.drop} if with_sink else None)
    assert (tmp_path / "died").exists()
    assert Counter(call[1] for call in heard) == Counter(range(60)), "each message has one outcome"
    assert set(heard.acked) <= parts.processed_whole(tmp_path)
    assert set(heard.failed.values()) <= {"timeout"} and result.acked + result.timed_out == 60


@pytest.mark.classic("it takes cached blocks away")
@pytest.mark.parametrize(("behind", "messages"), [("levels", 4), ("written", 4), ("written", 1)])
def test_a_lost_block_of_kept_rows_breaks_the_turn_and_its_messages_go_out_again(
    run: Any, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: str, messages: int
) -> None:
    """Other tuples may come of it, so that nothing is taken from the turn that broke. It is no message's attempt."""
    write, lost = sinks.write, tmp_path / "lost"

    def lose() -> None:
        for partition in range(2):  # one of them has the rows of a single message
            evict(spark.sparkContext, partition)

    def write_and_lose(*arguments: Any) -> None:
        if behind == "levels":
            once(lost, lose)
        write(*arguments)
        once(lost, lose)

    monkeypatch.setattr(sinks, "write", write_and_lose)
    heard = Heard()
    topology = chain(
        spout_of(numbered(range(messages)), heard), Does("draw"), Does("note_drawn", str(tmp_path)), parts.Seen
    )
    result = run(topology, sinks={"c": parts.drop})
    assert lost.exists() and sorted(heard.acked) == list(range(messages)) and result.failed == 0
    assert set(heard.acked) <= parts.processed_whole(tmp_path)


@pytest.mark.chaos
def test_a_small_turn_whose_rows_cant_be_read_back_acks_nothing_and_goes_out_again(
    run: Any, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a read-back in another process, the acks would be sent for the batches that had passed."""

    def read_back(spec: TurnSpec, contents: Any) -> ReadBackStep:
        return ReadBackStep(spec, {} if spec.turn == 1 else contents)

    monkeypatch.setattr("acker_redis.storm.turns.job.ReadBackStep", read_back)
    heard = Heard()
    records = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(records)
    spark.conf.set(records, "1")
    try:
        result = run(chain(spout_of(numbered(range(20)), heard), Passing, parts.Seen), sinks={"b": parts.drop})
    finally:
        spark.conf.set(records, before)
    assert sorted(heard.acked) == list(range(20)) and not heard.failed
    assert (result.acked, result.failed, result.timed_out) == (20, 0, 0)


@pytest.mark.parametrize(("step", "end"), [(parts.DiesWhenItHasSent, "ack"), (parts.DiesBeforeItSends, "timeout")])
def test_an_ack_task_that_dies_four_times_acks_nothing_twice_and_loses_nothing(
    run: Any, acker: Acker, monkeypatch: pytest.MonkeyPatch, step: type, end: str
) -> None:
    """Some updates of the turn are in the ledger, so there is no search. What wasn't sent times out."""
    monkeypatch.setattr("acker_redis.storm.turns.job.AckStep", step)
    heard = Heard()
    config = {"topology.message.timeout.secs": 1}
    result = run(chain(spout_of(numbered(range(200)), heard), Passing, config=config))
    assert Counter(call[1] for call in heard) == Counter(range(200))
    assert (result.failed, result.acked + result.timed_out) == (0, 200)
    assert (result.timed_out == 0) == (end == "ack") and set(heard.failed.values()) <= {"timeout"}


def test_messages_of_a_turn_whose_ledger_is_lost_are_replayed(run: Any, url: str, tmp_path: Path) -> None:
    heard = Heard()
    bolt = Does("empty_redis_once", str(tmp_path / "mark"), url)
    result = run(chain(spout_of(numbered(range(30)), heard, base=ReliableSpout), bolt, Passing))
    assert sorted(heard.acked) == list(range(30)) and set(heard.failed.values()) <= {"lost"}
    assert result.dead_letters == 0 and result.unfinished == 0


def test_a_long_turn_renews_its_messages_and_not_a_forgotten_one_of_their_block(
    spark: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block has one deadline, which passes while the job runs."""
    heard, roots, over = Heard(), [], threading.Event()
    new_root = Updates.new_root

    def noted(self: Updates) -> int:
        roots.append(new_root(self))
        return roots[-1]

    monkeypatch.setattr(Updates, "new_root", noted)
    spout = spout_of([(1, "forgotten"), (2, "slow"), (4, "after")], heard)
    first = Does("forget_odd_and_pass", auto_ack=False)
    topology = chain(spout, first, Does("wait_at", 2, str(tmp_path)), config={"topology.message.timeout.secs": 2})

    def rotate(acker: Acker) -> None:
        ticks = 0
        while not over.is_set():
            ticks += acker.admin.rotate().ticked if (tmp_path / "began").exists() else 0
            if ticks > acker.config.num_buckets + 2:
                (tmp_path / "enough").touch()
            over.wait(0.02)

    with (
        Acker.connect(url, app="turns", shards=1, message_timeout_secs=2) as acker,
        Acker.connect(url, app="turns", shards=1, message_timeout_secs=2) as other,
    ):
        thread = threading.Thread(target=rotate, args=(other,))
        thread.start()
        try:
            result = topology.run(spark, acker=acker, turn_tuples=2, turn_secs=60)
        finally:
            over.set()
            thread.join()
        assert acker.pending() == 0
    assert sorted(heard.acked) == ["after", "slow"] and heard.failed == {"forgotten": "timeout"}
    assert result.timed_out == 1 and len({root & ((1 << 59) - 1) for root in roots}) == 1


def test_a_turn_waits_while_redis_is_away(spark: Any, start_server: Any, tmp_path: Path) -> None:
    server, heard = start_server(), Heard()
    messages = iter(numbered(range(6)))

    class Restarts(Spout):
        outputs = ["v"]

        def next_tuple(self) -> None:
            for value, tup_id in messages:
                if tup_id == 3:
                    server.kill()
                    threading.Timer(2, server.start).start()
                self.emit([value], tup_id=tup_id)
                return

        def ack(self, tup_id: Any) -> None:
            heard.append(("ack", tup_id))

        def fail(self, tup_id: Any, reason: str) -> None:
            heard.append(("fail", tup_id, reason))

    with Acker.connect(server.url, app="turns", message_timeout_secs=60, outage_timeout_secs=1) as acker:
        result = chain(Restarts, Passing).run(spark, acker=acker, turn_tuples=2, turn_secs=60)
    assert Counter(call[1] for call in heard) == Counter(range(6)) and set(heard.failed.values()) <= {"lost"}
    assert result.unfinished == 0 and {4, 5} <= set(heard.acked)
