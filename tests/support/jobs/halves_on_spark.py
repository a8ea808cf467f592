"""Halves of pairs that a topology joins, counts and batches, with faults in its workers, its executors and its driver.

python -m tests.support.jobs.halves_on_spark redis://127.0.0.1:6379/0 FOLDER CHANCE [MASTER]
"""

import os
import random
import secrets
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq

from acker_redis import Acker
from acker_redis.acker import app_of
from acker_redis.model.keys import StateKeys
from acker_redis.storm import BatchingBolt, Grouping, RunResult, Spout, StatefulBolt, Stream, TopologyBuilder, Tuple
from acker_redis.storm.turns import sinks
from acker_redis.storm.turns.run_state import RunState
from tests.storm.turns.state_parts import die_somewhere
from tests.storm.turns.test_state import state_of
from tests.support.spark.faults import kill_executor, once

HALVES = ("first", "second")


class Halves(Spout):
    """Emits both halves of each pair that isn't done, in any order. If one fails, both come again under a new key."""

    outputs = [Stream(["key"], name=half) for half in HALVES]

    def initialize(self, conf: Any, context: Any) -> None:
        self.folder, self.keys, self.run = Path(conf["folder"]), 0, secrets.token_hex(3)
        self.left: list[tuple[str, str]] = []
        self.acked: dict[str, int] = defaultdict(int)
        self.failed: set[str] = set()
        for number in sorted(set(map(str, range(conf["pairs"]))) - set(lines(self.folder, "done"))):
            self.begin(number)

    def begin(self, number: str) -> None:
        self.keys += 1
        for half in HALVES:
            self.left.insert(random.randint(0, len(self.left)), (half, f"{number}.{self.run}.{self.keys}"))

    def next_tuple(self) -> None:
        if self.left:
            half, key = self.left.pop()
            self.emit([key], tup_id=(half, key), stream=half)

    def ack(self, tup_id: Any) -> None:
        _, key = tup_id
        append(self.folder, "acked", " ".join(tup_id))
        self.acked[key] += 1
        if self.acked[key] == len(HALVES):
            append(self.folder, "done", key.partition(".")[0])

    def fail(self, tup_id: Any, reason: str) -> None:
        _, key = tup_id
        append(self.folder, "failed", f"{key} {reason}")
        if key not in self.failed:
            self.failed.add(key)
            self.begin(key.partition(".")[0])


class Join(StatefulBolt):
    """Holds the half that comes first until the other one comes, and counts the pairs."""

    outputs = ["key string"]
    auto_ack = False

    def process(self, tup: Tuple) -> None:
        misfortune(self.storm_conf)
        key = tup.values.key
        other = self.state.pop(("waits", key), None)
        if other is None:
            self.state["waits", key] = tup
            return
        what = "joined" if other.stream != tup.stream else "doubled"
        self.state[what, key] = self.state.get((what, key), 0) + 1
        self.emit([key], anchors=[other, tup])
        self.ack(other)
        self.ack(tup)


class Batch(BatchingBolt, StatefulBolt):
    """Batches pairs, and counts them."""

    outputs = ["key string"]
    batch_size = 3

    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        misfortune(self.storm_conf)
        for tup in tups:
            self.state["batched", tup.values.key] = self.state.get(("batched", tup.values.key), 0) + 1
        for tup in tups:
            self.emit([tup.values.key])


def misfortune(conf: Any) -> None:
    """Let the worker or its executor die at random, up to so many times."""
    die_somewhere(conf["folder"], conf["deaths"])
    if random.random() < 0.03:
        for number in range(conf["executors"]):
            once(Path(conf["folder"], f"executor-{number}"), kill_executor)


def run_halves(
    spark: Any, acker: Acker, folder: Path, *, pairs: int, deaths: int = 0, executors: int = 0, timeout_secs: int = 60
) -> RunResult:
    """Run the topology until all pairs are done. `journal` must note its turns."""
    builder = TopologyBuilder()
    builder.set_spout("halves", Halves)
    join = builder.set_bolt("join", Join, par=2)
    for half in HALVES:
        join.grouping("halves", Grouping.fields("key"), half)
    builder.set_bolt("batch", Batch, par=2).grouping("join", Grouping.fields("key"))
    config = {
        "folder": str(folder), "pairs": pairs, "deaths": deaths, "executors": executors,
        "topology.message.timeout.secs": timeout_secs,
    }  # fmt: skip
    topology = builder.create_topology("halves", config)

    def rows_of(bolt: str) -> Any:
        return lambda writer: writer.mode("append").parquet(str(folder / "rows" / _turn[0] / bolt))

    return topology.run(spark, acker=acker, turn_tuples=5, sinks={bolt: rows_of(bolt) for bolt in ("join", "batch")})


_turn = [""]
"""Name of the turn whose rows are written."""


@contextmanager
def journal(folder: Path, chance: float = 0.0) -> Iterator[None]:
    """Note the turns that are committed, each with the name of its rows. The driver dies around each step, with a chance."""
    write, commit = sinks.write, RunState.commit

    def die() -> None:
        if random.random() < chance:
            os.kill(os.getpid(), signal.SIGKILL)

    def noted_write(*arguments: Any) -> None:
        _turn[0] = secrets.token_hex(6)
        die()
        write(*arguments)
        die()

    def noted_commit(self: RunState, chosen: Any, spec: Any) -> Any:
        append(folder, "journal", f"begin {self.epoch} {spec.turn} {_turn[0]}")
        die()
        found = commit(self, chosen, spec)
        die()
        append(folder, "journal", f"end {self.epoch} {spec.turn}")
        return found

    with patch.object(sinks, "write", noted_write), patch.object(RunState, "commit", noted_commit):
        yield


def check(acker: Acker, folder: Path) -> set[str]:
    """Check the state against the rows of the committed turns, and the acks against both. Returns the pairs that are done.

    A turn that has begun its commit when the driver died is committed if the server says so.
    """
    turns = [line.split() for line in lines(folder, "journal")]
    if turns and turns[-1][0] == "begin":
        key = StateKeys(acker.config.app, "halves").state
        epoch, turn, decision = app_of(acker).client.pipeline([("HMGET", key, "epoch", "turn", "decision")])[0]
        if [epoch.decode(), turn.decode()] == turns[-1][1:3] and decision.startswith(b"c"):
            append(folder, "journal", f"end {turns[-1][1]} {turns[-1][2]}")
            turns.append(["end", *turns[-1][1:3]])
    names = {(epoch, turn): name for kind, epoch, turn, *rest in turns if kind == "begin" for name in rest}
    committed = [names[epoch, turn] for kind, epoch, turn, *_ in turns if kind == "end"]
    counted: dict[str, dict[str, int]] = defaultdict(dict)
    for bolt in ("join", "batch"):
        for (what, key), count in state_of(acker, "halves", 2, bolt).items():
            counted[what][key] = count
    for bolt, what in (("join", "joined"), ("batch", "batched")):
        written = Counter(key for name in committed for key in _rows(folder / "rows" / name / bolt))
        assert counted[what] == written and set(written.values()) <= {1}, f"{what}: {counted[what]} and {written}"
    assert not counted["doubled"] and not counted["waits"].keys() & counted["joined"].keys()
    assert counted["batched"].keys() <= counted["joined"].keys()
    acked = Counter(lines(folder, "acked"))
    assert {line.split()[1] for line in acked} <= counted["batched"].keys(), "acked, and not processed"
    assert set(acked.values()) <= {1}, "acked twice"
    return set(lines(folder, "done"))


def _rows(folder: Path) -> list[str]:
    return list(pq.read_table(folder).column("key").to_pylist()) if folder.exists() else []


def append(folder: Path, name: str, line: str) -> None:
    with (folder / name).open("a") as file:
        file.write(f"{line}\n")


def lines(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text().splitlines() if (folder / name).exists() else []


def main(url: str, folder: str, pairs: str, chance: str, master: str = "") -> None:
    from tests.support.jobs.cluster_job import session
    from tests.support.spark.session import started

    path = Path(folder)
    faults: Any = {"executors": 2, "timeout_secs": 5} if master else {}
    with journal(path, float(chance)), Acker.connect(url, app="turns", shards=2, message_timeout_secs=60) as acker:
        spark = session(master, path) if master else started(path)
        result = run_halves(spark, acker, path, pairs=int(pairs), deaths=3, **faults)
        assert not result.unfinished
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
