"""Report of a run: counters, the closing table, and the comparison with the truth."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from rich.table import Table

from acker_redis import Acker
from acker_redis.spark import StreamStatus
from acker_redis.store.dead_letter import DeadLetter
from spark.applications.access_logs.logs import Place, Truth
from spark.applications.access_logs.store import Store


def progress(status: StreamStatus) -> str:
    """Build the progress line of a stream."""
    counts = status.counts
    return (
        f"micro-batch {status.batches + 1}: emitted {counts.emitted}, acked {counts.acked}, failed {counts.failed}, "
        f"timed out {counts.timed_out}, replayed {counts.replayed}, in flight {status.in_flight}, "
        f"parked {sum(status.parked.values())}"
    )


@dataclass
class Result:
    """Numbers that the program prints: of this process, then of the whole store and all dead letters."""

    batches: int
    lines: int
    attempts: int
    acked: int
    failed: int
    timed_out: int
    lost: int
    replayed: int
    dead_lettered: int
    late: int
    pending: int
    secs: float
    hits: int
    hits_written: int
    counted: int
    minutes: int
    sections: int
    dead_letters: dict[str, int]
    checks: dict[str, bool]


def result(
    status: StreamStatus, duration_secs: float, store: Store, acker: Acker, logs: Path, pending: int, max_attempts: int,
    truth: Path | None,
) -> Result:  # fmt: skip
    """Collect the results, and compare them with the truth if there is one."""
    counts = status.counts
    letters = letters_of(acker, logs)
    rows, written = store.written()
    minutes, counted = store.minutes(), store.counted()
    checks = {"nothing is pending": pending == 0}
    if truth is not None:
        known = Truth.read(truth)
        good, per_minute = known.good(), [minute._asdict() for minute in minutes]
        checks |= {
            "every good line once in parquet": set(written.values()) == good and len(written) == len(good),
            "every good line once in SQLite": counted == written.keys() and per_minute == known.per_minute,
            "every malformed line a dead letter, unchanged": _are_dead_letters(
                letters, known.malformed, "parse", max_attempts
            ),
            f"every poison line a dead letter after {max_attempts} attempts": _are_dead_letters(
                letters, known.poison, "enrich", max_attempts
            ),
            "no other dead letter": letters.keys() == {(p.file, p.row) for p in (*known.malformed, *known.poison)},
        }
    return Result(
        batches=status.batches,
        lines=counts.emitted - counts.replayed,
        attempts=counts.emitted,
        acked=counts.acked,
        failed=counts.failed,
        timed_out=counts.timed_out,
        lost=counts.lost,
        replayed=counts.replayed,
        dead_lettered=counts.dead_lettered,
        late=counts.late,
        pending=pending,
        secs=round(duration_secs, 2),
        hits=len(written),
        hits_written=rows,
        counted=len(counted),
        minutes=len({minute.minute for minute in minutes}),
        sections=len({minute.section for minute in minutes}),
        dead_letters=dict(Counter(f"{first.reason} in {first.last_component}" for first, *_ in letters.values())),
        checks=checks,
    )


def letters_of(acker: Acker, logs: Path) -> dict[tuple[str, int], list[DeadLetter]]:
    """Find the dead letters of these logs by file and line. After a kill, a line may have two."""
    letters_by_line: dict[tuple[str, int], list[DeadLetter]] = {}
    for letter in _all_letters(acker):
        message = json.loads(letter.payload or b"{}")
        path = Path(unquote(urlparse(message.get("file", "")).path))
        if path.parent == logs:
            letters_by_line.setdefault((path.name, message["row"]), []).append(letter)
    return letters_by_line


def _all_letters(acker: Acker) -> Iterator[DeadLetter]:
    after = ""
    while letters := acker.dead_letters.read(after=after):
        yield from letters
        after = letters[-1].entry_id


def _are_dead_letters(
    letters: dict[tuple[str, int], list[DeadLetter]], places: list[Place], component: str, max_attempts: int
) -> bool:
    def facts(letter: DeadLetter) -> tuple[str | None, int, str | None]:
        return letter.last_component, letter.attempts, json.loads(letter.payload or b"{}").get("line")

    return all(
        {facts(letter) for letter in letters.get((place.file, place.row), [])}
        == {(component, max_attempts, place.line)}
        for place in places
    )


def as_table(result: Result) -> Table:
    """Build the closing table."""
    table = Table(title="access logs, every line tracked", title_justify="left")
    table.add_column("what")
    table.add_column("count", justify="right")
    of_this_run = {
        "micro-batches": result.batches,
        "lines": result.lines,
        "attempts": result.attempts,
        "  acked": result.acked,
        "  failed": result.failed,
        "  timed out": result.timed_out,
        "  lost and emitted again": result.lost,
        "replayed": result.replayed,
        "dead-lettered": result.dead_lettered,
        "late outcomes of a killed run": result.late,
        "pending": result.pending,
        "seconds": result.secs,
    }
    for label, value in of_this_run.items():
        table.add_row(label, f"{value:,}")
    table.add_section()
    table.add_row("[bold]all runs[/bold]", "")
    of_all_runs = {
        "hits in parquet": result.hits,
        "  rows written for them": result.hits_written,
        "hits counted in SQLite": result.counted,
        "  minutes": result.minutes,
        "  sections": result.sections,
        "lines that are dead letters": sum(result.dead_letters.values()),
        **{f"  {reason}": count for reason, count in sorted(result.dead_letters.items())},
    }
    for label, value in of_all_runs.items():
        table.add_row(label, f"{value:,}")
    table.add_section()
    for label, holds in result.checks.items():
        table.add_row(label, "yes" if holds else "[red]NO[/red]")
    return table
