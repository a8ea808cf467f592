"""A topology with state that a program runs, and that kills its driver between two steps of the first turn."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from acker_redis import Acker
from acker_redis.storm import Grouping, StatefulBolt, Topology
from tests.support.jobs.words_on_spark import MESSAGES, Lines, Split


class Count(StatefulBolt):
    def process(self, tup: Any) -> None:
        self.state[tup.values.word] = self.state.get(tup.values.word, 0) + 1


class Counts(Topology):
    lines = Lines.spec()
    split = Split.spec(inputs=[lines], par=2)
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=2)


COUNTED = {"A": MESSAGES, **{f"b{number}": 1 for number in range(1, MESSAGES + 1)}}
"""What one run counts."""


def kill_at(step: str) -> None:
    """Kill this driver before the commit, behind it, or behind the acks of the first turn."""
    from acker_redis.storm.turns.job import TurnJobs
    from acker_redis.storm.turns.run_state import RunState

    owner, name = {
        "levels": (RunState, "commit"),
        "committed": (RunState, "commit"),
        "acks": (TurnJobs, "_sent"),
    }[step]
    call = getattr(owner, name)

    def die(*arguments: Any, **options: Any) -> None:
        if step != "levels":
            call(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, die)


def main(step: str, url: str, folder: str) -> None:
    from tests.support.spark.session import started

    kill_at(step)
    with Acker.connect(url, app="turns", shards=2, message_timeout_secs=60) as acker:
        Counts.run(started(Path(folder)), acker=acker, conf={"lines.acked": f"{folder}/acked"})


if __name__ == "__main__":
    main(*sys.argv[1:])
