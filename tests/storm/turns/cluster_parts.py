"""Faults of topologies that need several executors: killed ones, and speculative copies of tasks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from acker_redis.store.turns import Claim
from acker_redis.storm.turns.plan import Plan
from acker_redis.storm.turns.steps import AckStep, BinReport, TurnSpec
from acker_redis.storm.turns.updates import Bin
from tests.support.spark.faults import context, kill_executor, once, wait_for

MESSAGES, VICTIM = 120, 100


def kill(folder: Path, call: Callable[[], Any]) -> Any:
    """The executor dies behind the call, before Spark hears of the end of its task."""
    found = call()
    once(folder / "killed", kill_executor)
    return found


def race(folder: Path, call: Callable[[], Any]) -> Any:
    """The first attempt is slow until its speculative copy runs; then either may win."""
    if context().attemptNumber() == 0:
        wait_for(folder / "copy")
    else:
        (folder / "copy").touch()
    return call()


def lose(folder: Path, call: Callable[[], Any]) -> Any:
    """The first attempt goes on once its speculative copy is done."""
    if context().attemptNumber() == 0:
        wait_for(folder / "copy")
        found = call()
        (folder / "loser.part").write_text(Claim(found.claim).name)
        (folder / "loser.part").rename(folder / "loser")
        return found
    found = call()
    (folder / "copy").touch()
    return found


def none(folder: Path, call: Callable[[], Any]) -> Any:
    return call()


FAULTS: dict[str, Callable[[Path, Callable[[], Any]], Any]] = {"kill": kill, "race": race, "lose": lose, "none": none}


@dataclass(frozen=True)
class AcksWithFault(AckStep):
    """Acks, with a fault in the task of the first bin."""

    fault: str = "none"
    folder: str = ""

    @classmethod
    def with_fault(cls, fault: str, folder: Path) -> Callable[[TurnSpec], Self]:
        return partial(cls, fault=fault, folder=str(folder))

    def _send(self, plan: Plan, number: int, updates: Bin) -> BinReport:
        send = partial(super()._send, plan, number, updates)
        found: BinReport = FAULTS[self.fault](Path(self.folder), send) if number == 0 else send()
        return found


def kills_in_sink(folder: Path) -> Callable[[Any, int], None]:
    """A sink whose executor dies once, and takes the kept rows along."""

    def write(batches: Any, partition: int) -> None:
        rows = sum(batch.num_rows for batch in batches)
        if rows:
            once(folder / "killed", kill_executor)

    return write
