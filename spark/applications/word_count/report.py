"""Report of the word count: a live line, and a closing table."""

from collections.abc import Callable
from dataclasses import dataclass

from rich.table import Table

from acker_redis import Acker
from acker_redis.spark import Progress


@dataclass
class Result:
    """Numbers that the run prints."""

    lines: int
    words: int
    attempts: int
    acked: int
    failed: int
    timed_out: int
    lost: int
    replayed: int
    dead_lettered: int
    pending: int
    ledger_updates: int
    secs: float
    workers_killed: int
    counts_match: bool
    accounted_for: bool
    top_words: list[tuple[str, int]]


def progress(now: Progress, acker: Acker, running_secs: float) -> Table:
    """Build the live line."""
    counts, stats = now.counts, acker.stats(with_oldest_age=False)
    table = Table.grid(padding=(0, 2))
    late = stats.last_rotation_ms > 3 * stats.tick_ms
    state = "running" if now.is_emitting else "waiting for outcomes"
    if late:
        state = "[red]no rotator: start `acker-redis rotator`[/red]"
    table.add_row(
        f"{running_secs:5.1f} s", f"emitted {counts.emitted}", f"[green]acked {counts.acked}[/green]",
        f"pending {stats.pending}", f"[red]failed {counts.failed}[/red]", f"replayed {counts.replayed}", state,
    )  # fmt: skip
    return table


def as_table(result: Result) -> Table:
    """Build the closing table."""
    table = Table(title="word count, every line tracked", title_justify="left")
    table.add_column("what")
    table.add_column("count", justify="right")
    labels: dict[str, Callable[[], str]] = {
        "lines": lambda: f"{result.lines:,}",
        "words": lambda: f"{result.words:,}",
        "attempts": lambda: f"{result.attempts:,}",
        "  acked": lambda: f"{result.acked:,}",
        "  failed": lambda: f"{result.failed:,}",
        "  timed out": lambda: f"{result.timed_out:,}",
        "  lost and emitted again": lambda: f"{result.lost:,}",
        "replayed": lambda: f"{result.replayed:,}",
        "dead-lettered": lambda: f"{result.dead_lettered:,}",
        "pending": lambda: f"{result.pending:,}",
        "workers killed": lambda: f"{result.workers_killed:,}",
        "ledger updates": lambda: f"{result.ledger_updates:,}",
        "seconds": lambda: f"{result.secs:.1f}",
    }
    for label, value in labels.items():
        table.add_row(label, value())
    table.add_section()
    for word, count in result.top_words:
        table.add_row(f"  {word}", f"{count:,}")
    table.add_section()
    table.add_row("word counts equal an untracked count", "yes" if result.counts_match else "[red]NO[/red]")
    table.add_row("every line accounted for", "yes" if result.accounted_for else "[red]NO[/red]")
    return table
