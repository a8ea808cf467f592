"""Outages that runs wait for, in Redis."""

import json
from typing import Any

from acker_redis.acker import app_of
from acker_redis.model import keys
from acker_redis.store.outages import ERROR_CHARS, Outage, SetAside


def test_outages_are_kept_per_lane_until_there_are_none(source: Any, connect: Any, raw: Any) -> None:
    app = app_of(connect(app="orders"))
    app.write_outages("run-1", [Outage("store", 30, 100.5, 160.0, "x" * 5000)], lane=0)
    app.write_outages("run-2", [Outage("", 1, 1.0, 2.0, "")], lane=1)
    noted = {lane: json.loads(text) for lane, text in raw.hgetall(keys.outages("orders")).items()}
    (outage,) = noted[b"0"]["outages"]
    assert outage == {
        "operator": "store", "messages": 30, "since_ms": 100_500, "error": "x" * ERROR_CHARS,
    }  # fmt: skip
    assert noted[b"1"]["run_id"] == "run-2"
    app.write_outages("run-1", [], lane=0)
    assert list(raw.hgetall(keys.outages("orders"))) == [b"1"]


def test_operators_with_messages_set_aside_stand_beside_outages(source: Any, connect: Any, raw: Any) -> None:
    app = app_of(connect(app="orders"))
    app.write_outages("run-1", [], [SetAside("geocode", 3, 100.5, "KeyError: 'city'")], lane=0)
    noted = json.loads(raw.hget(keys.outages("orders"), 0))
    assert noted["outages"] == []
    assert noted["set_aside"] == [
        {"operator": "geocode", "messages": 3, "since_ms": 100_500, "error": "KeyError: 'city'"}
    ]
    app.write_outages("run-1", [], lane=0)
    assert not raw.exists(keys.outages("orders"))
