"""A topology with state on the standalone cluster: one fault after the other; prints what was counted as JSON.

python -m tests.support.jobs.state_cluster_job spark://127.0.0.1:7077 redis://127.0.0.1:6379/0 FOLDER SCENARIO ...
"""

import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from acker_redis import Acker
from tests.storm.turns.parts import Heard, numbered, spout_of
from tests.storm.turns.state_parts import BehindWithFault, CountsWithFault, counting
from tests.storm.turns.test_state import state_of, words
from tests.support.jobs.cluster_job import play

LINES = [f"a b{number % 7} victim" if number == 30 else f"a b{number % 7}" for number in range(60)]


def run_job(url: str, spark: Any, folder: Path, fault: str, where: str) -> dict[str, Any]:
    """Two turns. The fault is in the first one, in a task with state or in one behind it."""
    folder.mkdir(parents=True)
    heard = Heard()
    config = {"topology.message.timeout.secs": 2, "folder": str(folder), "fault": fault, "where": where}
    topology = counting(
        spout_of(numbered(LINES), heard, fields=["line"]),
        config=config, count=CountsWithFault, behind=BehindWithFault,
    )  # fmt: skip
    with Acker.connect(url, app=f"{fault}-{where}", shards=2, message_timeout_secs=60) as acker:
        result = topology.run(spark, acker=acker, turn_tuples=40)
        counted, pending = words(state_of(acker)), acker.pending()
    return {
        "outcomes": sorted(Counter(Counter(call[1] for call in heard).values()).items()),
        "reasons": sorted(set(heard.failed.values())), "acked": len(heard.acked), "counted": counted,
        "unfinished": result.unfinished, "pending": pending,
    }  # fmt: skip


if __name__ == "__main__":
    play(sys.argv[1], Path(sys.argv[3]), sys.argv[4:], partial(run_job, sys.argv[2]))
