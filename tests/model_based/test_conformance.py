"""Event sequences with the outcomes each event must produce; many were run against Storm's own Acker and RotatingMap."""

import json
from pathlib import Path
from typing import Any

import pytest

from acker_redis import Acker
from tests.support.leaks import assert_no_leaks, run_out

_DATA = Path(__file__).parents[1] / "data" / "sequences.json"
SEQUENCES = json.loads(_DATA.read_text(encoding="utf-8"))["sequences"]


def apply(acker: Acker, event: dict[str, Any]) -> None:
    operation = event["op"]
    if operation == "init":
        acker.init(event["root"], event["val"], event["spout_id"])
    elif operation == "ack":
        acker.ack(event["root"], event["val"])
    elif operation == "fail":
        acker.fail(event["root"])
    elif operation == "reset_timeout":
        acker.reset_timeout(event["root"])
    else:
        assert operation == "rotate"
        acker.admin.rotate(force=True)


@pytest.mark.parametrize("sequence", SEQUENCES, ids=[f"{s['name']}, {s['buckets']}, {s['clock']}" for s in SEQUENCES])
def test_every_event_produces_its_outcomes(source, raw: Any, connect, sequence: dict[str, Any]) -> None:
    acker: Acker = connect(num_buckets=sequence["buckets"], clock=sequence["clock"], shards=2)
    for position, event in enumerate(sequence["events"]):
        apply(acker, event)
        outcomes = acker.poll()
        found = [{"kind": o.kind, "root": o.root, "spout_id": o.spout_id, "reason": o.reason} for o in outcomes]
        assert found == event["expect"], f"event {position}: {event}"
        acker.confirm(outcomes)
    run_out(acker)
    assert_no_leaks(raw, "test")
