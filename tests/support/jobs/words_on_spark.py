"""A topology on Spark that a program runs, interrupts, or kills between two steps of a turn."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from acker_redis import Acker
from acker_redis.storm import Bolt, Grouping, Spout, Topology
from tests.support.spark.faults import wait_for

MESSAGES = 20


class Lines(Spout):
    """Emits lines; where `lines.endless` is set, for ever. Notes what was acked in a file."""

    outputs = ["line"]

    def initialize(self, conf: Any, context: Any) -> None:
        self.sent, self.conf = 0, conf

    def next_tuple(self) -> None:
        if self.sent < MESSAGES or self.conf.get("lines.endless"):
            self.sent += 1
            self.emit([f"A b{self.sent}"], tup_id=self.sent)

    def ack(self, tup_id: int) -> None:
        if "lines.acked" in self.conf:
            with Path(self.conf["lines.acked"]).open("a") as file:
                file.write(f"{tup_id}\n")


class Split(Bolt):
    outputs = ["word"]

    def process(self, tup: Any) -> None:
        for word in tup.values.line.split():
            self.emit([word])


class Lower(Bolt):
    outputs = ["word string"]

    def process(self, tup: Any) -> None:
        self.emit([tup.values.word.lower()])


class Words(Topology):
    lines = Lines.spec()
    split = Split.spec(inputs=[lines], par=2)
    lower = Lower.spec(inputs={split: Grouping.fields("word")}, par=2)


class Endless(Words):
    config = {"lines.endless": True, "topology.max.spout.pending": 50}


class Waits(Lower):
    """Says in a file that a job has begun, and waits for another file before it processes anything."""

    def process(self, tup: Any) -> None:
        folder = Path(os.environ["WAITS_IN"])
        (folder / "began").touch()
        wait_for(folder / "go")
        super().process(tup)


class Waiting(Endless):
    lower = Waits.spec(inputs={Words.split: Grouping.fields("word")}, par=2)


def kill_behind(step: str) -> None:
    """Kill this driver behind a step of its first turn."""
    from acker_redis.storm.turns import job, run, sinks

    owner, name = {
        "inits": (run.TurnService, "_send_inits"),
        "levels": (sinks, "keep"),
        "written": (sinks, "write"),
        "acks": (job.TurnJobs, "_sent"),
    }[step]
    call = getattr(owner, name)

    def die(*arguments: Any, **options: Any) -> None:
        call(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, die)


def main(step: str, url: str, folder: str) -> None:
    from pyspark.sql import SparkSession

    from tests.support.spark.session import started

    kill_behind(step)
    spark = SparkSession.builder.getOrCreate() if "SPARK_REMOTE" in os.environ else started(Path(folder))
    with Acker.connect(url, app="turns", shards=2, message_timeout_secs=60) as acker:
        Words.run(
            spark, acker=acker, conf={"lines.acked": f"{folder}/acked"},
            sinks={"lower": lambda writer: writer.mode("append").parquet(f"{folder}/out")},
        )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
