"""Connecting: wrong addresses and passwords, servers that refuse, clients given, closing."""

import gc
import time
import traceback
import warnings
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from acker_redis import (
    Acker,
    AckerConfig,
    AuthenticationError,
    BadConfigError,
    ClosedError,
    ConnectionLostError,
    EvictionPolicyWarning,
    ServerRefusesWritesError,
    ServerVersionError,
    SettingsConflictError,
)
from acker_redis.client import client
from acker_redis.client.error_mapping import translate
from acker_redis.testing import wait_until
from tests.support.servers import connections

CONFIG = AckerConfig(app="test")


@pytest.mark.parametrize(
    "url",
    [
        "localhost:6379",
        "http://127.0.0.1:6379",
        "redis://127.0.0.1:port/0",
        "redis://127.0.0.1:99999/0",
        "redis://[::1/0",
        "",
    ],
)
def test_malformed_url_error_shows_the_url_form(url) -> None:
    with pytest.raises(BadConfigError, match=r"Use redis://\[\[user\]:password@\]host\[:port\]\[/db\]"):
        Acker.connect(url, CONFIG)


@pytest.mark.parametrize("number", [99, 2**31 - 1])
def test_database_that_the_server_lacks_is_named(start_server, number: int) -> None:
    url = f"redis://127.0.0.1:{start_server().port}/{number}"
    with pytest.raises(BadConfigError, match=r"has no database of this number .*Omit the number at the end of the URL"):
        Acker.connect(url, CONFIG)


@pytest.mark.parametrize(
    "error",
    [
        redis.exceptions.RedisClusterException("All slots are not covered after query all startup_nodes. 100 of 16384"),
        redis.exceptions.ClusterDownError("Hash slot not served"),
        redis.exceptions.ResponseError("CLUSTERDOWN The cluster is down"),
    ],
)
def test_cluster_with_a_missing_slot_is_named(error: Exception) -> None:
    found = translate(error, "node:6379")
    assert isinstance(found, ConnectionLostError)
    assert str(found).startswith("The cluster at node:6379 doesn't serve all hash slots (")
    assert "redis-cli --cluster check" in str(found) and "the URL" not in str(found)


def test_connection_errors_do_not_show_the_password(start_server, monkeypatch) -> None:
    monkeypatch.setattr(client, "CONNECT_SECS", 0.0)
    server = start_server()
    server.kill()
    for url in (
        f"redis://:s3cret@127.0.0.1:{server.port}/0",
        f"redis://user:s3cret@127.0.0.1:{server.port}",
        f"redis://127.0.0.1:{server.port}/0?password=s3cret",
        "redis://user:s3cret@127.0.0.1:port/0",
        "redis://user:a/s3cret@b#s3cret@127.0.0.1:1/0",
    ):
        with pytest.raises((ConnectionLostError, BadConfigError)) as caught:
            Acker.connect(url, CONFIG)
        assert "s3cret" not in "".join(traceback.format_exception(caught.value, chain=True)).replace(url, "")
        assert "127.0.0.1" in str(caught.value)


def test_connect_to_a_stopped_server_fails_after_some_seconds(start_server) -> None:
    server = start_server()
    server.kill()
    began = time.monotonic()
    with pytest.raises(ConnectionLostError, match="Nothing was sent"):
        Acker.connect(server.url, CONFIG)
    assert time.monotonic() - began > 1


def test_connect_to_an_unknown_host_names_it(monkeypatch) -> None:
    monkeypatch.setattr(client, "CONNECT_SECS", 0.0)
    with pytest.raises(ConnectionLostError, match=r"redis://no-such-host\.invalid"):
        Acker.connect("redis://no-such-host.invalid:6379/0", CONFIG)


@pytest.mark.parametrize("login", ["", ":wrong@", "nobody:wrong@"])
def test_wrong_login_fails_at_once(start_server, kind, login, monkeypatch) -> None:
    monkeypatch.setattr(client.Client, "_start_over", lambda *_: pytest.fail("it tries again"))
    server = start_server("--requirepass", "right", kind=kind)
    with pytest.raises(AuthenticationError, match="Check the user name and password"):
        Acker.connect(f"redis://{login}127.0.0.1:{server.port}/0", CONFIG)
    with Acker.connect(f"redis://:right@127.0.0.1:{server.port}/0", CONFIG) as acker:
        assert acker.init(1, 1, 0)


def test_wrong_login_of_a_provided_client_fails(start_server) -> None:
    server = start_server("--requirepass", "right")
    given = redis.Redis(port=server.port, password="wrong", retry=Retry(NoBackoff(), 0))
    with pytest.raises(AuthenticationError, match="Check the user name and password"):
        Acker.connect(given, CONFIG)
    given.close()


@pytest.mark.parametrize("source", [None, b"redis://:pa55word@127.0.0.1:6379/0", 6379])
def test_what_is_neither_a_url_nor_a_client_is_refused(source) -> None:
    with pytest.raises(
        BadConfigError, match=r"neither a URL nor a redis-py client.*a variable, check that it is set"
    ) as raised:
        Acker.connect(source, CONFIG)
    assert "pa55word" not in str(raised.value)


def test_provided_client_decoding_responses_is_refused(url, plain) -> None:
    with pytest.raises(BadConfigError, match="decode_responses=False"):
        Acker.connect(plain(url, decode_responses=True), CONFIG)


def test_url_with_decode_responses_is_refused(url) -> None:
    with pytest.raises(BadConfigError, match="decode_responses=False"):
        Acker.connect(f"{url}?decode_responses=True", CONFIG)


def test_server_with_an_eviction_policy_warns(start_server, kind) -> None:
    server = start_server("--maxmemory-policy", "allkeys-lru", kind=kind)
    with pytest.warns(EvictionPolicyWarning, match="Set maxmemory-policy to noeviction") as caught:
        Acker.connect(server.url, CONFIG).close()
    assert caught[0].filename == __file__


def test_server_older_than_6_2_is_refused(url, plain, monkeypatch) -> None:
    given = plain(url)
    monkeypatch.setattr(given, "info", lambda *_: {"redis_version": "6.0.16"})
    with pytest.raises(ServerVersionError, match=r"6\.0\.16\. Use Redis 6\.2 or newer"):
        Acker.connect(given, CONFIG)


def test_read_only_replica_is_refused(start_server, open_acker, plain, kind) -> None:
    primary = start_server("--repl-diskless-sync-delay", "0", kind=kind)
    acker = open_acker(primary.url)
    acker.init(1, 1, 0)
    replica = start_server("--replicaof", "127.0.0.1", str(primary.port), kind=kind)
    raw = plain(replica.url)
    wait_until(lambda: raw.info("replication")["master_link_status"] == "up", "the replica is in step")
    with pytest.raises(ServerRefusesWritesError, match="Connect to the primary"):
        Acker.connect(replica.url, CONFIG, outage_timeout_secs=0.1)

    raw.replicaof("NO", "ONE")
    promoted = open_acker(replica.url, outage_timeout_secs=0.1)
    promoted.ack(1, 1)
    raw.replicaof("127.0.0.1", str(primary.port))
    call: Any
    for call in (
        lambda: promoted.ack(2, 1),
        lambda: promoted.admin.rotate(force=True),
        lambda: promoted.reset_timeout(2),
        lambda: promoted.init(3, 1, 0),
        lambda: promoted.poll(),
    ):
        with pytest.raises(ServerRefusesWritesError, match="Connect to the primary"):
            call()


def test_client_clock_set_back_changes_no_age_or_tick(source, connect, monkeypatch) -> None:
    acker = connect(num_buckets=2)
    acker.init_many([1, 2], [5, 5], 0)
    monkeypatch.setattr(time, "time", lambda: 1_000.0)
    monkeypatch.setattr(time, "time_ns", lambda: 1_000 * 10**9)
    acker.ack(1, 5)
    held = acker.inspect(2)
    assert 0 <= held.age_ms < 60_000
    stats = acker.stats()
    assert 0 <= stats.last_rotation_ms < 60_000
    assert 0 <= stats.oldest_age_ms < 60_000
    assert acker.admin.rotate().ticked == 0
    outcomes = acker.poll()
    assert [(outcome.root, outcome.age_ms < 60_000) for outcome in outcomes] == [(1, True)]
    assert acker.confirm(outcomes) == 1


def test_close_ends_own_connections_and_keeps_a_provided_client(url, raw, plain) -> None:
    before = connections(raw)
    with Acker.connect(url, CONFIG) as acker:
        acker.init(1, 1, 0)
        assert connections(raw) - before
    wait_until(lambda: connections(raw) <= before, "the acker's connections are closed")
    acker.close()

    given = plain(url)
    with Acker.connect(given, CONFIG) as acker:
        acker.init(2, 1, 0)
    assert given.ping()
    given.close()
    wait_until(lambda: connections(raw) <= before, "the given client's connections are closed")


@pytest.mark.parametrize("error", [TypeError("no fileno()"), AttributeError("no readline"), ValueError("closed")])
def test_call_whose_socket_close_takes_away_raises_closed_error(source, connect, monkeypatch, error) -> None:
    """Another thread closes the acker. What redis-py meets then depends on where it is, and is no error of the caller's."""
    acker = connect()
    given = acker._app.client.redis

    def meets(*_: object, **__: object) -> None:
        acker.close()
        raise error

    monkeypatch.setattr(type(given), "parse_response", meets)
    with pytest.raises(ClosedError, match="Connect again") as raised:
        acker.stats()
    assert raised.value.__cause__ is error
    with pytest.raises(ClosedError, match="Connect again"):
        acker.stats()


def test_mistake_of_an_open_client_is_raised_as_it_is(source, connect, monkeypatch) -> None:
    acker = connect()

    def meets(*_: object, **__: object) -> None:
        raise TypeError("a mistake")

    with monkeypatch.context() as broken, pytest.raises(TypeError, match="a mistake"):
        broken.setattr(type(acker._app.client.redis), "parse_response", meets)
        acker.stats()
    assert acker.stats().pending == 0


def test_failed_connect_leaves_no_connection(url, raw, connect) -> None:
    connect(shards=2)
    before = connections(raw)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for source, shards in ((url, 3), (f"{url}?decode_responses=True", 2)):
            with pytest.raises((BadConfigError, SettingsConflictError)):
                Acker.connect(source, AckerConfig(app="test", shards=shards))
        gc.collect()
    wait_until(lambda: connections(raw) <= before, "no connection is left")


def test_url_database_number_is_used(url, plain, open_acker) -> None:
    assert urlsplit(url).path == "/0"
    open_acker(url.removesuffix("/0") + "/1").init(1, 1, 0)
    assert plain(url).dbsize() == 0
