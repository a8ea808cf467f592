"""Progress and result of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

from acker_redis.spout.spout import Spout, SpoutCounts
from acker_redis.store.dead_letter import DeadLetter


@dataclass(frozen=True)
class Progress:
    """Progress of a run at one moment.

    Attributes:
        run_id: id of the run.
        counts: counters of emissions and outcomes so far.
        in_flight: number of messages whose roots are open.
        queued: number of messages that wait for their first or next emission.
        dead_letters: number of messages that are dead letters.
        is_emitting: whether an emission is running.
        skipped: number of records that `run_kafka` skipped, because no message waits for them upstream.
    """

    run_id: str
    counts: SpoutCounts
    in_flight: int
    queued: int
    dead_letters: int
    is_emitting: bool
    skipped: int = 0


@dataclass(frozen=True)
class RunResult:
    """Result of a run that has ended.

    Attributes:
        run_id: id of the run.
        counts: counters of its emissions and outcomes. They have only messages that this run processed itself.
        dead_letters: message id -> dead letter, without its payload. For a Redis stream, the last 1,000. With
            `dead_letter_bytes`, `acker.dead_letters.find(DeadLetterFilter(run_id=result.run_id))` reads them with payloads.
        completed_offsets: partition -> first offset that is not known to be done. Empty without an `OffsetFile`.
        duration_secs: time from the call to its end, in seconds.
        skipped: number of records that `run_kafka` skipped, because no message waits for them upstream.
        letters_left: number of letters that match `only_dead_letters`, and stay. The log says why.
        accepted_before: with `once`, number of messages of the source that earlier runs accepted. Their rows are in the
            tables.
        dead_before: with `once`, number of messages of the source that earlier runs made dead letters, and that didn't run
            again.
    """

    run_id: str
    counts: SpoutCounts
    dead_letters: Mapping[int, DeadLetter] = field(repr=False)
    completed_offsets: Mapping[str, int] = field(repr=False)
    duration_secs: float
    skipped: int = 0
    letters_left: int = 0
    accepted_before: int = 0
    dead_before: int = 0


OnProgress: TypeAlias = Callable[[Progress], object]
"""Function that is called with the progress several times a second."""


def progress_of(spout: Spout, *, is_emitting: bool) -> Progress:
    """Return the progress of a spout's run."""
    pending = spout.pending
    return Progress(
        spout.run_id, replace(spout.counts), pending, spout.state.left - pending, len(spout.dead_letters), is_emitting
    )


def result_of(spout: Spout, duration_secs: float, completed_offsets: Mapping[str, int] | None = None) -> RunResult:
    """Return the result of a spout whose run has ended."""
    return RunResult(
        spout.run_id, replace(spout.counts), MappingProxyType(spout.dead_letters),
        MappingProxyType(dict(completed_offsets or {})), duration_secs,
    )  # fmt: skip
