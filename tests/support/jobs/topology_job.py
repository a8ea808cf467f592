"""A topology that is run by `run_local` until its messages are done, for a test that kills it.

Messages are numbers, without those in the file of acks. The spout keeps nothing else, as one of a source with offsets.
"""

import os
import random
import sys
from pathlib import Path
from typing import Any, ClassVar

from acker_redis import Acker, RetryPolicy
from acker_redis.storm import BatchingBolt, Bolt, Grouping, ReliableSpout, RowFailedError, Topology, Tuple

MESSAGES = 60


class Source(ReliableSpout):
    outputs = ("id",)
    retry = RetryPolicy(max_attempts=50, first_delay_secs=0.01, max_delay_secs=0.05)

    def initialize(self, conf: Any, context: Any) -> None:
        self.folder = Path(conf["folder"])
        acks = self.folder / "acks"
        done = set(acks.read_text().split()) if acks.exists() else set()
        self.left = [str(number) for number in range(MESSAGES) if str(number) not in done]

    def next_tuple(self) -> None:
        if self.left:
            tup_id = self.left.pop()
            self.emit([tup_id], tup_id=tup_id)

    def ack(self, tup_id: Any) -> None:
        append(self.folder / "acks", tup_id)


class Split(Bolt):
    outputs = ("id", "part")

    def process(self, tup: Tuple) -> None:
        for part in range(3):
            self.emit([tup.values.id, part])
        if random.random() < 0.1:
            raise RowFailedError("drawn")


class Write(BatchingBolt):
    """Writes batches of parts, and dies at random before, between and after them."""

    batch_size = 4

    def initialize(self, conf: Any, context: Any) -> None:
        self.folder, self.dies = Path(conf["folder"]), conf["dies"]

    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        for tup in tups:
            if random.random() < self.dies:
                os._exit(9)
            append(self.folder / "parts", f"{tup.values.id}.{tup.values.part}")


class Parts(Topology):
    config: ClassVar[dict[str, Any]] = {"topology.message.timeout.secs": 5, "topology.max.spout.pending": 8}
    source = Source.spec()
    split = Split.spec(inputs=[source], par=2)
    write = Write.spec(inputs={split: Grouping.fields("id")}, par=2)


def append(file: Path, line: str) -> None:
    with file.open("a") as lines:
        lines.write(f"{line}\n")


def main(url: str, folder: str, dies: str) -> None:
    class Run(Parts):
        config: ClassVar[dict[str, Any]] = {
            **Parts.config,
            "topology.name": "parts",
            "folder": folder,
            "dies": float(dies),
        }

    with Acker.connect(url, app="test", message_timeout_secs=60) as acker:
        Run.run_local(acker)


if __name__ == "__main__":
    main(*sys.argv[1:])
