"""The thread that reads ahead: it doesn't hold up who closes, and a forked process has its own."""

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from acker_redis import Acker, ClosedError
from acker_redis.acker import app_of
from acker_redis.client import connection
from acker_redis.testing import wait_until
from tests.support.outcomes import roots_of, time_out

READER = "acker-read"


def test_close_does_not_wait_for_a_silent_server(start_server, open_acker, monkeypatch) -> None:
    server = start_server()
    monkeypatch.setattr(connection, "SOCKET_TIMEOUT_SECS", 600.0)
    acker: Acker = open_acker(server.url, shards=1)
    time_out(acker, np.arange(300))
    pipeline, stopped = app_of(acker).client.pipeline_each, threading.Event()

    def falling_silent(commands: Any, **options: Any) -> Any:
        if threading.current_thread().name.startswith(READER):
            os.kill(server.pid, signal.SIGSTOP)
            stopped.set()
        return pipeline(commands, **options)

    monkeypatch.setattr(app_of(acker).client, "pipeline_each", falling_silent)
    try:
        assert len(roots_of(acker.poll_batches(max_outcomes=100))) == 100
        assert stopped.wait(120)
        acker.close()  # while the server says nothing
        for thread in threading.enumerate():
            if thread.name.startswith(READER):
                thread.join(60)
                assert not thread.is_alive()
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_outcomes_of_a_lost_read_ahead_reply_come_with_the_next_polls(
    start_server, start_proxy, open_acker, monkeypatch
) -> None:
    server = start_server()
    proxy = start_proxy(server)
    acker: Acker = open_acker(proxy.url, shards=1, message_timeout_secs=3600)
    acker.init_many(np.arange(2), [0, 0], 0)
    acker.init_many(np.arange(2, 4), [0, 0], 0)
    pipeline = app_of(acker).client.pipeline_each

    def cutting(commands: Any, **options: Any) -> Any:
        if threading.current_thread().name.startswith(READER) and not proxy.cuts:
            proxy.cut_replies(after_bytes=25)  # past the check of the generation
        return pipeline(commands, **options)

    monkeypatch.setattr(app_of(acker).client, "pipeline_each", cutting)
    taken: list[int] = []

    def polled() -> bool:
        batches = acker.poll_batches(max_outcomes=2)
        acker.confirm_batches(batches)
        taken.extend(roots_of(batches))
        return len(taken) >= 4

    wait_until(polled, "all outcomes")
    assert proxy.cuts == 1
    assert sorted(taken) == [0, 1, 2, 3]


def test_next_poll_gets_outcomes_newer_than_an_empty_read_ahead(source, connect) -> None:
    acker: Acker = connect(shards=1)
    time_out(acker, np.arange(100))
    assert len(roots_of(acker.poll_batches(max_outcomes=100))) == 100
    for view in app_of(acker).delivery._views.values():
        assert view.consumer._ahead is not None
        view.consumer.wait()  # nothing was there
    time_out(acker, np.arange(100, 150))
    assert sorted(roots_of(acker.poll_batches(max_outcomes=100))) == list(range(100, 150))


def test_every_call_after_close_raises_closed_error(source, connect) -> None:
    acker: Acker = connect(shards=1)
    time_out(acker, np.arange(300))
    packed = acker.poll_batches(max_outcomes=100)
    acker.close()
    acker.close()
    for call in (
        acker.poll,
        lambda: acker.poll_batches(max_outcomes=100),
        lambda: acker.confirm_batches(packed),
        lambda: acker.ack(1, 1),
        acker.stats,
        acker.reopen,
    ):
        with pytest.raises(ClosedError, match="Connect again"):
            call()


def test_close_ends_a_blocking_poll_in_another_thread(real_url, raw, connect) -> None:
    acker: Acker = connect(shards=1)
    met: list[BaseException] = []

    def poll() -> None:
        try:
            while True:
                acker.poll(block_ms=60_000)
        except ClosedError as exc:
            met.append(exc)

    waiting = threading.Thread(target=poll)
    waiting.start()
    wait_until(lambda: raw.info("clients")["blocked_clients"] == 1, "the poll waits")
    acker.close()
    waiting.join(120)
    assert not waiting.is_alive()
    assert len(met) == 1


FORKS = """
import os, sys
import numpy as np
import redis
from acker_redis import Acker
from acker_redis.testing import wait_until
from tests.support.outcomes import roots_of, streams, time_out

url = sys.argv[1]
raw = redis.Redis.from_url(url)
with Acker.connect(url, app="test", shards=1) as acker:
    time_out(acker, np.arange(600))
    assert len(roots_of(acker.poll_batches(max_outcomes=100))) == 100
    ahead = lambda: sum(raw.xinfo_groups(key)[0]["pending"] for key in streams(raw))
    wait_until(lambda: ahead() == 200, "what is read ahead")
    child = os.fork()
    if child == 0:
        taken = []
        while packed := acker.poll_batches(max_outcomes=100):
            taken += roots_of(packed)
            acker.confirm_batches(packed)
        acker.close()
        os._exit(0 if sorted(taken) == list(range(600)) else 3)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    print(len(roots_of(acker.poll_batches(max_outcomes=100))))
"""


def test_forked_process_reads_ahead_independently(url, raw) -> None:
    """It begins like any new process of the consumer: with what was taken and not confirmed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS, url],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) == 100  # the parent has what it read ahead before, as at least once allows
