"""Topologies on the standalone cluster: one fault after the other; prints what became of the messages as JSON.

python -m tests.support.jobs.topology_cluster_job spark://127.0.0.1:7077 redis://127.0.0.1:6379/0 FOLDER SCENARIO ...
"""

import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from acker_redis import Acker
from tests.storm.turns import parts
from tests.storm.turns.cluster_parts import FAULTS, MESSAGES, VICTIM, AcksWithFault, kills_in_sink
from tests.storm.turns.parts import Does, Heard, chain, numbered, processed_whole, spout_of
from tests.support.jobs.cluster_job import play
from tests.support.spark.faults import wait_for


def run_job(url: str, spark: Any, folder: Path, fault: str, where: str) -> dict[str, Any]:
    """A turn whose bolt isn't deterministic, with a fault in the bolt before it, in the sink, or in the acks."""
    assert fault in FAULTS
    folder.mkdir(parents=True)
    heard = Heard()
    first: Any = Does("pass_with_fault", fault if where == "bolt" else "none", VICTIM, str(folder))
    topology = chain(
        spout_of(numbered(range(MESSAGES)), heard), first, Does("draw"), Does("note_drawn", str(folder)), parts.Seen,
        config={"topology.message.timeout.secs": 2},
    )  # fmt: skip
    sinks = {"d": kills_in_sink(folder)} if where == "sink" else None
    step = AcksWithFault.with_fault(fault if where == "ack" else "none", folder)
    with (
        patch("acker_redis.storm.turns.job.AckStep", step),
        Acker.connect(url, app=f"{fault}-{where}", shards=2, message_timeout_secs=60) as acker,
    ):
        result = topology.run(spark, acker=acker, sinks=sinks)
        if fault == "lose":
            wait_for(folder / "loser")
            assert (folder / "loser").read_text() == "SENT"
        late, pending = len(acker.poll()), acker.pending()
    return {
        "outcomes": sorted(Counter(Counter(call[1] for call in heard).values()).items()),
        "false": sorted(set(heard.acked) - processed_whole(folder)),
        "reasons": sorted(set(heard.failed.values())),
        "acked": len(heard.acked), "unfinished": result.unfinished, "late": late, "pending": pending,
    }  # fmt: skip


if __name__ == "__main__":
    play(sys.argv[1], Path(sys.argv[3]), sys.argv[4:], partial(run_job, sys.argv[2]))
