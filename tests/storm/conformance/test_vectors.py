"""Scenarios that were recorded on Storm 2.8.2, replayed in process in many orders, and on a server."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from acker_redis import Acker
from tests.storm.conformance import scenarios
from tests.storm.conformance.recording import Facts, Recording, by_text
from tests.storm.conformance.scenarios import SCENARIOS, Scenario

_DATA = Path(__file__).parents[2] / "data" / "storm_vectors.json"
RECORDED = {one["name"]: one for one in json.loads(_DATA.read_text(encoding="utf-8"))["scenarios"]}

SEEDS, ON_SERVER = range(4), range(100, 102)
MANY = range(200, 300)
"""Others, for `make chaos`."""


def play(scenario: Scenario, seed: int, acker: Acker | None = None) -> Facts:
    """Run a scenario, and return its facts."""
    recording = Recording()
    topology = scenario.build(recording).create_topology()
    conf = RECORDED[scenario.name]["conf"]
    ends = pytest.raises(scenario.raises) if scenario.raises else contextlib.nullcontext()
    with ends, topology.local(conf, seed=seed, active=scenario.active, acker=acker) as run:
        scenario.drive(run)
        for check in scenario.checks:
            check(recording, run)
    recording.check_what_storm_always_guarantees()
    if scenario is SCENARIOS["hooks"]:
        scenarios.hooks.check_hooks(recording)
    facts = recording.facts()
    for name, keys in RECORDED[scenario.name].get("tasks", {}).items():
        assert scenarios.groupings.tasks_of_keys(recording, name) == keys
    return facts


def expected_of(scenario: Scenario) -> Facts:
    """The recorded facts, with ours in place of those from which we diverge."""
    facts: Facts = dict(RECORDED[scenario.name])
    if scenario.divergence is not None:
        assert any(facts[name] != ours for name, ours in scenario.divergence.facts.items()), "it doesn't diverge"
        facts |= scenario.divergence.facts
    return facts


def compare(scenario: Scenario, facts: Facts) -> None:
    expected = expected_of(scenario)
    for fact in scenario.covers:
        assert comparable(fact, facts[fact], expected[fact]) == comparable(fact, expected[fact], expected[fact]), fact


def comparable(fact: str, found: Any, recorded: Any) -> Any:
    """Without what Storm leaves to timing: a `deactivate` before the end, and what the recorder didn't write."""
    if fact == "lifecycle":
        known = {task: calls for task, calls in found.items() if task in recorded}
        return {task: [call for call in calls if call != "deactivate"] for task, calls in known.items()}
    if fact == "executed":
        blank = {name for name, rows in recorded.items() if rows[0][0] is None}
        return {
            name: by_text(row[2:] if name in blank else row for row in rows) for name, rows in found.items() if rows
        }
    if fact in ("acked", "failed"):
        return by_text(found)
    if fact == "emitted":
        return {task: by_text(rows) for task, rows in found.items()}
    return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_facts_on_the_fake_acker_are_storm_s(name: str) -> None:
    for seed in SEEDS:
        compare(SCENARIOS[name], play(SCENARIOS[name], seed))


@pytest.mark.parametrize("name", SCENARIOS)
def test_facts_on_a_server_are_storm_s(name: str, real_url: str, connect: Any) -> None:
    timeout_secs = RECORDED[name]["conf"].get("topology.message.timeout.secs", 0)
    acker = connect(shards=1, message_timeout_secs=max(30, timeout_secs))
    for seed in ON_SERVER:
        compare(SCENARIOS[name], play(SCENARIOS[name], seed, acker))


@pytest.mark.chaos
@pytest.mark.parametrize("name", SCENARIOS)
def test_facts_of_many_orders_are_storm_s(name: str) -> None:
    for seed in MANY:
        compare(SCENARIOS[name], play(SCENARIOS[name], seed))


def test_every_recorded_scenario_is_covered() -> None:
    assert set(SCENARIOS) == set(RECORDED)


@pytest.mark.parametrize("name", [name for name, one in SCENARIOS.items() if one.divergence])
def test_divergences_name_their_reason(name: str) -> None:
    divergence = SCENARIOS[name].divergence
    assert divergence is not None
    assert "Storm" in divergence.reason
