"""Word count, tracked: every non-blank line of real text is one root, and is done when all its words were counted.

spout (lines) -> bolt `split` (one anchored word per word; in Python on Arrow batches, or in SQL only) -> repartition by
word, a true shuffle -> `count`, a sink that writes every occurrence under (line, position) and acks only after its write.
That key makes the sink idempotent per line, so that a replayed line does not count twice.

On purpose, at first attempt only, some lines fail and some words are forgotten: dropped behind the bolt by a plain filter,
never acked. Their lines time out. Both kinds are replayed with fresh roots until nothing is pending.
"""

import json
import os
import re
import signal
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import typer
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.live import Live
from rich.table import Table

from acker_redis import Acker, AckerConfig, AckerError, ids
from acker_redis.retry import RetryPolicy
from acker_redis.spark import Emitted, Tracker, prepare_environment, run_tracked
from acker_redis.spout import Spout

WORD = re.compile(r"[a-z0-9_']+")
NOT_WORD = "[^a-z0-9_']+"
OCCURRENCE = "line bigint, position int, word string, forgotten boolean"
MILLION = 1_000_000
ROWS_PER_FILE = 4_000
KILL_MARK = "killed"
PAYLOAD_BYTES = 1000


@dataclass(frozen=True)
class Faults:
    """What goes wrong on purpose, at first attempt."""

    fail_rate: float
    forget_rate: float
    kill_task: bool


NO_FAULTS = Faults(0, 0, False)


class Operators(StrEnum):
    """What the bolt is written in."""

    PYTHON = "python"
    SQL = "sql"


@dataclass
class Result:
    """What the run prints."""

    lines: int = 0
    words: int = 0
    attempts: int = 0
    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    lost: int = 0
    replayed: int = 0
    dead_lettered: int = 0
    pending: int = 0
    acks: int = 0
    acks_per_sec: float = 0.0
    secs: float = 0.0
    fenced: int = 0
    workers_killed: int = 0
    counts_match: bool = False
    accounted_for: bool = False
    top_words: list[tuple[str, int]] | None = None


def main(
    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--input", exists=True, dir_okay=False, help="Text files; default: Python's documentation topics."
        ),
    ] = None,
    master: Annotated[str, typer.Option(help="Spark master; give retries as in local[2,4].")] = "local[*,4]",
    redis: Annotated[str, typer.Option(envvar="ACKER_REDIS_URL", help="Redis URL.")] = "redis://127.0.0.1:6379/0",
    app: Annotated[str, typer.Option(help="Name of the acker's app.")] = "word-count",
    fail_rate: Annotated[float, typer.Option(min=0, max=1, help="Lines that fail at first attempt.")] = 0.01,
    forget_rate: Annotated[float, typer.Option(min=0, max=1, help="Words forgotten at first attempt.")] = 0.01,
    operators: Annotated[Operators, typer.Option(help="What the bolt is written in.")] = Operators.PYTHON,
    kill_task: Annotated[bool, typer.Option("--kill-task", help="Kill one Python worker half-way.")] = False,
    timeout_secs: Annotated[float, typer.Option(min=0.5, help="Message timeout.")] = 5.0,
    max_attempts: Annotated[int, typer.Option(min=1, help="Emissions of one line before it is a dead letter.")] = 5,
    max_lines: Annotated[int | None, typer.Option(min=1, help="Take only so many lines.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Count words with every line tracked; exit 0 only if every line is accounted for and the counts are right."""
    faults = Faults(fail_rate, forget_rate, kill_task)
    config = AckerConfig(app=app, message_timeout_secs=timeout_secs)
    console = Console(stderr=True)
    try:
        prepare_environment()
        with tempfile.TemporaryDirectory(prefix="word-count-") as folder, Acker.connect(redis, config) as acker:
            lines = write_lines(read_lines(inputs or []), Path(folder) / "lines", max_lines)
            if not lines:
                raise typer.BadParameter("no line with text in the input", param_hint="--input")
            policy = RetryPolicy(max_attempts=max_attempts)
            pipeline = partial(count_words, operators, faults, Path(folder))
            session = spark_session(master)
            try:
                result = run(session, redis, acker, policy, pipeline, Path(folder), console)
            finally:
                session.stop()
    except (AckerError, OSError) as exc:
        console.print(f"[red]error:[/red] {exc}", highlight=False)
        raise typer.Exit(3) from exc
    print(json.dumps(asdict(result)) if as_json else "", end="\n" if as_json else "")
    if not as_json:
        Console().print(as_table(result))
    raise typer.Exit(0 if result.accounted_for else 1)


def spark_session(master: str, arrow_rows: int = 1_000, app_name: str = "word-count") -> SparkSession:
    """A quiet local session."""
    builder = (
        SparkSession.builder.master(master)
        .appName(app_name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(arrow_rows))
    )
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        quiet = f"-Dlog4j2.configurationFile={Path(__file__).resolve().parent / 'log4j2.properties'}"
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.extraJavaOptions", quiet)
    try:
        session: SparkSession = builder.getOrCreate()
    except Py4JError as exc:
        reason = str(exc).strip().splitlines()[1:2] or [str(exc)]
        raise AckerError(f"Spark could not start with master {master!r}: {reason[0].strip()}") from exc
    return session


def run(
    session: SparkSession,
    url: str,
    acker: Acker,
    policy: RetryPolicy,
    pipeline: Callable[[Tracker, DataFrame], object],
    folder: Path,
    console: Console,
) -> Result:
    """Every line through the pipeline until nothing is pending; then count and check."""
    before = acker.stats()
    lines = session.read.parquet(str(folder / "lines"))
    started = time.monotonic()
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        spout = run_tracked(
            lines, pipeline, acker=acker, url=url, message_id="line", retry=policy, payload_bytes=PAYLOAD_BYTES,
            progress=lambda spout, busy: live.update(progress(spout, acker, busy, time.monotonic() - started)),
        )  # fmt: skip
        while acker.stats(oldest=False).pending:  # somebody else's, of a run that was cut short: they time out
            spout.poll(block_ms=100)
    secs = time.monotonic() - started
    counted = counts_of(session, folder / "counted", set(spout.dead_letters))
    truth = true_counts(folder / "lines", set(spout.dead_letters))
    stats, counts = acker.stats(), spout.counts
    acks = stats.acks - before.acks
    lines_total = counts.emitted - counts.replayed
    return Result(
        lines=lines_total,
        words=sum(truth.values()),
        attempts=counts.emitted,
        acked=counts.acked,
        failed=counts.failed,
        timed_out=counts.timed_out,
        lost=counts.lost,
        replayed=counts.replayed,
        dead_lettered=counts.dead_lettered,
        pending=stats.pending,
        acks=acks,
        acks_per_sec=round(acks / secs, 1),
        secs=round(secs, 2),
        fenced=stats.fenced - before.fenced,
        workers_killed=int((folder / KILL_MARK).exists()),
        counts_match=counted == truth,
        accounted_for=(
            counts.acked + counts.dead_lettered == lines_total
            and counts.emitted == counts.acked + counts.failed + counts.timed_out + counts.lost
            and stats.pending == 0
            and counted == truth
        ),
        top_words=counted.most_common(10),
    )


def count_words(operators: Operators, faults: Faults, folder: Path, tracker: Tracker, lines: DataFrame) -> None:
    """One emission through the pipeline: the Spark job."""
    if tracker.emission:
        faults = NO_FAULTS  # replays
    words = (
        split_in_sql(faults, tracker, lines) if operators is Operators.SQL else split_in_python(faults, tracker, lines)
    )
    # A plain filter on a tracked DataFrame forgets what it drops: just what this demo wants to show.
    kept = words.where("NOT forgotten").drop("forgotten")
    shuffled = kept.repartition(lines.sparkSession.sparkContext.defaultParallelism, "word")
    tracker.sink(shuffled, partial(write_occurrences, faults, folder, tracker.emission), name="count")


def split_in_sql(faults: Faults, tracker: Tracker, lines: DataFrame) -> DataFrame:
    """One word per word of each line, without Python."""
    good = tracker.fail(lines, chosen_in_sql(faults.fail_rate, "fail", "line"), "failed on purpose", name="check")

    def occurrence(word: Column, position: Column) -> Column:
        forgotten = chosen_in_sql(faults.forget_rate, "forget", "line", position)
        return F.struct("line", position.alias("position"), word.alias("word"), forgotten.alias("forgotten"))

    words = F.transform(F.split(F.lower("text"), NOT_WORD), occurrence)
    return tracker.explode(good, F.filter(words, lambda one: one["word"] != ""), name="split")


def split_in_python(faults: Faults, tracker: Tracker, lines: DataFrame) -> DataFrame:
    """One word per word of each line, in Arrow batches."""
    return tracker.bolt(lines, partial(split, faults), OCCURRENCE, name="split")


def split(faults: Faults, batch: pa.RecordBatch) -> Emitted:
    """The words of a batch of lines."""
    lines = batch.column("line").to_numpy()
    words = pc.split_pattern_regex(pc.utf8_lower(batch.column("text")), pattern=NOT_WORD)
    parents, flat = pc.list_parent_indices(words), pc.list_flatten(words)
    real = pc.not_equal(flat, "")
    word, parent = flat.filter(real), parents.filter(real).to_numpy().astype(np.int64)
    position = np.arange(len(parent)) - np.searchsorted(parent, parent)
    line = lines[parent]
    forgotten = chosen(faults.forget_rate, "forget", line, position)
    failing = np.flatnonzero(chosen(faults.fail_rate, "fail", lines))
    rows = pa.record_batch(
        {"line": line, "position": pa.array(position, pa.int32()), "word": word, "forgotten": pa.array(forgotten)}
    )
    return Emitted(rows, parent, dict.fromkeys(failing.tolist(), "failed on purpose"))


def chosen_in_sql(rate: float, salt: str, *columns: str | Column) -> Column:
    """A share of rows, the same ones whenever they are computed again."""
    return F.pmod(F.xxhash64(F.lit(salt), *columns), F.lit(MILLION)) < F.lit(round(rate * MILLION))


def chosen(rate: float, salt: str, *columns: np.ndarray) -> np.ndarray:
    """A share of rows, the same ones whenever the batch is computed again."""
    hashed = ids.derive_many(ids.derive(salt), *(np.ascontiguousarray(c, np.int64).view(np.uint64) for c in columns))
    return np.asarray(hashed % np.uint64(MILLION) < np.uint64(round(rate * MILLION)))


def write_occurrences(
    faults: Faults, folder: Path, emission: int, batches: Iterator[pa.RecordBatch], partition: int
) -> None:
    """Write a partition's words as one file that appears whole, and is the same file when the task runs again."""
    if faults.kill_task:
        batches = killed_half_way(folder / KILL_MARK, batches)
    target = folder / "counted" / f"emission-{emission}-partition-{partition}.parquet"
    target.parent.mkdir(exist_ok=True)
    draft = target.with_suffix(f".{uuid.uuid4().hex}")
    schema = pa.schema([("line", pa.int64()), ("position", pa.int32()), ("word", pa.string())])
    with pq.ParquetWriter(draft, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.cast(schema))
    draft.rename(target)


def killed_half_way(mark: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """End this worker as a crash would, in the first attempt of the first task, after its first rows were written."""
    context = TaskContext.get()
    first = context is not None and context.partitionId() == 0 and context.attemptNumber() == 0
    for batch in batches:
        yield batch
        if first:
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def counts_of(session: SparkSession, folder: Path, dead: set[int]) -> Counter[str]:
    """What the sink holds: each occurrence once, however often it was written."""
    written = session.read.schema("line bigint, position int, word string").parquet(str(folder / "*.parquet"))
    if dead:
        written = written.where(~F.col("line").isin(sorted(dead)))
    rows = written.dropDuplicates(["line", "position"]).groupBy("word").count().toArrow()
    return Counter(dict(zip(rows["word"].to_pylist(), rows["count"].to_pylist(), strict=True)))


def true_counts(folder: Path, dead: set[int]) -> Counter[str]:
    """The same count of the same input, without Spark, acker or replays."""
    counts: Counter[str] = Counter()
    for path in sorted(folder.glob("*.parquet")):
        table = pq.read_table(path)
        for line, text in zip(table["line"].to_pylist(), table["text"].to_pylist(), strict=True):
            if line not in dead:
                counts.update(WORD.findall(text.lower()))
    return counts


def read_lines(paths: list[Path]) -> Iterator[str]:
    """Lines of text files, or of the interpreter's own documentation."""
    if not paths:
        from pydoc_data.topics import topics

        for topic in sorted(topics):
            yield from topics[topic].splitlines()
        return
    for path in paths:
        with path.open(encoding="utf-8", errors="replace") as text:
            yield from text


def write_lines(lines: Iterator[str], folder: Path, limit: int | None, rows_per_file: int = ROWS_PER_FILE) -> int:
    """Number the non-blank lines and write them as parquet files, so that every task retry reads the same rows."""
    folder.mkdir()
    texts: list[str] = []
    total = 0

    def flush() -> None:
        nonlocal total
        if texts:
            numbers = pa.array(range(total, total + len(texts)), pa.int64())
            pq.write_table(pa.table({"line": numbers, "text": texts}), folder / f"lines-{total:012d}.parquet")
            total += len(texts)
            texts.clear()

    for line in lines:
        if line.strip():
            texts.append(line.rstrip("\r\n"))
        if limit is not None and total + len(texts) >= limit:
            break
        if len(texts) == rows_per_file:
            flush()
    flush()
    return total


def progress(spout: Spout, acker: Acker, busy: bool, secs: float) -> Table:
    """The live display."""
    counts, stats = spout.counts, acker.stats(oldest=False)
    table = Table.grid(padding=(0, 2))
    late = stats.last_rotation_ms > 3 * stats.tick_ms
    state = (
        "[red]no rotator: start `acker-redis rotator`[/red]" if late else "running" if busy else "waiting for outcomes"
    )
    table.add_row(
        f"{secs:5.1f} s", f"emitted {counts.emitted}", f"[green]acked {counts.acked}[/green]", f"pending {stats.pending}",
        f"[red]failed {counts.failed}[/red]", f"[yellow]timed out {counts.timed_out}[/yellow]", f"replayed {counts.replayed}",
        state,
    )  # fmt: skip
    return table


def as_table(result: Result) -> Table:
    """The closing table."""
    table = Table(title="word count, every line tracked", title_justify="left")
    table.add_column("")
    table.add_column("", justify="right")
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
        "repeated updates fenced off": lambda: f"{result.fenced:,}",
        "seconds": lambda: f"{result.secs:.1f}",
        "acks/s (ledger updates)": lambda: f"{result.acks_per_sec:,.0f}",
    }
    for label, value in labels.items():
        table.add_row(label, value())
    table.add_section()
    for word, count in result.top_words or []:
        table.add_row(f"  {word}", f"{count:,}")
    table.add_section()
    table.add_row("word counts equal an untracked count", "yes" if result.counts_match else "[red]NO[/red]")
    table.add_row("every line accounted for", "yes" if result.accounted_for else "[red]NO[/red]")
    return table


if __name__ == "__main__":
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(main)
    program()
