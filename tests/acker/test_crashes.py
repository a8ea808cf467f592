"""Servers and connections that go away between and in the middle of batches: sending again is exact."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from acker_redis import Acker, Applied, ConnectionLostError, LedgerLostError
from acker_redis.client import client
from acker_redis.testing import wait_until
from tests.support.rounds import exact_values, expire_all, take, warm_up

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
ROOTS = np.arange(1, 20_001)
VALS = ROOTS * 7919
CUTS = (0, 1, 100, 250)
"""Reply bytes that pass before a cut; a call is answered with 15."""


@pytest.fixture
def small_windows(monkeypatch) -> Iterator[None]:
    """Several pipelines per batch, so that a batch is cut between and inside them."""
    monkeypatch.setattr(client, "WINDOW_BYTES", 10 * 16_000)
    yield


def test_server_restart_between_batches_keeps_values_exact(start_server, open_acker, kind) -> None:
    server = start_server(*DURABLE, kind=kind)
    acker: Acker = open_acker(server.url, shards=2)
    acker.init_many(ROOTS, VALS, 0)
    server.kill()
    server.start()
    acker.ack_many(ROOTS, ROOTS)
    exact_values(acker, ROOTS, VALS ^ ROOTS)
    acker.ack_many(ROOTS, VALS ^ ROOTS)
    take(acker, len(ROOTS))


@pytest.mark.parametrize("after_bytes", CUTS)
def test_connection_cut_before_the_reply_keeps_values_exact(start_server, start_proxy, open_acker, after_bytes) -> None:
    server = start_server()
    proxy = start_proxy(server)
    acker: Acker = open_acker(proxy.url, shards=2)
    warm_up(acker)
    proxy.cut_replies(after_bytes)
    assert acker.init_many(ROOTS, VALS, 0) == Applied(len(ROOTS), False)
    proxy.cut_replies(after_bytes)
    assert acker.ack_many(ROOTS, ROOTS) == Applied(len(ROOTS), False)
    assert proxy.cuts == 2
    exact_values(acker, ROOTS, VALS ^ ROOTS)
    proxy.cut_replies(after_bytes)
    half = len(ROOTS) // 2
    with acker.batch() as batch:
        batch.ack_many(ROOTS[:half], (VALS ^ ROOTS)[:half])
        batch.fail_many(ROOTS[half:])
    assert proxy.cuts == 3
    outcomes = take(acker, len(ROOTS))
    assert {outcome.root for outcome in outcomes if outcome.kind == "ack"} == set(range(1, half + 1))
    stats = acker.stats()
    assert (stats.acked, stats.failed, stats.pending, stats.unowned) == (half + 1, half + 1, 0, 0)


def test_single_update_with_a_lost_reply_is_applied_once(start_server, start_proxy, open_acker) -> None:
    server = start_server()
    proxy = start_proxy(server)
    acker: Acker = open_acker(proxy.url)
    warm_up(acker)
    proxy.cut_replies()
    assert acker.init(1, 5, 0) is True
    proxy.cut_replies()
    acker.ack(1, 3)
    assert proxy.cuts == 2
    exact_values(acker, [1], [6])
    assert acker.stats().deduplicated == 2


@pytest.mark.parametrize("after_bytes", [0, 100])
@pytest.mark.usefixtures("small_windows")
def test_server_restart_during_a_batch_keeps_values_exact(
    start_server, start_proxy, open_acker, after_bytes, kind
) -> None:
    server = start_server(*DURABLE, kind=kind)
    proxy = start_proxy(server)
    acker: Acker = open_acker(proxy.url, shards=2)
    warm_up(acker)
    restarts = 0

    def restart() -> None:
        nonlocal restarts
        server.kill()
        server.start()
        restarts += 1

    proxy.cut_replies(after_bytes, restart)
    assert acker.init_many(ROOTS, VALS, 0) == Applied(len(ROOTS), False)
    proxy.cut_replies(after_bytes, restart)
    assert acker.ack_many(ROOTS, ROOTS) == Applied(len(ROOTS), False)
    assert restarts == 2
    exact_values(acker, ROOTS, VALS ^ ROOTS)
    proxy.cut_replies(after_bytes, restart)
    acker.ack_many(ROOTS, VALS ^ ROOTS)
    assert restarts == 3
    assert {outcome.kind for outcome in take(acker, len(ROOTS))} == {"ack"}


@pytest.mark.usefixtures("small_windows")
def test_half_sent_batch_is_completed_by_its_idempotency_key(start_server, start_proxy, open_acker) -> None:
    server = start_server(*DURABLE)
    proxy = start_proxy(server)
    acker: Acker = open_acker(proxy.url, shards=2, outage_timeout_secs=1)
    warm_up(acker)
    acker.init_many(ROOTS, VALS, 0)
    proxy.cut_replies(200, server.kill)
    with pytest.raises(ConnectionLostError, match="idempotency key, which applies each update exactly once"):
        acker.ack_many(ROOTS, ROOTS, idempotency_key="partition-7")
    server.start()
    again = acker.ack_many(ROOTS, ROOTS, idempotency_key="partition-7")
    assert again.duplicate
    assert 0 < again.applied < len(ROOTS)
    assert acker.ack_many(ROOTS, ROOTS, idempotency_key="partition-7") == Applied(0, True)
    exact_values(acker, ROOTS, VALS ^ ROOTS)


@pytest.mark.parametrize("max_outcomes", [1, 1000])
def test_outcomes_of_a_lost_poll_reply_come_with_the_same_poll(
    start_server, start_proxy, open_acker, max_outcomes
) -> None:
    server = start_server()
    proxy = start_proxy(server)
    acker: Acker = open_acker(proxy.url, shards=1, message_timeout_secs=3600)
    acker.poll()
    acker.init_many([1, 2], [0, 0], 0)
    acker.init(3, 0, 0)
    proxy.cut_replies(after_bytes=25)  # past the check of the generation: the entries were delivered, to nobody
    first = acker.poll(max_outcomes)
    assert proxy.cuts == 1
    assert first
    acker.confirm(first)
    assert {outcome.root for outcome in [*first, *take(acker, 3 - len(first))]} == {1, 2, 3}


def test_outcomes_of_a_lost_reply_to_a_blocking_poll_come_with_the_same_poll(
    start_server, start_proxy, open_acker, plain
) -> None:
    server = start_server()
    proxy = start_proxy(server)
    acker: Acker = open_acker(proxy.url, shards=1, message_timeout_secs=3600)
    acker.poll()
    with ThreadPoolExecutor(1) as pool:
        polled = pool.submit(acker.poll, block_ms=120_000)
        wait_until(lambda: any("b" in client["flags"] for client in plain(server.url).client_list()), "the poll waits")
        proxy.cut_replies()
        open_acker(server.url, shards=1, message_timeout_secs=3600).init_many([1, 2], [0, 0], 0)
        assert {outcome.root for outcome in polled.result(timeout=240)} == {1, 2}
    assert proxy.cuts == 1


@pytest.mark.usefixtures("small_windows")
def test_script_flush_during_pipelines_keeps_values_exact(start_server, open_acker, plain, kind) -> None:
    server = start_server(kind=kind)
    acker: Acker = open_acker(server.url, shards=2)
    raw = plain(server.url)
    done = threading.Event()

    def flush() -> int:
        flushes = 0
        while not done.is_set():
            raw.script_flush()
            flushes += 1
        return flushes

    with ThreadPoolExecutor(1) as pool:
        flusher = pool.submit(flush)
        try:
            acker.init_many(ROOTS, VALS, 0)
            acker.ack_many(ROOTS, ROOTS)
            exact_values(acker, ROOTS, VALS ^ ROOTS)
            acker.ack_many(ROOTS[:100], (VALS ^ ROOTS)[:100])
            acker.fail_many(ROOTS[100:200])
            acker.reset_timeout_many(ROOTS[200:])
            take(acker, 200)
            assert expire_all(acker) == len(ROOTS) - 200
        finally:
            done.set()
        assert flusher.result() > 10
    stats = acker.stats()
    assert (stats.acked, stats.failed, stats.timed_out, stats.deduplicated) == (100, 100, len(ROOTS) - 200, 0)


def test_restart_without_persistence_raises_ledger_lost(start_server, open_acker, kind) -> None:
    server = start_server(kind=kind)
    acker: Acker = open_acker(server.url, shards=2)
    acker.init(1, 5, 0)
    server.kill()
    server.start()
    with pytest.raises(LedgerLostError, match=r"Call Acker\.reopen\(\)"):
        acker.ack(1, 5)
    assert acker.reopen() == [0, 1]
    acker.init(2, 0, 0)
    assert [outcome.root for outcome in take(acker, 1)] == [2]
