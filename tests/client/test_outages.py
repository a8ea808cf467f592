"""A server that is full, or held by another client's script: waited for, by calls and by runs."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import redis

from acker_redis import Acker, ServerBusyError, ServerOutOfMemoryError, Spout, run_spout
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.retry import RetryPolicy
from acker_redis.testing import wait_until

FOR_EVER = "while true do end"


@pytest.fixture
def occupy(plain) -> Iterator[Callable[[str], None]]:
    """Hold a server with a script of somebody else's, until it is ended with SCRIPT KILL."""
    threads: list[threading.Thread] = []

    def start(url: str) -> None:
        raw = plain(url, socket_timeout=60)
        raw.config_set("lua-time-limit", "10")  # after it the server answers others with BUSY
        neighbour = plain(url, socket_timeout=60)

        def run() -> None:
            with pytest.raises(redis.ResponseError):
                neighbour.eval(FOR_EVER, 0)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        wait_until(lambda: is_busy(raw), "the server is busy")

    yield start
    for thread in threads:
        thread.join(timeout=60)


def is_busy(raw: Any) -> bool:
    try:
        raw.ping()
    except redis.ResponseError as exc:
        return str(exc).startswith("BUSY")
    return False


def end_script(raw: Any) -> None:
    raw.execute_command("SCRIPT", "KILL")
    wait_until(lambda: not is_busy(raw), "the script has ended")  # the server answers before


def test_call_waits_for_a_busy_server(start_server, open_acker, plain, occupy, kind) -> None:
    server = start_server(kind=kind)
    acker: Acker = open_acker(server.url, shards=2, outage_timeout_secs=60)
    acker.init_many([1, 2], [5, 5], 0)
    raw = plain(server.url)
    occupy(server.url)
    ended = threading.Timer(0.5, end_script, [raw])
    ended.start()
    assert acker.ack_many([1, 2], [5, 5], idempotency_key="acks").applied == 2
    ended.join()
    assert len(acker.poll()) == 2


def test_call_after_outage_timeout_reports_a_busy_server(start_server, open_acker, plain, occupy, kind) -> None:
    server = start_server(kind=kind)
    acker: Acker = open_acker(server.url, outage_timeout_secs=0.1)
    acker.init(1, 5, 0)
    raw = plain(server.url)
    occupy(server.url)
    try:
        with pytest.raises(ServerBusyError, match=r"Nothing was changed\. .*SCRIPT KILL"):
            acker.ack(1, 5)
    finally:
        end_script(raw)
    acker.ack(1, 5)
    assert len(acker.poll()) == 1


def test_run_waits_for_a_busy_server(start_server, open_acker, plain, occupy, caplog) -> None:
    server = start_server()
    acker: Acker = open_acker(server.url, shards=2, outage_timeout_secs=0.2)
    raw = plain(server.url)
    spout = Spout(acker, "run")
    spout.add(np.arange(50))
    ending: list[threading.Thread] = []

    def end_once_it_waits() -> None:
        try:
            wait_until(lambda: "waiting for the server" in caplog.text, "the run says that it waits")
        finally:
            end_script(raw)

    def emit(emission: Emission) -> None:
        if not ending:
            occupy(server.url)
            ending.append(threading.Thread(target=end_once_it_waits))
            ending[0].start()
        acker.init_many(emission.roots, np.zeros(len(emission.roots), np.int64), 0)

    counts = run_spout(spout, emit)
    ending[0].join()
    assert (counts.acked, counts.dead_lettered) == (50, 0)
    assert "is blocked by another client's script" in caplog.text


def test_run_waits_for_a_full_server_without_counting_attempts(start_server, open_acker, plain, caplog) -> None:
    server = start_server()
    acker: Acker = open_acker(server.url, shards=2)
    raw = plain(server.url)
    spout = Spout(acker, "run", retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    spout.add(np.arange(50))
    refused: list[int] = []

    def emit(emission: Emission) -> None:
        if not refused:
            raw.config_set("maxmemory", "1")
        try:
            acker.init_many(emission.roots, np.zeros(len(emission.roots), np.int64), 0)
        except ServerOutOfMemoryError:
            refused.append(emission.number)
            if len(refused) == 4:  # three ended a run once
                raw.config_set("maxmemory", "0")
            raise

    counts = run_spout(spout, emit)
    assert (len(refused), counts.acked, counts.dead_lettered) == (4, 50, 0)
    assert caplog.text.count("waiting for the server") == 1
