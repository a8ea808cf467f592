"""A primary that becomes a replica, or dies: clients find the new one by themselves, and nothing is lost."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import redis

from acker_redis import (
    Acker,
    AckerConfig,
    AuthenticationError,
    BadConfigError,
    ConnectionLostError,
    ServerRefusesWritesError,
    Spout,
    run_spout,
)
from acker_redis.client import client
from acker_redis.spout.in_flight import Emission
from acker_redis.testing import wait_until
from acker_redis.testing.server import Server
from tests.support.rounds import full_round, take
from tests.support.servers import REAL_KINDS, wait_for_replica

Pair = tuple[Server, Server]
QUICK_REPLICATION = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")


@pytest.fixture
def pair(start_server, plain) -> Callable[..., Pair]:
    """A primary and its replica, in step."""

    def start(kind: str = "valkey", *options: str) -> Pair:
        primary = start_server(*QUICK_REPLICATION, *options, kind=kind)
        replica = start_server(*QUICK_REPLICATION, *options, kind=kind)
        login = {"password": "s3cret"} if "--requirepass" in options else {}
        raw = plain(replica.url, **login)
        raw.replicaof("127.0.0.1", str(primary.port))
        wait_until(lambda: raw.info("replication")["master_link_status"] == "up", "the replica is in step")
        return primary, replica

    return start


def fail_over(primary: Any, replica: Any) -> None:
    """The graceful way: the primary waits for its replica, and they change places; connections stay open."""
    primary.execute_command("FAILOVER")
    wait_until(lambda: replica.role()[0] == b"master", "the replica was promoted")
    wait_until(lambda: primary.role()[0] == b"slave", "the primary was demoted")


def test_client_leaves_a_demoted_primary(pair, plain, start_proxy, open_acker, kind) -> None:
    old, new = pair(kind)
    proxy = start_proxy(old)
    acker: Acker = open_acker(proxy.url, shards=2)
    full_round(acker)
    acker.init_many([1_001, 1_002], [5, 5], 0)
    proxy.lead_to(new.port)
    fail_over(plain(old.url), plain(new.url))
    acker.ack(1_001, 5)
    acker.admin.rotate(force=True)
    assert acker.init(1_003, 0, 0)
    assert {outcome.root for outcome in take(acker, 2)} == {1_001, 1_003}
    assert plain(old.url).role()[0] == b"slave"


def test_blocking_poll_continues_after_its_primary_is_demoted(pair, plain, start_proxy, open_acker) -> None:
    old, new = pair()
    proxy = start_proxy(old)
    acker: Acker = open_acker(proxy.url)
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.extend(one.root for one in acker.poll(block_ms=120_000)))
    waiting.start()
    wait_until(lambda: plain(old.url).info("clients")["blocked_clients"] == 1, "the poll waits")
    proxy.lead_to(new.port)
    fail_over(plain(old.url), plain(new.url))
    open_acker(new.url).init(7, 0, 0)
    waiting.join(timeout=240)
    assert found == [7]


def test_run_and_rotator_continue_on_the_new_primary(pair, plain, start_proxy, open_acker, start_process) -> None:
    old, new = pair()
    proxy = start_proxy(old)
    settings = {"shards": 2, "num_buckets": 2, "message_timeout_secs": 0.3}
    acker: Acker = open_acker(proxy.url, **settings)
    rotator = start_process("rotator", "--redis", proxy.url, "--app", "test")
    wait_until(lambda: "rotating" in rotator.log(), "the rotator works")
    spout = Spout(acker, "run")
    spout.add(np.arange(100))
    demoted: list[int] = []

    def emit(emission: Emission) -> None:
        if not demoted:
            demoted.append(emission.number)
            proxy.lead_to(new.port)
            fail_over(plain(old.url), plain(new.url))
        vals = np.zeros(len(emission.roots), np.int64)  # done at once: on a busy machine each could time out otherwise
        if not emission.number:
            vals[50:] = 7  # these time out, if somebody rotates
        acker.init_many(emission.roots, vals, 0)

    counts = run_spout(spout, emit)
    assert (counts.acked, counts.timed_out, counts.dead_lettered) == (100, 50, 0)
    assert rotator.log().count("waiting for the server") <= 2


def knows_replica(port: int, **login: Any) -> bool:
    with redis.Redis(port=port, **login) as sentinel:
        return len(sentinel.sentinel_slaves("service")) == 1


def test_sentinel_failover_under_load_loses_no_message(pair, plain, start_sentinel, start_process) -> None:
    """SIGKILL of the primary while roots come and go."""
    primary, replica = pair("redis7", "--appendonly", "yes")
    port = start_sentinel(primary, down_after_ms=500)
    wait_until(lambda: knows_replica(port), "the sentinel knows the replica")
    url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/service/0"  # the first of them is not there
    settings = AckerConfig("test", shards=2, num_buckets=2, message_timeout_secs=1)
    rotator = start_process("rotator", "--redis", url, "--app", "test")
    with Acker.connect(url, settings) as acker, Acker.connect(url, settings) as executor:
        wait_until(lambda: "shards=2 tick_ms=" in rotator.log(), "the rotator works")
        wait_for_replica(plain(primary.url))  # the shards are there, too; what follows may get lost
        spout = Spout(acker, "run", max_spout_pending=500)
        spout.add(np.arange(20_000))

        def emit(emission: Emission) -> None:
            executor.init_many(emission.roots, np.full(len(emission.roots), 7), 0)
            executor.ack_many(emission.roots, np.full(len(emission.roots), 7))
            if emission.number == 5:
                os.kill(primary.pid, signal.SIGKILL)

        counts = run_spout(spout, emit)
        assert (counts.acked, counts.dead_lettered) == (20_000, 0)
    with redis.Redis(port=port) as sentinel:
        assert sentinel.sentinel_get_master_addr_by_name("service")[1] == replica.port
    assert rotator.popen.poll() is None


def test_sentinel_and_server_passwords_are_checked_separately(pair, start_sentinel, monkeypatch) -> None:
    primary, _ = pair("redis7", "--requirepass", "s3cret", "--masterauth", "s3cret")
    port = start_sentinel(primary, "requirepass watch", "sentinel auth-pass service s3cret")
    place = f"127.0.0.1:{port}/service"
    with Acker.connect(f"redis+sentinel://:s3cret@{place}?sentinel_password=watch", AckerConfig("test")) as acker:
        full_round(acker)
    for wrong in (f"redis+sentinel://:s3cret@{place}", f"redis+sentinel://:wrong@{place}?sentinel_password=watch"):
        with monkeypatch.context() as patch, pytest.raises(AuthenticationError) as caught:
            patch.setattr(client.Client, "_start_over", lambda *_: pytest.fail("it tries again"))
            Acker.connect(wrong, AckerConfig("test"))
        assert "s3cret" not in str(caught.value)
    with pytest.raises(ConnectionLostError, match="other"):
        Acker.connect(
            f"redis+sentinel://:s3cret@127.0.0.1:{port}/other?sentinel_password=watch",
            AckerConfig("test"),
            outage_timeout_secs=0,
        )


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://127.0.0.1:26379",
        "redis+sentinel:///service",
        "redis+sentinel://host:port/service",
        "redis+sentinel://127.0.0.1/service/db",
    ],
)
def test_malformed_sentinel_url_error_shows_the_url_form(url) -> None:
    with pytest.raises(BadConfigError, match=r"redis\+sentinel://|which is not a number"):
        Acker.connect(url, AckerConfig("test"))


def test_min_replicas_1_refuses_writes_after_failover_of_a_pair(pair, plain, open_acker) -> None:
    """What `min-replicas-to-write 1` means behind a failover of two nodes: three are needed."""
    primary, replica = pair("redis7", "--min-replicas-to-write", "1", "--min-replicas-max-lag", "10")
    acker: Acker = open_acker(primary.url, outage_timeout_secs=0.2)
    acker.init(1, 1, 0)
    wait_for_replica(plain(primary.url))
    primary.kill()
    plain(replica.url).replicaof("NO", "ONE")
    with pytest.raises(ServerRefusesWritesError, match="Not enough good replicas"):
        open_acker(replica.url, outage_timeout_secs=0.2).ack(1, 1)
    third = REAL_KINDS["redis7"].server(*QUICK_REPLICATION)
    with third:
        plain(third.url).replicaof("127.0.0.1", str(replica.port))
        patient: Acker = open_acker(replica.url, outage_timeout_secs=120)
        patient.ack(1, 1)
        assert [outcome.root for outcome in take(patient, 1)] == [1]
