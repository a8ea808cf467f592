"""Word count with every line tracked, checked by an untracked count: `python -m spark.applications.word_count`.

Some lines fail on purpose at their first attempt. They are emitted again under new roots until nothing is pending.
"""

import json
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.live import Live

from acker_redis import Acker, AckerError, RetryPolicy, Spout
from acker_redis.spark import Tracker, run_tracked
from spark.applications.word_count import report
from spark.applications.word_count.pipeline import OCCURRENCE, Faults, Operators, count_words
from spark.applications.word_count.text import counts_of, read_lines, true_counts, write_lines
from spark.support.session import quiet_session

LETTER_BYTES = 1000


def main(
    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--input", exists=True, dir_okay=False, help="Text files. Default: Python's documentation topics."
        ),
    ] = None,
    master: Annotated[str, typer.Option(help="Spark master, with task retries as in local[2,4].")] = "local[*,4]",
    redis: Annotated[str, typer.Option(envvar="ACKER_REDIS_URL", help="Redis URL.")] = "redis://127.0.0.1:6379/0",
    app: Annotated[str, typer.Option(help="Name of the acker's app.")] = "word-count",
    fail_rate: Annotated[
        float, typer.Option(min=0, max=1, help="Share of lines that fail at their first attempt.")
    ] = 0.01,
    lose_rate: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Share of words lost before the sink, unknown to the tracker. The run ends with nothing acked.",
        ),
    ] = 0.0,
    operators: Annotated[Operators, typer.Option(help="Language of the split operator.")] = Operators.PYTHON,
    kill_task: Annotated[bool, typer.Option("--kill-task", help="Kill one busy Python worker.")] = False,
    message_timeout_secs: Annotated[float, typer.Option(min=0.5, help="Message timeout.")] = 10.0,
    max_attempts: Annotated[int, typer.Option(min=1, help="Attempts per line before it is a dead letter.")] = 5,
    max_lines: Annotated[int | None, typer.Option(min=1, help="Limit on the number of lines.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Count words with every line tracked. Exit 0 only if every line is accounted for and the counts are right."""
    if kill_task and operators is Operators.SQL:
        raise typer.BadParameter(
            "No Python worker runs with --operators sql. Use --operators python.", param_hint="--kill-task"
        )
    console = Console(stderr=True)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="word-count-") as name,
            Acker.connect(redis, app=app, message_timeout_secs=message_timeout_secs) as acker,
        ):
            folder = Path(name)
            faults = Faults(fail_rate, lose_rate, folder / "killed" if kill_task else None)
            if not write_lines(read_lines(inputs or []), folder / "lines", max_lines):
                raise typer.BadParameter("The input has no line with text. Pass another file.", param_hint="--input")
            pipeline = partial(count_words, operators, faults, folder / "words")
            with quiet_session(master, "word-count") as spark:
                result = run(spark, acker, RetryPolicy(max_attempts, first_delay_secs=0.1), pipeline, folder, console)
    except (AckerError, OSError, PySparkException) as exc:
        console.print(f"[red]error:[/red] {exc}", highlight=False, soft_wrap=True)
        raise typer.Exit(3) from exc
    if as_json:
        print(json.dumps(asdict(result)))
    else:
        Console().print(report.as_table(result))
    raise typer.Exit(0 if result.accounted_for else 1)


def run(
    spark: SparkSession,
    acker: Acker,
    policy: RetryPolicy,
    pipeline: Callable[[Tracker, DataFrame], object],
    folder: Path,
    console: Console,
) -> report.Result:
    """Run every line through the pipeline until nothing is pending. Then count and check."""
    before = acker.stats()
    lines = spark.read.parquet(str(folder / "lines"))
    started = time.monotonic()
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        result = run_tracked(
            lines, pipeline, acker=acker, ids="line", retry=policy, dead_letter_bytes=LETTER_BYTES,
            progress=lambda now: live.update(report.progress(now, acker, time.monotonic() - started)),
        )  # fmt: skip
        left_over = Spout(acker, run_id=uuid.uuid4().hex)
        while acker.stats(with_oldest_age=False).pending:  # roots of an interrupted run, which time out
            left_over.poll(block_ms=100)
    duration_secs = time.monotonic() - started
    dead = set(result.dead_letters)
    counted = counts_of(spark.read.schema(OCCURRENCE).parquet(str(folder / "words")), dead)
    truth = true_counts(folder / "lines", dead)
    stats, counts = acker.stats(), result.counts
    total = counts.emitted - counts.replayed
    return report.Result(
        lines=total,
        words=sum(truth.values()),
        attempts=counts.emitted,
        acked=counts.acked,
        failed=counts.failed,
        timed_out=counts.timed_out,
        lost=counts.lost,
        replayed=counts.replayed,
        dead_lettered=counts.dead_lettered,
        pending=stats.pending,
        ledger_updates=sum(getattr(stats, name) - getattr(before, name) for name in ("inits", "acks", "fails")),
        secs=round(duration_secs, 2),
        workers_killed=int((folder / "killed").exists()),
        counts_match=counted == truth,
        accounted_for=(
            counts.acked + counts.dead_lettered == total
            and counts.emitted == counts.acked + counts.failed + counts.timed_out + counts.lost
            and stats.pending == 0
            and counted == truth
        ),
        top_words=counted.most_common(10),
    )


if __name__ == "__main__":
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(main)
    program()
