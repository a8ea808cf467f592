"""Batches and windows on Spark: over turns they are those of a run in process, and their tuples are acked with them."""

import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from acker_redis import Acker, OperatorBrokenError
from acker_redis.storm import Bolt, Spout, TopologyBuilder
from acker_redis.storm.core.java_hash import task_index
from tests.storm.turns import batch_parts, state_parts
from tests.storm.turns.parts import Does, Heard, chain, numbered, spout_of
from tests.storm.turns.test_state import state_of
from tests.storm.turns.tick_parts import source
from tests.support.spark import parquet


@pytest.fixture
def run(run: Any) -> Any:
    """A busy machine may need as long for some turns as messages usually have."""
    return partial(run, conf={"topology.message.timeout.secs": 60})


def sink(folder: Path) -> Any:
    return {"a": lambda writer: writer.mode("append").parquet(str(folder))}


def written(spark: Any, folder: Path) -> list[str]:
    return sorted(v for (v,) in parquet.rows(folder, "v"))


def in_process(values: Sequence[Any], bolt: type[Bolt]) -> list[str]:
    """What a run in process emits, for the same values in the same order."""
    with chain(spout_of(numbered(values), Heard()), bolt, par=1).local() as run:
        run.settle()
        emitted = [row[0] for row in run.emitted("a")]
    return sorted(emitted)


@pytest.mark.parametrize("bolt", [batch_parts.LastThree, batch_parts.Pairs, batch_parts.ByNumber])
def test_batches_and_windows_by_number_go_on_over_turns(
    run: Any, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bolt: type[Bolt]
) -> None:
    """The commit of a turn runs twice. At the end, a last window or batch has the tuples that are left."""
    statuses = state_parts.commit_twice(monkeypatch)
    values = ["a1", "b1", "a2", "b2", "a3", "a4", "b3"]
    heard = Heard()
    run(chain(spout_of(numbered(values), heard), bolt, par=1), turn_tuples=2, sinks=sink(tmp_path / "out"))
    found, expected = Counter(written(spark, tmp_path / "out")), Counter(in_process(values, bolt))
    rest = {"ByNumber": ["a4"], "Pairs": ["b3|b3|a3,a4"], "LastThree": []}[bolt.__name__]
    assert found == expected + Counter(rest) and len(statuses) > 2
    assert sorted(heard.acked) == list(range(7))


def test_a_batch_that_raises_fails_alone_and_a_killed_worker_repeats_none(run: Any, spark: Any, tmp_path: Path) -> None:
    heard, config = Heard(), {"folder": str(tmp_path)}
    values = ["a1", "x1", "k1", "k2", "x2", "a2", "a3", "x3", "k3"]
    topology = chain(spout_of(numbered(values), heard), batch_parts.ByNumber, par=1, config=config)
    run(topology, turn_tuples=3, sinks=sink(tmp_path / "out"))
    assert heard.failed == {1: "on purpose", 4: "on purpose", 7: "on purpose"} and len(heard.acked) == 6
    assert written(spark, tmp_path / "out") == ["a1 a2 a3", "k1 k2 k3"] and (tmp_path / "killed").exists()


@pytest.mark.parametrize("bolt", [batch_parts.ByTicks, batch_parts.ByTime])
def test_batches_are_processed_when_their_time_has_come(run: Any, spark: Any, tmp_path: Path, bolt: type[Bolt]) -> None:
    """Without another message: the turn has ticks alone."""
    stop, heard = threading.Event(), list[Any]()
    values = ["a1", "b1", None, "a2"]
    topology = chain(source(values, heard, lambda: len(heard) == 3, stop), bolt, par=1)
    run(topology, stop=stop, sinks=sink(tmp_path / "out"))
    assert sorted(call[:2] for call in heard) == [("ack", "a1"), ("ack", "a2"), ("ack", "b1")]
    assert Counter(" ".join(written(spark, tmp_path / "out")).split()) == Counter(["a1", "a2", "b1"])


def test_windows_by_time_have_each_tuple_as_new_once(run: Any, spark: Any, tmp_path: Path) -> None:
    """Windows that a turn missed are processed in the next one, at their own times."""
    stop, heard = threading.Event(), list[Any]()
    values = ["a", "b", None, "c", None, "d"]
    topology = chain(source(values, heard, lambda: len(heard) == 4, stop), batch_parts.ByMoment, par=1)
    run(topology, stop=stop, sinks=sink(tmp_path / "out"))
    assert sorted(call[:2] for call in heard) == [("ack", one) for one in "abcd"]
    parts = [[part.split(",") for part in text.split("|")] for text in written(spark, tmp_path / "out")]
    assert Counter(one for _, new, _ in parts for one in new if one) == Counter("abcd")
    times = Counter(one for tuples, _, _ in parts for one in tuples)
    assert all(times[one] == 3 for one in "abc"), "0.6 s have three windows each 0.2 s"


def test_windows_by_event_time_and_late_tuples(run: Any, spark: Any, tmp_path: Path) -> None:
    """The last window is processed when the run is stopped."""
    heard, stop = Heard(), threading.Event()
    left = [("late", 50), ("e", 5000), ("d", 3100), ("c", 200), ("b", 1900), ("a", 100)]

    class Clicks(Spout):
        outputs = ["v", "at"]

        def next_tuple(self) -> None:
            if left and (left[-1][0] != "late" or "a" in heard.acked):
                value = left.pop()
                self.emit(list(value), tup_id=value[0])

        def ack(self, tup_id: Any) -> None:
            heard.append(("ack", tup_id))
            if tup_id == "late":
                stop.set()

    builder = TopologyBuilder()
    builder.set_spout("clicks", Clicks)
    builder.set_bolt("a", batch_parts.ByEventTime).shuffle_grouping("clicks")
    builder.set_bolt("late", batch_parts.ShowsLate).shuffle_grouping("a", "late")
    out = tmp_path / "late"
    late = {"late": lambda writer: writer.mode("append").parquet(str(out))}
    run(builder.create_topology(), stop=stop, sinks=sink(tmp_path / "a") | late)
    assert sorted(heard.acked) == ["a", "b", "c", "d", "e", "late"]
    assert [text.split("|")[0] for text in written(spark, tmp_path / "a")] == ["a,c", "b", "d", "e"]
    assert written(spark, out) == ["late late of clicks"]


def test_windows_with_a_state_keep_it_over_runs(run: Any, acker: Acker) -> None:
    for times in (1, 2):
        heard = Heard()
        run(chain(spout_of(numbered("abcd"), heard), batch_parts.CountsWindows, par=1), turn_tuples=3)
        assert len(heard.acked) == 4 and state_of(acker, "chain", 1, "a") == {"windows": 4 * times}


def test_a_new_run_begins_without_the_tuples_of_the_last_one(
    run: Any, spark: Any, acker: Acker, tmp_path: Path
) -> None:
    """Their messages are emitted again."""
    heard = Heard()

    class Breaks(spout_of(numbered(["a1", "a2"]), heard)):  # type: ignore[misc]
        calls = 0

        def next_tuple(self) -> None:
            self.calls += 1
            if self.calls > 2:
                raise KeyError("source")
            super().next_tuple()

    with pytest.raises(KeyError, match="source"):
        run(chain(Breaks, batch_parts.ByNumber, par=1), turn_tuples=1)
    assert not heard
    run(chain(spout_of(numbered(["a1", "a2", "a3"]), heard), batch_parts.ByNumber, par=1), sinks=sink(tmp_path / "out"))
    assert written(spark, tmp_path / "out") == ["a1 a2 a3"] and sorted(heard.acked) == [0, 1, 2]


@pytest.mark.usefixtures("one_attempt")
def test_a_flush_that_kills_its_worker_fails_the_tuples_of_its_task_alone(run: Any) -> None:
    """The other task's batches are processed."""
    heard, values = Heard(), ["a1", "d1", "a2", "b1", "b2", "c1"]
    builder = TopologyBuilder()
    builder.set_spout("spout", spout_of(numbered(values), heard))
    builder.set_bolt("a", batch_parts.ByNumber, par=2).fields_grouping("spout", ["v"])
    run(builder.create_topology())
    tasks = [task_index([value], 2) for value in values]
    guilty = {number for number, task in enumerate(tasks) if task == tasks[1]}
    assert heard.failed.keys() == guilty and set(heard.acked) == set(range(6)) - guilty and heard.acked
    assert {reason.partition(":")[0] for reason in heard.failed.values()} == {"JobFailedError"}


def test_emits_of_a_batch_are_anchored_to_all_of_its_tuples(run: Any) -> None:
    heard = Heard()
    values = ["a1", "b1", "a2", "b2", "a3", "b3"]
    topology = chain(spout_of(numbered(values), heard), batch_parts.ByNumber, Does("fail_at", "a1 a2 a3"), par=1)
    run(topology, turn_tuples=2)
    assert heard.failed == {0: "on purpose", 2: "on purpose", 4: "on purpose"} and sorted(heard.acked) == [1, 3, 5]


@pytest.mark.usefixtures("one_attempt")
def test_batches_that_always_raise_an_exception_end_the_run_and_nothing_is_acked(run: Any) -> None:
    """Batches that were processed show that a bolt works, and not tuples that wait for theirs."""
    heard = Heard()
    with pytest.raises(OperatorBrokenError, match="failed in 'a', which has not processed any message"):
        run(chain(spout_of(numbered(range(30)), heard), batch_parts.Broken, par=1), turn_tuples=10)
    assert not heard
