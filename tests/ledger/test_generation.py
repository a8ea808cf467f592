"""Asking for an app by another URL: an outage is waited for, and another server is told from it."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from acker_redis import Acker, AckerConfig, BadConfigError, ConnectionLostError, LedgerLostError
from acker_redis.acker import app_of
from acker_redis.client.client import Client
from acker_redis.ledger import shards
from acker_redis.ledger.shards import generation_at

CONFIG = AckerConfig(app="test", shards=2)


def test_generation_read_by_another_url_of_the_server_matches(url, connect) -> None:
    acker: Acker = connect(shards=2)
    assert app_of(acker).shards.holds(generation_at(url.replace("127.0.0.1", "localhost"), CONFIG))
    another = generation_at(url.removesuffix("/0") + "/1", CONFIG)
    assert another is None
    assert not app_of(acker).shards.holds(another)


@pytest.mark.parametrize("shard", [0, 1])
def test_check_of_all_shards_finds_one_that_lost_its_data(url, raw, connect, shard: int) -> None:
    acker: Acker = connect(shards=2)
    app_of(acker).shards.check_all()
    raw.delete(app_of(acker).shards.keys[shard].meta)
    with pytest.raises(LedgerLostError, match=f"the first is shard {shard}"):
        app_of(acker).shards.check_all()
    assert acker.reopen() == [shard]
    app_of(acker).shards.check_all()


def test_generation_at_waits_for_a_failover(start_server, start_proxy, open_acker, monkeypatch) -> None:
    server, gone = start_server(), start_server()
    acker: Acker = open_acker(server.url, shards=2)
    proxy = start_proxy(gone)
    gone.kill()
    tried, start_over = Event(), Client._start_over

    def counting(self: Client, exc: Exception) -> None:
        tried.set()
        start_over(self, exc)

    monkeypatch.setattr(Client, "_start_over", counting)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(generation_at, proxy.url, CONFIG)
        assert tried.wait(60)
        proxy.lead_to(server.port)
        assert app_of(acker).shards.holds(asked.result(timeout=60))


def test_generation_at_an_unreachable_server_fails_after_15_s(start_server, monkeypatch) -> None:
    server = start_server()
    server.kill()
    given: list[float] = []

    class Noting(Client):
        def __init__(self, source: str, *, connect_secs: float) -> None:
            given.append(connect_secs)
            super().__init__(source, outage_timeout_secs=0)

    monkeypatch.setattr(shards, "Client", Noting)
    with pytest.raises(ConnectionLostError, match="can't be reached"):
        generation_at(server.url, CONFIG)
    assert given == [15]


def test_generation_at_a_malformed_url_fails_at_once() -> None:
    with pytest.raises(BadConfigError, match="not a Redis URL"):
        generation_at("localhost:6379", CONFIG)
