"""Streaming query over orders that are generated while it runs: `python -m spark.applications.order_stream`.

It runs until Ctrl-C, or for the given number of seconds. Start it again with the same --folder to resume with parked orders
and with orders that Spark had not committed.
"""

import contextlib
import signal
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pyspark.errors import PySparkException
from rich.console import Console
from rich.live import Live

from acker_redis import Acker, AckerError, RetryPolicy
from acker_redis.spark import TrackedBatches
from acker_redis.spark.runtime.worker_errors import acker_error_in
from spark.applications.order_stream import dashboard
from spark.applications.order_stream.orders import Orders, must_be_dead_letter
from spark.applications.order_stream.pipeline import ORDER, pipeline
from spark.applications.order_stream.store import Account, Store, account
from spark.support.session import quiet_session

LOOK_SECS, LINE_SECS = 0.5, 5.0
DRAIN_SECS, DRAIN_ALL_SECS = 5.0, 300.0


def main(
    folder: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for orders, results and checkpoint; reuse it to resume.")
    ],
    redis: Annotated[str, typer.Option(envvar="ACKER_REDIS_URL", help="Redis URL.")] = "redis://127.0.0.1:6379/0",
    app: Annotated[str, typer.Option(help="Name of the acker's app.")] = "order-stream",
    master: Annotated[str, typer.Option(help="Spark master, with task retries as in local[2,4].")] = "local[2,4]",
    rate: Annotated[float, typer.Option(min=1, max=10_000, help="Orders per second.")] = 200.0,
    kill_every: Annotated[
        float, typer.Option(min=0, help="Interval between kills of a busy worker, in seconds; 0: never.")
    ] = 20.0,
    seconds: Annotated[float | None, typer.Option(min=1, help="Time after which to end, with all orders done.")] = None,
) -> None:
    """Run the stream. Exit 0 if every order ever generated in this folder is accounted for, else 1."""
    console, stop = Console(stderr=True), threading.Event()
    try:
        orders = Orders(folder.resolve(), rate)
        with (
            Store(folder.resolve()) as store,
            Acker.connect(redis, app=app, message_timeout_secs=30) as acker,
            quiet_session(master, app) as spark,
        ):
            for number in (signal.SIGINT, signal.SIGTERM):  # in place of Spark's, which cancels all jobs
                signal.signal(number, lambda *_: stop.set())
            spark.conf.set("spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism)
            result = run(spark, acker, store, orders, stop, kill_every, seconds, console)
    except (AckerError, OSError, PySparkException) as exc:
        error = acker_error_in(exc) or exc  # Spark's error of a query has the traceback and the plan around it
        console.print(f"[red]error:[/red] {error}", highlight=False, soft_wrap=True)
        raise typer.Exit(3) from exc
    Console().print(summary_of(result, folder), highlight=False, soft_wrap=True)
    raise typer.Exit(1 if result.wrong else 0)


def run(
    spark: Any, acker: Acker, store: Store, orders: Orders, stop: threading.Event, kill_every: float,
    seconds: float | None, console: Console,
) -> Account:  # fmt: skip
    """Run the stream, and account for the orders."""
    latencies = dashboard.Latencies()
    batches = TrackedBatches(
        partial(pipeline, store), acker=acker, ids="id", parking_location=str(store.parking_location), dead_letter_bytes=1000,
        retry=RetryPolicy(max_attempts=5, first_delay_secs=1, multiplier=2, max_delay_secs=5),
        on_messages_done=lambda numbers: latencies.add(orders.ages_secs(numbers)),
    )  # fmt: skip
    result = account(store, orders.made, (), all_read=False)
    before, left = result.made, result.parked + result.to_come
    source = spark.readStream.schema(ORDER).json(str(orders.folder))
    with batches:
        orders.start()
        query = source.writeStream.foreachBatch(batches).option("checkpointLocation", str(store.checkpoint)).start()
        try:
            _watch(query, batches, acker, store, orders, (before, left), latencies, stop, kill_every, seconds, console)
        finally:
            orders.stop()
        ends_whole = seconds is not None and not stop.is_set()
        if ends_whole:
            query.processAllAvailable()
        query.stop()
        store.kill.unlink(missing_ok=True)
        batches.drain(DRAIN_ALL_SECS if ends_whole else DRAIN_SECS)
    store.keep_letters(acker.dead_letters.find())
    bad = filter(must_be_dead_letter, range(orders.made))
    return account(store, orders.made, bad, all_read=ends_whole)


def _watch(
    query: Any, batches: TrackedBatches, acker: Acker, store: Store, orders: Orders, earlier: tuple[int, int],
    latencies: dashboard.Latencies, stop: threading.Event, kill_every: float, seconds: float | None, console: Console,
) -> None:  # fmt: skip
    """Show the progress, and kill a worker at intervals, until it is time to end.

    Raises:
        PySparkException: the query failed.
        AckerError: the query ended unexpectedly.
    """
    began = killed_at = printed_at = time.monotonic()
    killed, letters, after = 0, Counter[str](), ""
    with Live(console=console, auto_refresh=False) if console.is_terminal else contextlib.nullcontext() as live:
        while not stop.wait(LOOK_SECS):
            if not query.isActive:
                query.awaitTermination()
                raise AckerError("The query ended unexpectedly. Start the program again to resume.")
            now = time.monotonic()
            if seconds is not None and now - began > seconds:
                return
            if kill_every and now - killed_at > kill_every:
                killed, killed_at = killed + 1, now
                store.kill.touch()
            fresh = list(acker.dead_letters.read(after=after))
            store.keep_letters(fresh)
            letters.update(letter.detail or letter.reason for letter in fresh)
            after = fresh[-1].entry_id if fresh else after
            shown = dashboard.facts(
                orders.made, *earlier, batches.status(), dict(letters), latencies, killed, now - began
            )
            if live is not None:
                live.update(dashboard.as_table(shown), refresh=True)
            elif now - printed_at > LINE_SECS:
                printed_at = now
                console.print(dashboard.as_line(shown), highlight=False, soft_wrap=True)


def summary_of(result: Account, folder: Path) -> str:
    """Describe an account in a few lines."""
    lines = [
        f"{result.made:,} orders: {result.in_both:,} in both sinks, {result.dead_letters:,} dead letters, "
        f"{result.parked:,} parked, {result.to_come:,} not read yet",
        f"Lost or misplaced orders: {', '.join(map(str, result.wrong[:20]))}" if result.wrong else "Nothing is lost.",
    ]
    if result.parked or result.to_come:
        lines.append(f"Start again with --folder {folder} to resume, or remove the folder to start over.")
    return "\n".join(lines)


if __name__ == "__main__":
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(main)
    program()
