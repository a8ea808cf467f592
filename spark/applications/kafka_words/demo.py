"""Demo for `make kafka`: starts Kafka, a server and a rotator; a second driver joins the group, and the first is killed."""

import contextlib
import json
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console

from acker_redis.client.client import Client
from acker_redis.errors import AckerError
from acker_redis.ops.acl import Role
from acker_redis.store.kafka_progress import KafkaProgress
from spark.applications.kafka_words.account import Account, Commits, Committed, Topic
from spark.applications.kafka_words.lines import POISON, Lines
from spark.support import kafka
from spark.support.services import ENDS_IN_SECS, Place, kill, services, start, step

APP = "kafka-words"
LINES, WORDS, LETTERS = "lines", "words", "lines.dlq"
PARTITIONS = 4
LOOK_SECS, SHOW_SECS = 0.5, 2.0
QUIET_SECS = 180.0
"""Longest time without progress."""

INTERRUPTED = 130

EXPLAINED = """
What just happened: each line was a record of a topic, and became one record per word. A driver commits an offset once all
words of its line are acknowledged. So the lag is the work that is left, which `kafka-consumer-groups` shows, too. Lines that
are done beyond an open one stand in the commit's metadata. When the first driver was killed, the second went on from there,
and repeated only the lines in flight. Lines that are no valid JSON became dead letters alone, and held up no other line.
Next, read docs/guides/kafka.md.
"""


def main(
    lines: Annotated[int, typer.Option(min=100, help="Number of lines to produce.")] = 3000,
    per_sec: Annotated[float, typer.Option(min=1, help="Lines per second.")] = 200.0,
    without_kill: Annotated[bool, typer.Option("--without-kill", help="Don't kill the first driver.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    server: Annotated[
        str | None, typer.Option(help="Server program to start, such as redis-server. Default: the embedded Valkey.")
    ] = None,
) -> None:
    """Run lines through two drivers of a group, one of which is killed. Exit 0 only if every line is accounted for."""
    console = Console(stderr=True) if as_json else Console()
    say = _quiet if as_json else step
    try:
        if not kafka.are_here():
            say("Kafka's jars are downloaded once, 39 MB.")
        with services(server, quiet=as_json) as place, kafka.running() as node:
            say(f"Kafka: a node started on {node.address}")
            with _play(node, place, lines, per_sec, console) as play:
                status = play.run(say, kills=not without_kill)
                shown = json.dumps(play.result()) if as_json else play.summary()
    except AckerError as exc:
        Console(stderr=True).print(f"[red]error:[/red] {exc}", highlight=False, soft_wrap=True)
        raise typer.Exit(3) from exc
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    print(shown, flush=True)
    if not as_json and not status:
        print(EXPLAINED)
    raise typer.Exit(status)


def _quiet(text: str) -> None:
    """Print nothing."""


@dataclass
class Drivers:
    """Processes of the two drivers."""

    first: subprocess.Popen[bytes]
    second: subprocess.Popen[bytes]

    def check(self) -> None:
        """Check that both run, unless they were killed.

        Raises:
            AckerError: one has ended.
        """
        for job in (self.first, self.second):
            if job.poll() not in (None, -signal.SIGKILL):
                raise AckerError(
                    f"A driver ended with status {job.returncode}. Its output is above. Start the demo again."
                )

    def end(self) -> None:
        """End both gracefully."""
        left = [job for job in (self.first, self.second) if job.poll() is None]
        for job in left:
            job.send_signal(signal.SIGINT)
        for job in left:
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(timeout=ENDS_IN_SECS)

    def kill(self) -> None:
        """End what is left."""
        for job in (self.first, self.second):
            kill(job)


@contextlib.contextmanager
def _play(node: kafka.Node, place: Place, count: int, per_sec: float, console: Console) -> "Iterator[Play]":
    for name, partitions in ((LINES, PARTITIONS), (WORDS, PARTITIONS), (LETTERS, 1)):
        node.topic(name, partitions)
    url = place.url_of(Role.SPOUT, APP)
    group = f"{APP}-{uuid.uuid4().hex[:8]}"  # Redis may know that of an earlier demo, and its topics
    options = ["--servers", node.address, "--group", group, "--max-spout-pending", str(max(50, count // 6))]
    module = "spark.applications.kafka_words"
    first = start(module, *options, redis_url=url)
    second = start(module, *options, "--join-after", str(count), redis_url=url)
    drivers = Drivers(first, second)
    try:
        with contextlib.closing(Client(url)) as client:
            commits = Commits(node.address, group, LINES)
            yield Play(node, drivers, KafkaProgress(client, APP, group), commits, count, per_sec, console)
    finally:
        drivers.kill()


class Play:
    """The run of the demo, from the first line to the account."""

    def __init__(
        self,
        node: kafka.Node,
        drivers: Drivers,
        progress: KafkaProgress,
        commits: Commits,
        count: int,
        per_sec: float,
        console: Console,
    ) -> None:
        self._drivers, self._progress, self._commits = drivers, progress, commits
        self._count, self._console = count, console
        self._lines = Lines(node.address, LINES, per_sec)
        self._topics = {name: Topic(node.address, name) for name in (LINES, WORDS, LETTERS)}
        self._account = Account()
        self._checks = self._killed = self._members = 0
        self._shown_at = float("-inf")
        self._changed_at = time.monotonic()
        self._state: tuple[int, ...] = ()
        self._is_interrupted = False

    def run(self, say: Any, *, kills: bool) -> int:
        """Run everything, and close the account. Return the exit status."""
        try:
            self._run(say, kills=kills)
        except KeyboardInterrupt:
            self._is_interrupted = True
            say("Stopping. Press Ctrl-C again to stop at once.")
        self._lines.stop()
        self._drivers.end()
        self._compare()
        produced = self._account.done() if self._is_interrupted else range(self._count)
        self._account.finish(produced)
        if self._is_interrupted:
            return INTERRUPTED
        if len(self._lines.places) < self._count:
            self._account.wrong.append("lines were not produced")
        if kills and not self._killed:
            self._account.wrong.append("no driver was killed")
        return 1 if self._account.wrong else 0

    def _run(self, say: Any, *, kills: bool) -> None:
        say(f"The first driver starts. Of {self._count:,} lines, one in {POISON} is no valid JSON.")
        self._lines.allow(self._count // 2)
        while self._drivers_reading() < 2:
            self._look()
        say("The second driver has joined: each reads some partitions.")
        self._lines.allow(self._count)
        while kills and len(self._account.done()) < self._count * 0.6:
            self._look()
        if kills:
            kill(self._drivers.first)
            self._killed = 1
            say("The first driver was killed. The brokers notice it after some seconds.")
            while self._drivers_reading() != 1:
                self._look()
            say("The second driver reads all partitions, beyond what the first had done.")
        while len(self._account.done()) < self._count or self._lag():
            self._look()
        say("All lines are accounted for.")

    def _drivers_reading(self) -> int:
        """Return the number of drivers that have partitions, as they wrote it to Redis last."""
        return len({numbers["run_id"] for numbers in self._progress.read().values()})

    def _lag(self) -> int:
        return self._commits.read(self._topics[LINES].ends()).lag

    def _compare(self) -> tuple[int, Committed]:
        """Read the commits first, then the topics, and compare them. Return the number of lines, and the commits."""
        ends = self._topics[LINES].ends()
        committed = self._commits.read(ends)
        self._account.add_words(self._topics[WORDS].fresh())
        self._account.add_letters(self._topics[LETTERS].fresh())
        self._account.check(committed, dict(self._lines.places))
        self._checks += 1
        return sum(ends.values()), committed

    def _look(self) -> None:
        """Compare commits and topics, and show both.

        Raises:
            AckerError: a driver has ended, or nothing goes on.
        """
        self._drivers.check()
        produced, committed = self._compare()
        now, done = time.monotonic(), len(self._account.done())
        state = produced, done, committed.lag, self._drivers_reading()
        if state != self._state:
            self._state, self._changed_at = state, now
        elif now - self._changed_at > QUIET_SECS:
            raise AckerError(
                f"Nothing has happened for {QUIET_SECS:.0f} s. {produced - done} lines are open. Start again."
            )
        if now - self._shown_at > SHOW_SECS:
            self._shown_at = now
            self._console.print(
                f"  {produced:5,} lines   lag {committed.lag:5,} = {committed.lag - committed.done_beyond:5,} to do "
                f"+ {committed.done_beyond:5,} done beyond an open line   truth {produced - done:5,} to do   "
                f"drivers {state[3]}", highlight=False, soft_wrap=True,
            )  # fmt: skip
        time.sleep(LOOK_SECS)

    def result(self) -> dict[str, Any]:
        """Return the account for programs."""
        account = self._account
        return {
            "lines": len(self._lines.places), "written": len(account.done() - account.letters.keys()),
            "dead_letters": len(account.letters), "words": len(account.words), "repeats": account.repeats,
            "killed": self._killed, "checks": self._checks, "lag": self._lag(), "wrong": account.wrong,
        }  # fmt: skip

    def summary(self) -> str:
        """Describe the account in a few lines."""
        of = self.result()
        left = of["lines"] - of["written"] - of["dead_letters"]
        lines = [
            f"{of['lines']:,} lines = {of['written']:,} written + {of['dead_letters']:,} dead letters (no valid JSON)"
            + (f" + {left:,} unfinished" if left else ""),
            f"{of['words']:,} words, and {of['repeats']:,} repeats of them, which readers drop by the key",
            f"Lag of the group: {of['lag']:,}. The commits were compared with the topics {of['checks']:,} times.",
            *([f"WRONG: {text}" for text in of["wrong"]] or ["Every line is accounted for."]),
        ]
        return "\n".join(lines)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
