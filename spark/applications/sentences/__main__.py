"""Two topologies on Spark, with sentences that misbehave and a killed worker: `python -m spark.applications.sentences`.

In the end each sentence is acked or a dead letter, and the sinks have the rows of those that were acked. The program checks
this.
"""

import contextlib
import json
import logging
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.status import Status

from acker_redis import Acker, AckerError
from acker_redis.acker import app_of
from acker_redis.store import topology_counts
from acker_redis.storm import Topology
from spark.applications.sentences.account import Account, account, summary
from spark.applications.sentences.topologies import Heard, Lines, Words, WordsAndEmpty, write_numbers
from spark.support.session import quiet_session

LOOK_SECS = 1.0
INTERRUPTED = 130


def main(
    redis: Annotated[str, typer.Option(envvar="ACKER_REDIS_URL", help="Redis URL.")] = "redis://127.0.0.1:6379/0",
    app: Annotated[str, typer.Option(help="Name of the acker's app.")] = "sentences",
    master: Annotated[str, typer.Option(help="Spark master, with task retries as in local[2,4].")] = "local[2,4]",
    sentences: Annotated[int, typer.Option(min=1, help="Number of sentences of each topology.")] = 1000,
    without_kill: Annotated[bool, typer.Option("--without-kill", help="Don't kill a worker.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Run the topologies. Exit 0 only if every message and every row is accounted for."""
    logging.getLogger("acker_redis.storm").setLevel(
        logging.ERROR
    )  # dead letters are expected, and the summary has them
    console, status = Console(stderr=True), 0
    try:
        with (
            tempfile.TemporaryDirectory(prefix="sentences-") as name,
            Acker.connect(redis, app=app, message_timeout_secs=30) as acker,
            quiet_session(master, app) as spark,
            console.status("starting") as shown,
        ):
            for topology in (Words, WordsAndEmpty):
                folder = Path(name) / topology.__name__
                kill_at = None if without_kill else sentences // 2
                result = run(spark, acker, topology, folder, sentences, kill_at, shown)
                print(json.dumps(asdict(result)) if as_json else summary(result), flush=True)
                status = status or (1 if result.wrong else 0)
                if result.sentences < sentences or result.unfinished:
                    status = status or INTERRUPTED
                    break
    except (AckerError, OSError, PySparkException) as exc:
        console.print(f"[red]error:[/red] {exc}", highlight=False, soft_wrap=True)
        raise typer.Exit(3) from exc
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(status)


def run(
    spark: SparkSession,
    acker: Acker,
    topology: type[Topology],
    folder: Path,
    sentences: int,
    kill_at: int | None,
    shown: Status,
) -> Account:
    """Run a topology, and account for its messages."""
    words, empty = folder / "words", folder / "empty"
    empty.mkdir(parents=True)
    Lines.heard = heard = Heard()
    sinks: dict[Any, Any] = {"lower": lambda writer: writer.mode("append").parquet(str(words))}
    if topology is WordsAndEmpty:
        sinks["split", "empty"] = partial(write_numbers, empty)
    conf = {"sentences": sentences, "kill_at": kill_at, "marks": str(folder)}
    with _watched(acker, topology.__name__, shown):
        result = topology.run(spark, acker=acker, conf=conf, sinks=sinks)
    return account(topology.__name__, result, heard, acker.dead_letters.find(), folder, kill_at)


@contextlib.contextmanager
def _watched(acker: Acker, name: str, shown: Status) -> Iterator[None]:
    """Show the counts that the run writes to Redis."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK_SECS):
            with contextlib.suppress(AckerError):
                counts = topology_counts.read(app_of(acker).client, acker.config.app, name)
                if counts is not None:
                    lines = counts.components["lines"]
                    parts = [f"{sum(lines[count].values())} {count}" for count in ("emitted", "acked", "failed")]
                    shown.update(f"{name}: {', '.join(parts)}, {counts.pending} pending, turn {counts.turns}")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


if __name__ == "__main__":
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(main)
    program()
