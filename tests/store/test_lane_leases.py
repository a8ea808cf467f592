"""One spout per lane: two runs on one would take each other's outcomes."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from acker_redis import Acker, AckerError, BadConfigError, Spout, run_spout
from acker_redis.acker import app_of
from acker_redis.store import lane_leases
from acker_redis.testing import wait_until


def leases(monkeypatch: pytest.MonkeyPatch, lease_secs: float, renew_secs: float = 0.1) -> None:
    """Set how long leases last that are made or renewed from now on, and how often new ones are renewed."""
    monkeypatch.setattr(lane_leases, "LEASE_SECS", lease_secs)
    monkeypatch.setattr(lane_leases, "RENEW_SECS", renew_secs)


def test_second_run_on_a_lane_is_refused_at_start(source: Any, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    leases(monkeypatch, 600.0, 600.0)
    first = app_of(connect(lanes=2)).lease(lane=0, run_id="first")
    first.acquire()
    leases(monkeypatch, 0.3)  # for which the second one waits
    second = Spout(connect(lanes=2), "second")
    second.add(np.array([1]))
    with pytest.raises(BadConfigError, match=r"Lane 0 .* in use by another run .*first .*its own spout_id") as refused:
        run_spout(second, lambda emission: None)
    assert len(refused.traceback) == 2 and refused.value.__suppress_context__, "of the caller, and of what it called"
    assert second.counts.emitted == 0
    beside = app_of(connect(lanes=2)).lease(lane=1, run_id="beside")
    beside.acquire()
    for lease in first, beside:
        lease.release()
        lease.release()


def test_lease_is_held_while_its_process_lives(
    source: Any, connect: Any, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases(monkeypatch, 600.0)
    lease = app_of(connect()).lease(lane=0, run_id="first")
    lease.acquire()
    (key,) = raw.keys("*:lane:0")
    left_ms, renewals = raw.pttl(key), 0

    def is_renewed() -> bool:
        nonlocal left_ms, renewals
        before_ms, left_ms = left_ms, raw.pttl(key)
        renewals += left_ms > before_ms
        return bool(renewals >= 3)

    wait_until(is_renewed, "it has been renewed three times")
    assert raw.get(key).startswith(b"first ")
    assert left_ms > 500_000
    lease.release()
    second = app_of(connect()).lease(lane=0, run_id="second")
    second.acquire()
    second.release()


def test_expired_lease_is_taken_over_and_its_old_holder_ends(
    source: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases(monkeypatch, 0.5, 600.0)
    still: Acker = connect()
    lease = app_of(still).lease(lane=0, run_id="still")
    lease.acquire()  # and says nothing for longer than its lease lasts
    leases(monkeypatch, 600.0)
    successor = app_of(connect()).lease(lane=0, run_id="successor")
    successor.acquire()
    lease.renew_secs = 0.0
    lease._renew()  # it learns of its successor
    with pytest.raises(AckerError, match=r"taken over by another run \(successor"):
        lease.acquire()
    lease.release()
    successor.acquire()
    successor.release()


@pytest.mark.parametrize("named", [True, False], ids=["the lane", "any lane"])
def test_process_that_stalls_asks_once_more_for_a_lane_whose_lease_has_expired(
    source: Any, connect: Any, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """The reply is from before its stall, and the lease has expired since."""
    holder = app_of(connect()).lease(lane=0, run_id="first")
    holder.acquire()
    now, ask = [1000.0], lane_leases.Lease._try_to_hold

    def try_to_hold(lease: lane_leases.Lease) -> bytes:
        found = ask(lease)
        if found != lease._holder and now[0] == 1000.0:
            holder.release()
            now[0] += 60
        return found

    monkeypatch.setattr(lane_leases, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda secs: None))
    monkeypatch.setattr(lane_leases.Lease, "_try_to_hold", try_to_hold)
    app = app_of(connect())
    if named:
        second = app.lease(lane=0, run_id="second")
        second.acquire()
    else:
        _, second = lane_leases.hold_free_lane(app.client, "test", 1, "second")
    assert second.holds()
    second.release()


def test_lease_deleted_on_the_server_is_renewed(source: Any, connect: Any, raw: Any) -> None:
    lease = app_of(connect()).lease(lane=0, run_id="first")
    lease.acquire()
    (key,) = raw.keys("*:lane:0")
    raw.delete(key)
    wait_until(lambda: bool(raw.exists(key)), "it is renewed")
    lease.release()
    assert not raw.exists(key)
