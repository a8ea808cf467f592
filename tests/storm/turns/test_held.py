"""Tuples that bolts hold over turns on Spark: acked once, failed, timed out, and of an older run."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from acker_redis import Acker, InvalidTopologyError, OperatorBrokenError
from acker_redis.storm import Grouping, ReliableSpout, RetryPolicy, Spout
from tests.storm.turns import state_parts
from tests.storm.turns.batch_parts import ByNumber
from tests.storm.turns.held_parts import DiesWithItsTuples, Scripted, joining
from tests.storm.turns.parts import Does, Heard, chain, numbered, spout_of
from tests.storm.turns.test_state import state_of
from tests.storm.turns.tick_parts import source
from tests.support.spark import parquet

SOON, LATE = {"topology.message.timeout.secs": 1}, {"topology.message.timeout.secs": 60}


def halves(count: int) -> tuple[Heard, type[Spout], type[Spout]]:
    """Two spouts that emit the same numbers, one in the opposite order."""
    heard, numbers = Heard(), list(range(count))
    first = spout_of([(number, f"first {number}") for number in numbers], heard, ["n"])
    return heard, first, spout_of([(number, f"second {number}") for number in numbers[::-1]], heard, ["n"])


def appended(folder: Path) -> Any:
    return lambda writer: writer.mode("append").parquet(str(folder))


@pytest.mark.parametrize("kills", [False, True])
def test_a_join_of_two_spouts_holds_tuples_over_turns(
    run: Any, spark: Any, acker: Acker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: bool
) -> None:
    """A killed worker, and a commit that runs twice, change nothing."""
    statuses = state_parts.commit_twice(monkeypatch) if kills else []
    heard, first, second = halves(9)
    config = {**LATE, "folder": str(tmp_path)} if kills else LATE
    run(joining(first, second, config=config), turn_tuples=3, sinks={"join": appended(tmp_path / "out")})
    assert Counter(heard.acked) == Counter(f"{name} {n}" for n in range(9) for name in ("first", "second"))
    rows = Counter(n for (n,) in parquet.rows(tmp_path / "out", "n"))
    assert rows == Counter(range(9)) and state_of(acker, "joining", component="join") == {}
    assert (tmp_path / "killed").exists() == (len(statuses) > 2) == kills


def test_both_messages_of_a_pair_fail_with_the_tuple_that_is_derived_from_them(run: Any) -> None:
    heard, first, second = halves(6)
    run(joining(first, second, config=LATE, behind=Does("fail_at", 2)), turn_tuples=2)
    assert heard.failed == {"first 2": "on purpose", "second 2": "on purpose"} and len(heard.acked) == 10


LARGE = 2 << 20
"""Bytes of a tuple that no state can keep."""


def test_a_held_tuple_that_is_too_long_fails_its_message_and_no_other(run: Any, spark: Any, tmp_path: Path) -> None:
    """Its turn goes out again without it. Nothing of the first try counts, and no sink has written it."""
    heard = Heard()
    texts = {number: "x" * (LARGE if number == 2 else 1) for number in range(6)}
    first = spout_of([([n, text], f"first {n}") for n, text in texts.items()], heard, ["n", "text"])
    second = spout_of([([n, ""], f"second {n}") for n in (5, 4, 3, 1, 0)], heard, ["n", "text"])
    run(joining(first, second, config=LATE), turn_tuples=3, sinks={"join": appended(tmp_path / "out")})
    ((failed, reason),) = heard.failed.items()
    assert failed == "first 2" and "The state of the bolt 'join' can't keep the tuple '" in reason
    rest = [0, 1, 3, 4, 5]
    assert Counter(heard.acked) == Counter(f"{name} {n}" for n in rest for name in ("first", "second"))
    assert sorted(n for (n,) in parquet.rows(tmp_path / "out", "n")) == rest


def test_a_tuple_that_is_too_long_for_its_batch_is_dead_lettered_at_once(run: Any, spark: Any, tmp_path: Path) -> None:
    """Its bolt works. Two tuples of one turn are too long, in two tasks."""
    heard, values = Heard(), ["c", "c", "c", "a1", "a" * LARGE, "b" * LARGE, "a2", "a3"]
    spout = spout_of(numbered(values), heard, base=ReliableSpout, retry=RetryPolicy(max_attempts=4), max_fails=None)
    topology = chain(spout, ByNumber, par=2, grouping=Grouping.fields("v"), config=LATE)
    result = run(topology, turn_tuples=3, sinks={"a": appended(tmp_path / "out")})
    assert heard.failed.keys() == {4, 5} and sorted(call[1] for call in heard) == list(range(8))
    assert all("for 'its batches or windows'" in reason for reason in heard.failed.values())
    assert result.dead_letters == 2 and result.unfinished == 0
    rows = [v for (v,) in parquet.rows(tmp_path / "out", "v")]
    assert sorted(" ".join(rows).split()) == ["a1", "a2", "a3", "c", "c", "c"]


def test_a_bolt_that_holds_nothing_but_tuples_that_are_too_long_ends_the_run(run: Any, acker: Acker) -> None:
    heard, text = Heard(), "x" * ((1 << 20) + 1)
    first = spout_of([([n, text], n) for n in range(20)], heard, ["n", "text"], base=ReliableSpout)
    with pytest.raises(OperatorBrokenError, match="20 messages failed in 'join', which has not processed any message"):
        run(joining(first, spout_of([], heard, ["n", "text"]), config=LATE))
    assert not heard and acker.dead_letters.count() == 0


def script(*calls: str) -> tuple[Heard, type[Spout]]:
    heard = Heard()
    return heard, spout_of([(call, call) for call in calls], heard)


def said(run: Any, spark: Any, folder: Path, spout: type[Spout], config: Any = LATE) -> list[str]:
    """What came of a script with one call per turn."""
    run(chain(spout, Scripted, par=1, config=config), turn_tuples=1, sinks={"a": appended(folder)})
    return sorted(v for (v,) in parquet.rows(folder, "v") if not v.startswith("hold"))


def test_a_tuple_that_was_acked_in_an_earlier_turn_is_acked_once(run: Any, spark: Any, tmp_path: Path) -> None:
    heard, spout = script("hold a", "look a", "settle a", "look a", "settle a", "extend a")
    assert said(run, spark, tmp_path / "out", spout) == [
        "extend done", "look hold a 0 ACKED", "look hold a 1 PENDING", "settle done", "settle refused"
    ]  # fmt: skip
    assert heard.acked.count("hold a") == 1 and not heard.failed


def test_held_tuples_are_failed_acked_by_id_moved_and_anchors_in_later_turns(
    run: Any, spark: Any, tmp_path: Path
) -> None:
    heard, spout = script(
        "hold a",
        "hold b",
        "hold c",
        "reject a",
        "derive b",
        "derive b",
        "settle_by_id b",
        "look a",
        "move c",
        "settle_moved",
    )
    found = said(run, spark, tmp_path / "out", spout)
    assert heard.failed == {"hold a": "on purpose"} and {"hold b", "hold c"} <= set(heard.acked)
    assert found.count("derived") == 2 and "look hold a 0 FAILED" in found


def test_a_tuple_that_is_in_two_values_ends_the_run(run: Any, acker: Acker) -> None:
    heard, spout = script("hold a", "share a")
    with pytest.raises(InvalidTopologyError, match=r"has the tuple '1:.*' for 'a' and 'other'.*under one key"):
        run(chain(spout, Scripted, par=1), turn_tuples=1)
    assert not heard.acked and state_of(acker, "chain", 1, "a").keys() == {"a"}


def test_held_tuples_time_out_without_a_job_and_come_back_without_roots(
    run: Any, spark: Any, acker: Acker, tmp_path: Path
) -> None:
    """In the next run, their acks and the tuples that are anchored to them change nothing."""
    heard, spout = script("hold a")
    assert said(run, spark, tmp_path / "first", spout, config=SOON) == []
    assert heard == [("fail", "hold a", "timeout")]
    heard, spout = script("look a", "derive a", "settle a", "look a")
    found = said(run, spark, tmp_path / "second", spout)
    assert found == ["derive done", "derived", "look hold a 0 ACKED", "look hold a 0 PENDING", "settle done"]
    assert Counter(heard.acked) == {"look a": 2, "derive a": 1, "settle a": 1} and acker.pending() == 0


def test_a_tuple_whose_message_has_timed_out_has_no_root_in_later_turns(run: Any, spark: Any, tmp_path: Path) -> None:
    heard, failed = Heard(), threading.Event()
    left = ["settle a", "look a", "hold a"]

    class Waits(spout_of([], heard)):  # type: ignore[misc]
        def next_tuple(self) -> None:
            if left and (left[-1] == "hold a" or failed.is_set()):
                call = left.pop()
                self.emit([call], tup_id=call)

        def fail(self, tup_id: Any, reason: str) -> None:
            super().fail(tup_id, reason)
            failed.set()

    run(chain(Waits, Scripted, par=1, config=SOON), turn_tuples=1, sinks={"a": appended(tmp_path / "out")})
    assert heard[0] == ("fail", "hold a", "timeout") and sorted(heard.acked) == ["look a", "settle a"]
    found = {v for (v,) in parquet.rows(tmp_path / "out", "v")}
    assert {"look hold a 0 PENDING", "settle done"} <= found


@pytest.mark.usefixtures("one_attempt")
def test_held_tuples_fail_if_the_ticks_that_need_them_kill_their_worker(run: Any, tmp_path: Path) -> None:
    """The run goes on, and ticks do."""
    stop, heard = threading.Event(), list[Any]()
    values = ["fine", "bad", None, "good"]
    run(chain(source(values, heard, lambda: len(heard) == 3, stop), DiesWithItsTuples, par=1, config=LATE), stop=stop)
    ends = {call[1]: call[0] if call[0] == "ack" else call[2] for call in heard}
    assert ends["bad"] == "JobFailedError" and len(ends) == 3
    assert ends["good"] in ("ack", "JobFailedError")
