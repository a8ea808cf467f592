"""A scenario: how to build it, to drive it, and to check it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from acker_redis.storm import Bolt, TopologyBuilder
from tests.storm.conformance.recording import (
    Facts,
    Recording,
    RecordingSpout,
)

Run = Any
Built = TopologyBuilder

ALL = ("acked", "failed", "emitted", "executed", "raised", "lifecycle")


@dataclass(frozen=True)
class Divergence:
    """Facts that we expect in place of the recorded ones."""

    reason: str
    facts: Facts


@dataclass(frozen=True)
class Scenario:
    """One recorded scenario on our API."""

    name: str
    build: Callable[[Recording], Built]
    drive: Callable[[Run], None]
    covers: tuple[str, ...]
    divergence: Divergence | None
    raises: type[Exception] | None
    active: bool
    checks: list[Callable[[Recording, Run], None]] = field(default_factory=list)


SCENARIOS: dict[str, Scenario] = {}


def settle(run: Run) -> None:
    run.settle()


def settle_often(run: Run) -> None:
    """For spouts whose refused emits count as nothing emitted."""
    for _ in range(5):
        run.settle()


def settle_and_advance(*steps: float) -> Callable[[Run], None]:
    def drive(run: Run) -> None:
        run.settle()
        for step in steps:
            run.advance(step)

    return drive


def scenario(
    *,
    drive: Callable[[Run], None] = settle,
    leaves_out: Iterable[str] = (),
    instead: Divergence | None = None,
    raises: type[Exception] | None = None,
    active: bool = True,
) -> Callable[[Callable[[Recording], Built]], Scenario]:
    """Register a scenario under the name of its function."""

    def register(build: Callable[[Recording], Built]) -> Scenario:
        covers = tuple(fact for fact in ALL if fact not in set(leaves_out))
        one = Scenario(build.__name__, build, drive, covers, instead, raises, active)
        SCENARIOS[one.name] = one
        return one

    return register


def also(one: Scenario) -> Callable[[Callable[[Recording, Run], None]], Callable[[Recording, Run], None]]:
    """Register a check of what the facts don't show, such as an order."""

    def register(check: Callable[[Recording, Run], None]) -> Callable[[Recording, Run], None]:
        one.checks.append(check)
        return check

    return register


def line(recording: Recording, source: type[RecordingSpout], **steps: type[Bolt]) -> Built:
    """A spout named `spout`, and bolts one after another."""
    builder = TopologyBuilder()
    builder.set_spout("spout", source)
    previous = "spout"
    for name, step in steps.items():
        builder.set_bolt(name, step).shuffle_grouping(previous)
        previous = name
    return builder
