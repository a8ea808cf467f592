"""One spout per lane: two runs on one would take each other's outcomes."""

from typing import Any

import numpy as np
import pytest

from acker_redis import Acker, AckerError, BadConfigError, Spout, run_spout
from acker_redis.acker import app_of
from acker_redis.store import lane_leases
from acker_redis.testing import wait_until


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_leases, "LEASE_SECS", 2.0)
    monkeypatch.setattr(lane_leases, "RENEW_SECS", 0.2)


def test_second_run_on_a_lane_is_refused_at_start(source: Any, connect: Any) -> None:
    first = app_of(connect(lanes=2)).lease(lane=0, run_id="first")
    first.acquire()
    second = Spout(connect(lanes=2), "second")
    second.add(np.array([1]))
    with pytest.raises(BadConfigError, match=r"Lane 0 .* in use by another run .*first .*its own spout_id"):
        run_spout(second, lambda emission: None)
    assert second.counts.emitted == 0
    beside = app_of(connect(lanes=2)).lease(lane=1, run_id="beside")
    beside.acquire()
    for lease in first, beside:
        lease.release()
        lease.release()


def test_lease_is_held_while_its_process_lives(source: Any, connect: Any) -> None:
    lease = app_of(connect()).lease(lane=0, run_id="first")
    lease.acquire()
    for _ in range(2):
        with pytest.raises(BadConfigError, match="in use"):  # each waits longer than a lease lasts
            app_of(connect()).lease(lane=0, run_id="second").acquire()
    lease.release()
    second = app_of(connect()).lease(lane=0, run_id="second")
    second.acquire()
    second.release()


def test_expired_lease_is_taken_over_and_its_old_holder_ends(source: Any, connect: Any) -> None:
    still: Acker = connect()
    lease = app_of(still).lease(lane=0, run_id="still")
    lease.renew_secs = 4  # says nothing for longer than its lease lasts
    lease.acquire()
    successor = app_of(connect()).lease(lane=0, run_id="successor")
    successor.acquire()

    def has_ended() -> bool:
        try:
            lease.acquire()
        except AckerError as exc:
            return "taken over by another run (successor" in str(exc)
        return False

    wait_until(has_ended, "it learns of its successor")
    lease.release()
    successor.acquire()
    successor.release()


def test_lease_deleted_on_the_server_is_renewed(source: Any, connect: Any, raw: Any) -> None:
    lease = app_of(connect()).lease(lane=0, run_id="first")
    lease.acquire()
    (key,) = raw.keys("*:lane:0")
    raw.delete(key)
    wait_until(lambda: bool(raw.exists(key)), "it is renewed")
    lease.release()
    assert not raw.exists(key)
