"""The scenarios that ran on Storm 2.8.2, written on our API. Each builds a topology around a recording, and drives its run.

`covers` names the facts that are the same in every order that Storm allows. A scenario from which we diverge on purpose has
the facts that we expect instead, and the reason.
"""

from tests.storm.conformance.scenarios import (
    exceptions,
    groupings,
    hooks,
    outcomes,
    pending,
    refusals,
    timing,
    trees,
    windows,
)
from tests.storm.conformance.scenarios.scenario import SCENARIOS, Scenario

__all__ = [
    "SCENARIOS",
    "Scenario",
    "exceptions",
    "groupings",
    "hooks",
    "outcomes",
    "pending",
    "refusals",
    "timing",
    "trees",
    "windows",
]
