"""Bolts with state on Spark: zombies, random deaths, late commits, a full app, and what the next run notices."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from acker_redis import Acker, Limits, StateLostError
from acker_redis.acker import app_of
from acker_redis.model.keys import StateKeys
from acker_redis.store import topology_sizes
from acker_redis.store.topology_state import Attempt, StateTurn, Status
from acker_redis.testing import wait_until
from tests.storm.turns.parts import Heard
from tests.storm.turns.state_parts import DiesAtRandom, LeavesAZombie, counting, spare_workers
from tests.storm.turns.test_state import LINES, counts_of, lines_of, state_of, words
from tests.support.spark import parquet
from tests.support.spark.faults import wait_for

STATE = StateKeys("turns", "words").state


def test_a_task_that_idles_for_ten_turns_goes_on_with_its_committed_state(run: Any, acker: Acker) -> None:
    """Nothing folds its commit meanwhile."""
    client, entries = app_of(acker).client, list[Any]()

    class Notes(lines_of(["rare", *["a"] * 10, "rare"], Heard())):  # type: ignore[misc]
        def ack(self, tup_id: Any) -> None:
            super().ack(tup_id)
            entries.append(set(client.pipeline([("HMGET", STATE, "task:count:0", "task:count:1")])[0]))

    run(counting(Notes), turn_tuples=1)
    assert len(entries) == 12
    (waits,) = entries[0] - {None}
    assert waits.startswith(b"u1:1:") and all(waits in found for found in entries[:11])
    assert words(state_of(acker)) == {"rare": 2, "a": 10}


def test_a_zombie_of_a_committed_turn_and_of_an_earlier_run_changes_nothing(
    run: Any, acker: Acker, url: str, tmp_path: Path
) -> None:
    heard = Heard()

    class Marks(lines_of(LINES, heard)):  # type: ignore[misc]
        def ack(self, tup_id: Any) -> None:
            super().ack(tup_id)
            (tmp_path / "committed").touch()
            wait_for(tmp_path / "answered-committed")  # the run may end, and another one begin, before it looks

    config = {"folder": str(tmp_path), "url": url}
    run(counting(Marks, count=LeavesAZombie, config=config), turn_tuples=2)
    assert sorted(heard.acked) == list(range(len(LINES)))
    state = state_of(acker)  # which begins a run
    (tmp_path / "ended").touch()
    wait_for(tmp_path / "answers")
    answers = (tmp_path / "answers").read_text().split("\n")
    assert answers[:6] == [*["turn over"] * 3, "'DECIDED'", "[0]", "False"]
    assert answers[6:] == [*["newer run"] * 3, "'STALE'", "newer run", "newer run"]
    assert words(state) == words(state_of(acker)) == counts_of(LINES)


def play_deaths(run: Any, acker: Acker, folder: Path, name: str, lines: list[str], deaths: int, tuples: int) -> None:
    """Without a replay the state is the oracle's, whatever dies."""
    heard = Heard()
    folder.mkdir()
    config = {"folder": str(folder), "deaths": deaths}
    try:
        run(counting(lines_of(lines, heard), name, count=DiesAtRandom, config=config), turn_tuples=tuples)
    finally:
        spare_workers(folder, deaths)
    assert Counter(call[1] for call in heard) == Counter(range(len(lines))) and len(heard.acked) == len(lines)
    state = state_of(acker, name)
    assert words(state) == counts_of(lines)
    seen = Counter({key[1]: len(of) for key, of in state.items() if isinstance(key, tuple)})
    assert {word: n for word, n in seen.items() if word != "gone"} == counts_of(lines)
    sizes = topology_sizes.read(app_of(acker).client, "turns", name)
    assert sum(size.keys or 0 for size in sizes) == len(state)


def test_workers_that_die_at_random_leave_the_oracles_state(run: Any, acker: Acker, tmp_path: Path) -> None:
    play_deaths(run, acker, tmp_path / "deaths", "words", LINES * 4, deaths=3, tuples=5)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(12))
def test_many_random_deaths_leave_the_oracles_state(run: Any, acker: Acker, tmp_path: Path, seed: int) -> None:
    play_deaths(run, acker, tmp_path / "deaths", "words", LINES * 20, deaths=3 + seed, tuples=3 + 7 * seed)


def test_a_commit_that_wakes_behind_the_timeout_of_its_turn_changes_nothing(
    run: Any, acker: Acker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its turn was closed, and its messages have gone out again."""
    commit, late = StateTurn.commit, list[tuple[StateTurn, list[Attempt]]]()

    def stalls(self: StateTurn, attempts: Any) -> Status:
        if not late:
            late.append((self, list(attempts)))
            raise TimeoutError("turn_timeout_secs, on purpose")
        return commit(self, attempts)

    monkeypatch.setattr(StateTurn, "commit", stalls)
    heard, answers = Heard(), list[Status]()

    class Wakes(lines_of(LINES, heard)):  # type: ignore[misc]
        def ack(self, tup_id: Any) -> None:
            super().ack(tup_id)
            answers.append(commit(*late[0]))

    run(counting(Wakes), turn_tuples=100)
    assert sorted(heard.acked) == list(range(len(LINES)))
    assert answers == [Status.DECIDED] * len(LINES) and late[0][1]
    assert words(state_of(acker)) == counts_of(LINES)
    assert commit(*late[0]) is Status.STALE, "the next run has begun"


def test_a_topology_above_its_limit_waits_until_it_is_raised(run: Any, acker: Acker) -> None:
    client, heard = app_of(acker).client, Heard()
    acker.admin.set_limits(Limits(max_state_bytes=20))

    def raise_it() -> None:
        wait_until(lambda: client.pipeline([("HGET", STATE, "decision")]) == [b"closed"], "a turn is refused", 120)
        assert topology_sizes.read_total(client, "turns") <= 20
        acker.admin.set_limits(Limits())

    thread = threading.Thread(target=raise_it)
    thread.start()
    run(counting(lines_of(LINES, heard)))
    thread.join()
    assert sorted(heard.acked) == list(range(len(LINES)))
    assert words(state_of(acker)) == counts_of(LINES) and topology_sizes.read_total(client, "turns") > 20


def test_a_limit_that_tasks_exceed_together_is_met_before_the_sinks_write(
    run: Any, acker: Acker, spark: Any, tmp_path: Path
) -> None:
    """Each task alone is within it. Behind the sinks, each try of the turn would write again."""
    client, out = app_of(acker).client, str(tmp_path / "out")
    run(counting(lines_of(LINES, Heard()), "measured"))
    first, second = (size.bytes for size in topology_sizes.read(client, "turns", "measured"))
    assert first and second
    acker.admin.set_limits(Limits(max_state_bytes=2 * (first + second) - 1))

    def raise_it() -> None:
        wait_until(lambda: client.pipeline([("HGET", STATE, "decision")]) == [b"closed"], "a turn is refused", 120)
        acker.admin.set_limits(Limits())

    thread, heard = threading.Thread(target=raise_it), Heard()
    thread.start()
    run(counting(lines_of(LINES, heard)), sinks={"count": lambda writer: writer.mode("append").parquet(out)})
    thread.join()
    assert sorted(heard.acked) == list(range(len(LINES)))
    written = Counter(word for (word,) in parquet.rows(out, "word"))
    assert written == Counter(" ".join(LINES).split())


def test_a_failover_between_two_runs_is_noticed_once(spark: Any, run: Any, acker: Acker) -> None:
    """It took the end of the run along."""
    run(counting(lines_of(LINES, Heard())))
    client, heard = app_of(acker).client, Heard()
    assert client.pipeline([("HGET", STATE, "server")]) == [None], "the run has ended"
    client.pipeline([("HSET", STATE, "server", "another")])
    with pytest.raises(StateLostError, match=r"didn't end, and the server was restarted .*Run again"):
        counting(lines_of(LINES, heard)).run(spark, acker=acker)
    assert not heard
    run(counting(lines_of(LINES, heard)))
    assert sorted(heard.acked) == list(range(len(LINES))) and words(state_of(acker)) == counts_of(LINES, 2)
