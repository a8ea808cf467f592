"""Tell how a run stands while it goes on, and what it returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

from acker_redis.spout.spout import Spout, SpoutCounts
from acker_redis.store.dead_letter import DeadLetter


@dataclass(frozen=True)
class Progress:
    """How a run stands.

    Attributes:
        run_id: of the run.
        counts: what became of emissions so far.
        in_flight: messages whose roots are open.
        queued: messages that wait for their first or next emission.
        dead_letters: messages that are dead letters now.
        is_emitting: whether an emission is under way.
    """

    run_id: str
    counts: SpoutCounts
    in_flight: int
    queued: int
    dead_letters: int
    is_emitting: bool


@dataclass(frozen=True)
class RunResult:
    """What became of the messages of a run.

    Attributes:
        run_id: of the run.
        counts: what became of its emissions.
        dead_letters: message id -> its dead letter; of a Redis stream the last 1,000.
        completed_offsets: partition -> first offset that is not known to be done; empty without an `OffsetFile`.
        duration_secs: from the call to its end.
    """

    run_id: str
    counts: SpoutCounts
    dead_letters: Mapping[int, DeadLetter] = field(repr=False)
    completed_offsets: Mapping[str, int] = field(repr=False)
    duration_secs: float


OnProgress: TypeAlias = Callable[[Progress], object]
"""Called several times a second."""


def progress_of(spout: Spout, *, is_emitting: bool) -> Progress:
    """Tell how the run of a spout stands."""
    pending = spout.pending
    return Progress(
        spout.run_id, replace(spout.counts), pending, spout.state.left - pending, len(spout.dead_letters), is_emitting
    )


def result_of(spout: Spout, duration_secs: float, completed_offsets: Mapping[str, int] | None = None) -> RunResult:
    """Tell what became of the messages of a spout whose run has ended."""
    return RunResult(
        spout.run_id, replace(spout.counts), MappingProxyType(spout.dead_letters),
        MappingProxyType(dict(completed_offsets or {})), duration_secs,
    )  # fmt: skip
