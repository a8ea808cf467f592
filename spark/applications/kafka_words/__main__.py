"""One driver of the group: `python -m spark.applications.kafka_words`. Start several of them, and kill any.

It runs until Ctrl-C. The topics must exist.
"""

import logging
import signal
import threading
import time
from functools import partial
from typing import Annotated

import typer
from pyspark.errors import PySparkException
from rich.console import Console

from acker_redis import Acker, AckerError, RetryPolicy
from acker_redis.spark import run_kafka
from spark.applications.kafka_words.account import Topic
from spark.applications.kafka_words.pipeline import pipeline
from spark.support.session import quiet_session

LANES = 4
LOOK_SECS = 0.2
SESSION_MS = 6000
"""Time after which the brokers give the partitions of a killed driver to others."""


def main(
    servers: Annotated[str, typer.Option(help="Brokers, as host:port.")],
    redis: Annotated[str, typer.Option(envvar="ACKER_REDIS_URL", help="Redis URL.")] = "redis://127.0.0.1:6379/0",
    app: Annotated[str, typer.Option(help="Name of the acker's app.")] = "kafka-words",
    group: Annotated[str, typer.Option(help="Consumer group.")] = "kafka-words",
    lines: Annotated[str, typer.Option(help="Topic to read.")] = "lines",
    words: Annotated[str, typer.Option(help="Topic to write.")] = "words",
    letters: Annotated[str, typer.Option(help="Topic for dead letters.")] = "lines.dlq",
    master: Annotated[str, typer.Option(help="Spark master, with task retries as in local[2,4].")] = "local[2,4]",
    max_spout_pending: Annotated[int, typer.Option(min=1, help="Limit on lines in flight.")] = 500,
    join_after: Annotated[int, typer.Option(min=0, help="Join the group once so many words are written.")] = 0,
) -> None:
    """Run a driver. Exit 0 after Ctrl-C."""
    console, stop = Console(stderr=True), threading.Event()
    logging.getLogger("acker_redis").setLevel(logging.ERROR)  # dead letters are expected
    try:
        with (
            Acker.connect(redis, app=app, lanes=LANES, message_timeout_secs=30) as acker,
            quiet_session(master, app) as spark,
        ):
            for number in (signal.SIGINT, signal.SIGTERM):  # in place of Spark's, which cancels all jobs
                signal.signal(number, lambda *_: stop.set())
            _wait_for_words(Topic(servers, words), join_after, stop)
            result = run_kafka(
                spark, partial(pipeline, servers, words), acker=acker, topics=[lines], group=group, dead_letters=letters,
                kafka={"bootstrap.servers": servers, "session.timeout.ms": SESSION_MS, "log_level": 0},
                retry=RetryPolicy(max_attempts=2, first_delay_secs=1), max_spout_pending=max_spout_pending, commit_secs=0.5,
                stop=stop,
            )  # fmt: skip
    except (AckerError, OSError, PySparkException) as exc:
        console.print(f"[red]error:[/red] {exc}", highlight=False, soft_wrap=True)
        raise typer.Exit(3) from exc
    counts = result.counts
    console.print(
        f"driver {result.run_id[:8]}: {counts.emitted:,} emitted, {counts.acked:,} acked, "
        f"{counts.dead_lettered:,} dead letters",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def _wait_for_words(topic: Topic, count: int, stop: threading.Event) -> None:
    while count and not stop.is_set() and topic.count() < count:
        time.sleep(LOOK_SECS)


if __name__ == "__main__":
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(main)
    program()
