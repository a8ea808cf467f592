"""A topology of rows of a stream and of files that a program runs, and kills when a message of the second batch is done."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from acker_redis import Acker, OffsetFile
from acker_redis.spark import MessageIds, read_files
from acker_redis.storm import BatchSpout, Bolt, DataFrameSpout, Topology, TopologyBuilder

BATCHES = [[0, 1, 2], [3, 4, 5], [6]]
"""Ids of the rows of each batch."""

LINES = 8


class _Notes:
    """Notes what was acked in a file."""

    acked: Path

    def ack(self, tup_id: int) -> None:
        with self.acked.open("a") as file:
            file.write(f"{tup_id}\n")


class Batches(_Notes, BatchSpout):
    """Rows of the stream."""


class Lines(_Notes, DataFrameSpout):
    """Rows of the files."""


class Passes(Bolt):
    outputs = ["v string"]

    def process(self, tup: Any) -> None:
        self.emit([str(tup.values[0])])


def write_sources(folder: Path) -> None:
    """Write a file per batch, and a file of lines."""
    for name in ("batches", "lines"):
        (folder / name).mkdir()
    for number, ids in enumerate(BATCHES):
        (folder / "batches" / f"{number}.csv").write_text("".join(f"{one}\n" for one in ids))
        os.utime(folder / "batches" / f"{number}.csv", (number + 1, number + 1))
    (folder / "lines" / "a.txt").write_text("".join(f"line {number}\n" for number in range(LINES)))


def topology_of(spark: Any, folder: Path) -> Topology:
    """The topology over the sources in a folder."""
    stream = spark.readStream.schema("v bigint").option("maxFilesPerTrigger", 1).csv(str(folder / "batches"))
    batches = Batches(stream, str(folder / "checkpoint"), ids="v", trigger={"availableNow": True})
    ids = MessageIds.offsets(offset_file=OffsetFile(folder / "progress.json"))
    lines = Lines(read_files(spark, str(folder / "lines")).select("value", "file", "row", "_corrupt_record"), ids=ids)
    batches.acked, lines.acked = folder / "acked-batches", folder / "acked-lines"
    builder = TopologyBuilder()
    builder.set_spout("batches", batches)
    builder.set_spout("lines", lines)
    builder.set_bolt("passes", Passes, par=2).shuffle_grouping("batches").shuffle_grouping("lines")
    return builder.create_topology("rows", {"topology.max.spout.pending": 3})


def sinks_in(folder: Path) -> dict[str, Any]:
    """The sink of a run."""
    return {"passes": lambda writer: writer.mode("append").parquet(str(folder / "out"))}


def kill_at(step: str) -> None:
    """Kill this driver when the first message of the second batch is done, or before Spark commits that batch."""
    from acker_redis.storm.turns.micro_batches import BatchSource, _Batch

    owner, name, place = {"acked": (BatchSource, "note_done", 4), "ended": (_Batch, "end", 2)}[step]
    call, calls = getattr(owner, name), []

    def die(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == place:
            os.kill(os.getpid(), signal.SIGKILL)
        call(*arguments)

    setattr(owner, name, die)


def main(step: str, url: str, place: str) -> None:
    from tests.support.spark.session import started

    kill_at(step)
    folder = Path(place)
    with Acker.connect(url, app="turns", shards=2, message_timeout_secs=60) as acker:
        spark = started(folder)
        topology_of(spark, folder).run(spark, acker=acker, sinks=sinks_in(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
