"""Roots upstream of imported rows: renewed while their messages are open, acked or failed with them. No Spark."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from acker_redis import Acker
from acker_redis.spark.emission.messages import MESSAGE_ID
from acker_redis.spark.protocol.columns import ANCHORS
from acker_redis.spark.runs import exported
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.testing import fake_acker, settle

T = 30.0
ROOTS = {101: 7, 102: 8}
"""Of two messages, 1 and 2; each is all that its root waits for."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(exported, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def renewed(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    found: list[list[int]] = []
    real = Acker.reset_timeout_many

    def noting(acker: Acker, roots: Any) -> int:
        found.append(sorted(roots.tolist()))
        return real(acker, roots)

    monkeypatch.setattr(Acker, "reset_timeout_many", noting)
    return found


def upstream() -> Any:
    acker = fake_acker(app="imports", message_timeout_secs=T)
    acker.init_many(list(ROOTS), list(ROOTS.values()), 0)
    pairs = pa.array([[root, edge] for root, edge in ROOTS.items()], pa.list_(pa.int64()))
    return exported._UpstreamMessages(acker, pa.table({MESSAGE_ID: pa.array([1, 2], pa.int64()), ANCHORS: pairs}))


def spout(*dead: int) -> Any:
    letters = {one: DeadLetter(one, "run", 5, "failed", "write", "disk full") for one in dead}
    return SimpleNamespace(run_id="run", dead_letters=letters)


def test_open_upstream_roots_are_renewed_every_half_timeout(clock: SimpleNamespace, renewed: list[list[int]]) -> None:
    origin = upstream()
    origin.renew()
    assert renewed == []
    clock.now += T / 2
    origin.renew()
    origin.renew()
    assert renewed == [[101, 102]]
    origin.done(np.array([1]), spout())
    clock.now += T / 2
    origin.renew()
    assert renewed == [[101, 102], [102]]


def test_upstream_roots_of_done_messages_are_not_renewed(clock: SimpleNamespace, renewed: list[list[int]]) -> None:
    """The run goes on until its last emission has ended, which may be long after its last message."""
    origin = upstream()
    origin.done(np.array([1, 2]), spout())
    clock.now += T
    origin.renew()
    assert renewed == []


def test_upstream_roots_ack_if_done_and_fail_if_dead_letter() -> None:
    origin = upstream()
    origin.done(np.array([1, 2]), spout(2))
    assert settle(origin._acker) == {101: "ack", 102: "failed"}
