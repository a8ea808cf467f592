"""Scenarios that were recorded on Storm 2.8.2, replayed on Spark."""

import contextlib
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm.definition.settings import MESSAGE_TIMEOUT_SECS
from acker_redis.testing import wait_until
from tests.storm.conformance import scenarios
from tests.storm.conformance.recording import Facts
from tests.storm.conformance.scenarios import SCENARIOS, Scenario
from tests.storm.conformance.test_vectors import RECORDED, comparable, expected_of
from tests.storm.turns.recording import Ended, SparkRecording

REFUSED = {"cycle": "A turn passes each bolt once."}
"""Scenarios that `run` refuses, and why."""

NOT_EXPRESSED = {
    "deactivate_pending": "A pause of the app calls no deactivate().",
    "execute_returns_without_ack_then_later": "Two tuples are pending in the end, and a run waits for their timeout.",
    "inactive_start": "A run on Spark begins active.",
}

OVER_TURNS = {"dup_anchor_lists", "join_fail", "join_ok", "stateful", "window_sliding_3_1", "window_tumbling_2"}
"""Scenarios whose messages have a turn each, so that bolts hold tuples, counts and windows over turns."""

AT_THE_END: dict[str, Facts] = {
    "window_sliding_3_1": {"acked": [["spout", 0, f"m{number}"] for number in range(1, 6)]},
    "window_tumbling_2": {
        "acked": [["spout", 0, f"m{number}"] for number in range(1, 6)],
        "executed": {
            "win": [[None, None, values] for values in ([1, 2], [3, 4], [5])],
            "sink": [["win[0]", "default", [f"{values}"]] for values in ([1, 2], [3, 4], [5])],
        },
    },
}
"""Facts of runs that process a last window at their end, as `run_local` does, too."""

ENDS_AT = {
    "arity": {"next_tuple": 8},
    "direct": {"next_tuple": 10},
    "timeouts_disabled": {"ack": 1},
}
"""Scenarios whose run is stopped, once a call was made so often. The others come to an end by themselves."""

STOPPED_AFTER = {"tick": ("sink", 6)}
"""Scenarios whose run is stopped once a bolt has executed so many tuples."""

QUICK = {"never_acks", "timeout_phase", "timeouts_disabled"}
"""Scenarios that wait for timeouts, which are shorter here."""

UNCHECKED = {
    "_each_task_has_its_own_ticks": "The number of ticks depends on the time. A check below takes its place.",
    "_tumbling_windows_have_new_tuples_only": "The end of the run has a last window, which the facts have.",
    "_every_task_gets_some": "The hash of a random run chooses the tasks.",
}
"""Checks beside the facts that don't hold on Spark, and why."""

EXPRESSED = [name for name in SCENARIOS if name not in REFUSED and name not in NOT_EXPRESSED]


def recorded(scenario: Scenario, folder: Path) -> tuple[SparkRecording, Any]:
    recording = SparkRecording(folder, ENDS_AT.get(scenario.name, {}))
    topology = scenario.build(recording).create_topology()
    graph = topology._checked_graph()
    for component in graph.components.values():
        recording.names |= {task: f"{component.name}[{index}]" for index, task in enumerate(component.task_ids)}
    return recording, topology


@pytest.mark.parametrize("name", EXPRESSED)
def test_facts_on_spark_are_storm_s(run: Any, tmp_path: Path, name: str) -> None:
    scenario = SCENARIOS[name]
    recording, topology = recorded(scenario, tmp_path)
    stop = recording.stop if name in ENDS_AT or name in STOPPED_AFTER else None
    if name in STOPPED_AFTER:
        threading.Thread(target=stop_after, args=(recording, *STOPPED_AFTER[name]), daemon=True).start()
    ends = pytest.raises(scenario.raises) if scenario.raises else contextlib.nullcontext()
    with ends:
        conf = RECORDED[name]["conf"] | ({MESSAGE_TIMEOUT_SECS: 1} if name in QUICK else {})
        run(topology, conf=conf, stop=stop, turn_tuples=1 if name in OVER_TURNS else 100_000)
    merged = recording.merged()
    merged.check_what_storm_always_guarantees()
    facts = merged.facts()
    for component, keys in RECORDED[name].get("tasks", {}).items():
        assert scenarios.groupings.tasks_of_keys(merged, component) == keys
    compare(scenario, facts)
    for check in scenario.checks:
        if check.__name__ not in UNCHECKED:
            check(merged, Ended(merged))
    if name == "tick":
        ticks = [e for e in merged.calls("execute", component="a") if e.data["stream"] == "__tick"]
        assert min(Counter(e.index for e in ticks)[index] for index in (0, 1)) >= 3
        assert {(e.data["source"], *e.data["values"]) for e in ticks} == {("__system", 1)}
        assert merged.values("sink") == [99] * len(ticks)


def stop_after(recording: SparkRecording, component: str, count: int) -> None:
    wait_until(lambda: recording.executed(component) >= count, "tuples", 120)
    recording.stop.set()


def compare(scenario: Scenario, facts: Facts) -> None:
    """Bolts are initialised by each worker, and are seldom closed, so only the life of spouts is Storm's."""
    expected = expected_of(scenario) | AT_THE_END.get(scenario.name, {})
    spouts = {task: calls for task, calls in expected["lifecycle"].items() if "activate" in calls}
    expected["lifecycle"] = spouts
    for fact in scenario.covers:
        assert comparable(fact, facts[fact], expected[fact]) == comparable(fact, expected[fact], expected[fact]), fact


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_turn_cant_do_is_refused_before_it_starts(run: Any, tmp_path: Path, name: str) -> None:
    recording, topology = recorded(SCENARIOS[name], tmp_path)
    with pytest.raises(InvalidTopologyError, match="run_local"):
        run(topology, conf=RECORDED[name]["conf"])
    assert not recording.events


def test_every_recorded_scenario_runs_on_spark_or_has_a_reason() -> None:
    assert {*EXPRESSED, *REFUSED, *NOT_EXPRESSED} == set(RECORDED)
    names = {check.__name__ for scenario in SCENARIOS.values() for check in scenario.checks}
    assert UNCHECKED.keys() <= names
