"""What a run on Spark shows is what a run in process shows: metrics, hooks, the event log, failed trees."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from acker_redis import Acker
from acker_redis.storm import RunResult, Topology
from tests.storm.turns import parts
from tests.storm.turns.parts import Heard, chain, numbered, spout_of


def topology(folder: Path) -> Topology:
    """Sentences of which one fails, and one is forgotten."""
    folder.mkdir()
    config = {
        "topology.debug": True,
        "topology.message.timeout.secs": 0.5,
        "topology.auto.task.hooks": ["tests.storm.turns.parts.NotesCalls"],
        "noted": str(folder),
    }
    spout = spout_of(numbered(["A b", "C bad", "forgotten", ""]), Heard(), ["line"])
    return chain(spout, parts.Split, parts.Forgets, parts.Lower, config=config)


def shown(result: RunResult, folder: Path) -> dict[str, Any]:
    metrics = result.metrics
    return {
        "counts": {name: of.as_counts() for name, of in metrics.items()},
        "custom": {name: {key: one.count for key, one in of.custom.items()} for name, of in metrics.items()},
        "latencies": {
            name: [
                {source: mean.count for source, mean in means.items()}
                for means in (of.complete_latency, of.execute_latency, of.process_latency)
            ]
            for name, of in metrics.items()
        },
        "trees": sorted((tree.tup_id, tree.spout, tree.reason, tree.last_component) for tree in result.failed_trees),
        "events": Counter(
            (event.component, event.stream, event.tup_id, tuple(event.values)) for event in result.events
        ),
        "hooks": Counter(line for path in folder.iterdir() for line in path.read_text().splitlines()),
        "numbers": (result.acked, result.failed, result.timed_out, result.dead_letters, result.unfinished),
    }


@pytest.mark.usefixtures("whole_rounds")
def test_a_run_on_spark_shows_what_a_run_in_process_shows(run: Any, acker: Acker, tmp_path: Path) -> None:
    """The run in process acks messages in the round that emits them, so that a pause lets none of them time out."""
    here, there = tmp_path / "here", tmp_path / "there"
    in_process = shown(topology(here).run_local(acker), here)
    on_spark = shown(run(topology(there)), there)
    assert in_process["numbers"] == (2, 1, 1, 0, 0)
    assert in_process["trees"] == [(1, "spout", "bad word", "c"), (2, "spout", "timeout", "a")]
    assert in_process["custom"]["b"] == {"forgotten": 1}
    assert {line.split()[1] for line in in_process["hooks"]} == {
        "emit", "spout_ack", "spout_fail", "bolt_execute", "bolt_ack", "bolt_fail",
    }  # fmt: skip
    for name, expected in in_process.items():
        assert on_spark[name] == expected, name
