"""lua/scripts/hold_lane.lua: leases of lanes."""

from typing import Any

from acker_redis.client import scripts

RUNS, LEASE = "acker:{lab}:runs", "acker:{lab}:lane:3"
TTL_MS = 5000


def hold(client: Any, holder: bytes) -> bytes:
    ((held,),) = client.run([scripts.load("hold_lane").call({"runs": RUNS, "lease": LEASE}, 3, holder, TTL_MS)])
    return bytes(held)


def test_free_lane_is_acquired_and_its_run_noted(client, raw: Any) -> None:
    assert hold(client, b"one host:1") == b"one host:1"
    assert raw.get(LEASE) == b"one host:1"
    assert raw.hgetall(RUNS) == {b"3": b"one host:1"}
    assert 0 < raw.pttl(LEASE) <= TTL_MS


def test_lane_of_another_is_left_alone(client, raw: Any) -> None:
    raw.hset(RUNS, "3", "one host:1")
    raw.set(LEASE, "one host:1", px=60_000)
    assert hold(client, b"two host:2") == b"one host:1"
    assert raw.hgetall(RUNS) == {b"3": b"one host:1"}
    assert raw.pttl(LEASE) > TTL_MS, "the lease of another isn't renewed"


def test_own_lease_is_renewed(client, raw: Any) -> None:
    raw.set(LEASE, "one host:1", px=60_000)
    assert hold(client, b"one host:1") == b"one host:1"
    assert 0 < raw.pttl(LEASE) <= TTL_MS
    assert not raw.exists(RUNS), "a run notes itself once"
