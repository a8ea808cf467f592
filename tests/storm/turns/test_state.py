"""Bolts with state on Spark: their state is that of the committed turns, whatever dies."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from acker_redis import (
    Acker,
    BadConfigError,
    ConnectionLostError,
    InvalidTopologyError,
    PipelineError,
    StateLostError,
    TurnOverError,
)
from acker_redis.acker import app_of
from acker_redis.model.keys import StateKeys
from acker_redis.store.topology_state import StateTurn, Status
from acker_redis.storm import Spout, TopologyBuilder
from acker_redis.storm.state.codec import decode_key, decode_value
from tests.storm.turns import parts, state_parts
from tests.storm.turns.parts import Heard, chain, numbered, spout_of
from tests.storm.turns.state_parts import CountsFromInitialize, CountsTicks, counting
from tests.storm.turns.tick_parts import source
from tests.support.spark import parquet
from tests.support.spark.faults import once, raise_error

LINES = ["a b", "b c gone", "a", "d d d", "a c b"]


def state_of(acker: Acker, topology: str = "words", par: int = 2, component: str = "count") -> dict[Any, Any]:
    """The state of a bolt at its last committed turn. It is read as a new run reads it, which folds."""
    stored = app_of(acker).topology_state(topology)
    epoch, _ = stored.open({})
    found: dict[Any, Any] = {}
    for index in range(par):
        task, turn = StateKeys.task(component, index), stored.turn(epoch, 1)
        turn.load(task)
        for part in turn.read_all(task):
            assert not found.keys() & set(map(decode_key, part))
            found |= {decode_key(field): decode_value(data) for field, data in part.items()}
    return found


def counts_of(lines: list[str], times: int = 1) -> dict[str, int]:
    return {word: times * n for word, n in Counter(" ".join(lines).split()).items() if word != "gone"}


def words(state: dict[Any, Any]) -> dict[Any, int]:
    return {key: n for key, n in state.items() if isinstance(key, str)}


def lines_of(lines: list[str], heard: Heard, **own: Any) -> type[Spout]:
    return spout_of(numbered(lines), heard, fields=["line"], **own)


def test_counts_over_turns_and_runs_are_the_oracles(run: Any, acker: Acker) -> None:
    for times in (1, 2):
        heard = Heard()
        run(counting(lines_of(LINES, heard)), turn_tuples=2)
        assert sorted(heard.acked) == list(range(len(LINES)))
        state = state_of(acker)
        assert words(state) == counts_of(LINES, times)
        seen = Counter({key[1]: len(of) for key, of in state.items() if isinstance(key, tuple)})
        assert seen == {**counts_of(LINES, times), "gone": times}, "a list that changed in place"


def test_a_killed_worker_and_a_commit_that_runs_twice_change_nothing(
    run: Any, acker: Acker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses = state_parts.commit_twice(monkeypatch)
    heard = Heard()
    lines = [*LINES, "x kills-once y", *LINES]
    run(counting(lines_of(lines, heard), config={"folder": str(tmp_path)}), turn_tuples=6)
    assert (tmp_path / "killed").exists() and set(statuses) == {Status.OPEN} and len(statuses) > 2
    assert sorted(heard.acked) == list(range(len(lines)))
    assert words(state_of(acker)) == counts_of(lines)


def test_the_search_for_a_message_that_kills_its_worker_counts_nothing_twice(run: Any, acker: Acker) -> None:
    heard = Heard()
    run(counting(lines_of([*LINES, "x kills y"], heard)))
    assert heard.failed.keys() == {5} and sorted(heard.acked) == list(range(5))
    assert words(state_of(acker)) == counts_of(LINES)


@pytest.mark.parametrize("deaths", [1, pytest.param(5, marks=pytest.mark.chaos)])
def test_ticks_change_the_state_in_turns_that_are_committed(
    run: Any, acker: Acker, spark: Any, tmp_path: Path, deaths: int
) -> None:
    """Spark tries a task four times, so a turn with ticks breaks at five deaths. The ticks go again alone, and count once."""
    stop, out = threading.Event(), str(tmp_path / "out")
    written: list[int] = []

    def write(writer: Any) -> None:
        writer.mode("append").parquet(out)
        written.append(1)

    builder = TopologyBuilder()
    builder.set_spout("spout", source(["a", "b", None, "c"], [], lambda: len(written) > 2, stop))
    builder.set_bolt("bolt", CountsTicks).shuffle_grouping("spout")
    run(builder.create_topology("ticks", {"folder": str(tmp_path), "deaths": deaths}), stop=stop, sinks={"bolt": write})
    assert (tmp_path / f"died-{deaths - 1}").exists()
    state = state_of(acker, "ticks", 1, "bolt")
    rows = sorted(parquet.rows(out, "ticks", "n"))
    assert [ticks for ticks, _ in rows] == list(range(1, len(rows) + 1)) and len(rows) > 2
    assert len(set(state["ticks"])) == len(rows) and state["n"] == 3


@pytest.mark.classic("it takes shuffle files away")
@pytest.mark.usefixtures("loses_executor")
def test_levels_that_run_again_count_once(run: Any, spark: Any, acker: Acker, tmp_path: Path) -> None:
    """Updates of an execution whose state doesn't count aren't sent. Their messages time out."""
    heard = Heard()
    config = {
        "folder": str(tmp_path), "local": spark.conf.get("spark.local.dir"), "topology.message.timeout.secs": 1
    }  # fmt: skip
    result = run(counting(lines_of(LINES, heard), config=config, behind=state_parts.LosesShuffleFiles))
    assert (tmp_path / "lost").exists() and result.acked + result.timed_out == len(LINES)
    assert words(state_of(acker)) == counts_of(LINES)


def test_rows_are_written_before_the_state_counts(run: Any, acker: Acker, spark: Any, tmp_path: Path) -> None:
    calls = []

    def breaks(writer: Any) -> None:
        calls.append(writer)
        if len(calls) > 1:  # the first one writes nothing
            raise OSError("on purpose")
        writer.mode("append").parquet(str(tmp_path / "out"))

    with pytest.raises(PipelineError, match="'sink of count' can't be written: OSError: on purpose"):
        run(counting(lines_of(["a b"], Heard())), sinks={"count": breaks})
    assert state_of(acker) == {}
    heard = Heard()
    run(
        counting(lines_of(["a b"], heard)),
        sinks={"count": lambda writer: writer.mode("append").parquet(str(tmp_path / "out"))},
    )
    assert heard.acked == [0]
    assert set(parquet.rows(tmp_path / "out", "word", "n")) == {("a", 1), ("b", 1)}
    assert words(state_of(acker)) == {"a": 1, "b": 1}


def test_an_ack_task_that_dies_behind_the_commit_doesnt_take_it_back(
    run: Any, acker: Acker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no search: what wasn't acked times out, and a replay counts again."""
    monkeypatch.setattr("acker_redis.storm.turns.job.AckStep", parts.DiesBeforeItSends)
    heard = Heard()
    run(counting(lines_of(LINES, heard), config={"topology.message.timeout.secs": 1}))
    assert Counter(call[1] for call in heard) == Counter(range(len(LINES)))
    assert words(state_of(acker)) == counts_of(LINES)


def test_a_turn_that_cant_be_committed_leaves_nothing_and_goes_out_again(
    run: Any, acker: Acker, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = StateTurn.commit

    def breaks_in_the_first_turn(self: StateTurn, attempts: Any) -> Status:
        if self.number == 1:
            raise ConnectionLostError("the server is away, on purpose")
        return commit(self, attempts)

    monkeypatch.setattr(StateTurn, "commit", breaks_in_the_first_turn)
    heard = Heard()
    run(counting(lines_of(LINES[:2], heard)))
    assert sorted(heard.acked) == [0, 1]
    assert words(state_of(acker)) == counts_of(LINES[:2])


@pytest.mark.usefixtures("one_attempt")
def test_what_initialize_wrote_into_the_state_comes_back_with_the_next_turn(
    run: Any, acker: Acker, tmp_path: Path
) -> None:
    mark = tmp_path / "raised"

    def raises_once(batches: Any, partition: int) -> None:
        for _ in batches:
            once(mark, raise_error)

    heard = Heard()
    run(counting(lines_of(LINES, heard), par=4, count=CountsFromInitialize), sinks={"count": raises_once})
    assert mark.exists()
    assert (sorted(heard.acked), heard.failed) == (list(range(len(LINES))), {})
    assert sum(state_of(acker, par=4).values()) == len(" ".join(LINES).split())


def test_state_is_kept_under_the_name_in_the_settings(run: Any, acker: Acker) -> None:
    for name, times in (("eu", 1), ("us", 1), ("eu", 2)):
        run(counting(lines_of(LINES, Heard()), config={"topology.name": name}))
        assert words(state_of(acker, name)) == counts_of(LINES, times)
    assert state_of(acker) == {}


def test_a_newer_run_ends_the_older_one(spark: Any, acker: Acker) -> None:
    """Its turn was under way: nothing of it counts."""
    heard = Heard()

    class Interferes(lines_of(LINES[:4], heard)):  # type: ignore[misc]
        def ack(self, tup_id: Any) -> None:
            super().ack(tup_id)
            app_of(acker).topology_state("words").open({})

    with pytest.raises(TurnOverError, match="newer run of topology 'words' has begun"):
        counting(Interferes).run(spark, acker=acker, turn_tuples=2, turn_secs=60)
    assert sorted(heard.acked) == [0, 1]
    assert words(state_of(acker)) == counts_of(LINES[:2])


def test_lost_writes_end_the_run(spark: Any, acker: Acker, url: str) -> None:
    heard = Heard()
    client = app_of(acker).client

    class Loses(lines_of(LINES[:4], heard)):  # type: ignore[misc]
        def ack(self, tup_id: Any) -> None:
            super().ack(tup_id)
            client.pipeline([("HSET", "acker:{turns}:state:words", "turn", 0, "decision", "")])

    with pytest.raises(StateLostError, match=r"state of topology 'words'.*Run again"):
        counting(Loses).run(spark, acker=acker, turn_tuples=2)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (state_parts.a_function, "can't keep its value for 'kept'"),
        (state_parts.two_megabytes, "a value of 2,097,1.. bytes"),
    ],
)
def test_values_that_cant_be_kept_end_the_run_and_nothing_is_committed(
    run: Any, acker: Acker, make: Any, text: str
) -> None:
    heard = Heard()
    with pytest.raises(InvalidTopologyError, match=text):
        run(chain(spout_of(numbered("a"), heard), state_parts.Keeps(make)))
    assert not heard.acked and state_of(acker, "chain", component="a") == {}


def test_another_number_of_tasks_or_other_fields_are_refused(run: Any, acker: Acker) -> None:
    run(counting(lines_of([], Heard())))
    with pytest.raises(
        InvalidTopologyError, match=r"'count' of topology 'words' was written with .*\"tasks\": 2.*\"tasks\": 3"
    ):
        run(counting(lines_of(LINES, Heard()), par=3))
    run(counting(lines_of([], Heard()), name="other", par=3))


def test_servers_that_evict_and_runs_without_acks_are_refused(run: Any, acker: Acker) -> None:
    topology = counting(lines_of(LINES, Heard()), config={"topology.acker.executors": 0})
    with pytest.raises(InvalidTopologyError, match=r"topology\.acker\.executors is 0, and the bolt 'count' has state"):
        run(topology)
    client = app_of(acker).client
    client.redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(BadConfigError, match=r"maxmemory-policy allkeys-lru.*noeviction"):
            run(counting(lines_of(LINES, Heard())))
    finally:
        client.redis.config_set("maxmemory-policy", "noeviction")


def test_more_tasks_than_one_call_commits_are_refused(run: Any) -> None:
    with pytest.raises(InvalidTopologyError, match="251 tasks with state"):
        run(counting(lines_of([], Heard()), par=251))
