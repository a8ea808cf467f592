"""Account of a run: every message that was emitted, and every row that the messages demand of the sinks."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from acker_redis.store.dead_letter import DeadLetter
from acker_redis.storm import RunResult
from spark.applications.sentences.topologies import MAX_ATTEMPTS, Heard, demanded, kind_of

_ATTEMPTS = {"hopeless": MAX_ATTEMPTS, "refused": 1}
"""Kinds of sentences that become dead letters, and their attempts."""


@dataclass(frozen=True)
class Account:
    """Account of one topology's run.

    Attributes:
        topology: name of the topology.
        sentences: number of sentences emitted.
        emits: number of emits, with replays.
        acked: number of sentences acked.
        failed: number of attempts that failed.
        timed_out: number of attempts that timed out.
        dead_letters: reason -> number of dead letters.
        unfinished: number of sentences without an end, because the run was interrupted.
        rows: sink -> rows written, without repeats, and demanded by acked sentences.
        workers_killed: number of workers killed on purpose.
        secs: time of the run.
        wrong: what doesn't add up.
    """

    topology: str
    sentences: int
    emits: int
    acked: int
    failed: int
    timed_out: int
    dead_letters: Mapping[str, int]
    unfinished: int
    rows: Mapping[str, tuple[int, int, int]]
    workers_killed: int
    secs: float
    wrong: list[str] = field(default_factory=list)


def account(
    topology: str, result: RunResult, heard: Heard, letters: Iterable[DeadLetter], folder: Path, kill_at: int | None
) -> Account:
    """Compare what was emitted, acked, dead-lettered and written."""
    dead = {letter.message_id: letter for letter in letters if letter.run_id == result.run_id}
    emits = result.metrics["lines"].emitted.total()
    killed = int((folder / "killed").exists())
    wrong, rows = _wrong_outcomes(result, heard, dead, emits), {}
    if kill_at is not None and kill_at < heard.emitted and not killed:
        wrong.append("no worker was killed")
    words = read_words(folder / "words")
    good = set().union(*map(demanded, heard.acked))
    possible = set().union(*map(demanded, range(heard.emitted)))
    rows["lower"] = _compared("lower", words, good, possible, result, wrong)
    if "__sink:split:empty" in result.metrics:
        numbers = read_numbers(folder / "empty")
        empty = {number for number in range(heard.emitted) if kind_of(number) == "empty"}
        rows["split:empty"] = _compared("split:empty", numbers, empty & heard.acked.keys(), empty, result, wrong)
    return Account(
        topology, heard.emitted, emits, len(heard.acked), result.failed, result.timed_out,
        dict(Counter(letter.detail or letter.reason for letter in dead.values())), result.unfinished, rows, killed,
        round(result.duration_secs, 1), wrong,
    )  # fmt: skip


def _wrong_outcomes(result: RunResult, heard: Heard, dead: Mapping[int, DeadLetter], emits: int) -> list[str]:
    wrong = []
    if heard.emitted != len(heard.acked) + len(dead) + result.unfinished:
        wrong.append("sentences are not the sum of acked, dead letters and unfinished")
    if emits != result.acked + result.failed + result.timed_out:
        wrong.append("emits are not the sum of acked, failed and timed out")
    if both := heard.acked.keys() & dead.keys():
        wrong.append(f"acked and dead letter: {_some(both)}")
    if twice := [number for number, count in heard.acked.items() if count > 1]:
        wrong.append(f"acked twice: {_some(twice)}")
    expected = {number: kind_of(number) for number in range(heard.emitted) if kind_of(number) in _ATTEMPTS}
    if strange := dead.keys() - expected.keys():
        wrong.append(f"unexpected dead letters: {_some(strange)}")
    if missing := (expected.keys() - dead.keys() if not result.unfinished else expected.keys() & heard.acked.keys()):
        wrong.append(f"no dead letters: {_some(missing)}")
    for number in dead.keys() & expected.keys():
        kind, letter = expected[number], dead[number]
        if (letter.detail, letter.attempts, letter.last_component) != (kind, _ATTEMPTS[kind], "lower"):
            wrong.append(
                f"dead letter {number} says {letter.detail!r}, {letter.attempts} attempts, {letter.last_component!r}"
            )
    return wrong


def _compared(
    sink: str, written: list[Any], good: set[Any], possible: set[Any], result: RunResult, wrong: list[str]
) -> tuple[int, int, int]:
    distinct = set(written)
    if missing := good - distinct:
        wrong.append(f"sink {sink} lacks rows: {_some(missing)}")
    if strange := distinct - possible:
        wrong.append(f"sink {sink} has rows of no sentence: {_some(strange)}")
    counted = result.metrics[f"__sink:{sink}"].executed.total()
    if len(written) < counted:
        wrong.append(f"sink {sink} counted {counted} rows, but has {len(written)}")
    return len(written), len(distinct), len(good)


def read_words(folder: Path) -> list[Any]:
    """Read the rows of the first sink."""
    tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    return [row for table in tables for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]


def read_numbers(folder: Path) -> list[int]:
    """Read the rows of the second sink."""
    return [number for path in sorted(folder.glob("*.json")) for number in json.loads(path.read_text())]


def _some(values: Collection[Any]) -> str:
    shown = ", ".join(map(str, sorted(values)[:5]))
    return shown if len(values) <= 5 else f"{shown} and {len(values) - 5} more"


def summary(of: Account) -> str:
    """Describe an account in a few lines."""
    letters = ", ".join(f"{count:,} {reason}" for reason, count in sorted(of.dead_letters.items()))
    unfinished = f" + {of.unfinished:,} unfinished" if of.unfinished else ""
    rows = [
        f"  sink {sink}: {written:,} rows, {distinct:,} without repeats, {good:,} demanded by acked sentences"
        for sink, (written, distinct, good) in of.rows.items()
    ]
    lines = [
        f"{of.topology}: {of.secs:.1f} s, workers killed: {of.workers_killed}",
        f"  {of.emits:,} emits = {of.acked:,} acked + {of.failed:,} failed + {of.timed_out:,} timed out",
        f"  {of.sentences:,} sentences = {of.acked:,} acked + {sum(of.dead_letters.values()):,} dead letters"
        f"{f' ({letters})' if letters else ''}{unfinished}",
        *rows,
        *([f"  WRONG: {text}" for text in of.wrong] or ["  Every message is accounted for."]),
    ]
    return "\n".join(lines)
