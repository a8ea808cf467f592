"""Fixtures every test may use: servers, clients, ackers."""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from subprocess import Popen
from typing import Any

import fakeredis
import pytest
import redis

from acker_redis import Acker, AckerConfig
from acker_redis.testing.server import Server
from tests.support import java, scheduling, servers, skips


def pytest_configure() -> None:
    """Threads for algebra that nobody does cost each process that imports numpy a tenth of a second."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # `make test &`; what it starts can't be interrupted then
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # nothing of what is collected now is garbage


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests get the marks of their kind, and files that take long go first."""
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        if used & SERVERS:
            item.add_marker("server")
        if "_sessions" in used:
            item.add_marker("spark")
    items.sort(key=lambda item: scheduling.place(item.nodeid.partition("::")[0]))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> scheduling.ByKind:
    """See there."""
    return scheduling.ByKind(config, log)


pytest_plugins = ["tests.support.fixtures", "tests.support.spark.fixtures"]

SERVERS = {"source", "real_url", "url", "kind", "start_server"}
"""Fixtures of which a test that uses one needs a server."""

MANY = 20
"""Tests on Spark for which an archive of classes pays."""

_making = pytest.StashKey[Popen[bytes] | None]()


def pytest_runtest_setup() -> None:
    """For all JVMs that the tests start, themselves or in programs of their own."""
    java.use()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of tests are not looked through for garbage; and one process has the archive made, where it is missing."""
    gc.freeze()
    gc.enable()
    wanted = sum(item.get_closest_marker("spark") is not None for item in session.items) > MANY
    one = os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0" and not session.config.getoption("collectonly")
    session.config.stash[_making] = java.begin() if wanted and one else None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Nothing goes on after the tests."""
    java.end(session.config.stash.get(_making, None))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was skipped, and how to run it."""
    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", ())]
    if reasons:
        terminalreporter.section("not run here")
        terminalreporter.write_line("\n".join(skips.summary(reasons)))


Source = Any
"""What `Acker.connect` takes: a URL of a running server, or a fakeredis client."""


@pytest.fixture(scope="session")
def _servers() -> Iterator[dict[str, Server]]:
    started: dict[str, Server] = {}
    yield started
    for server in started.values():
        server.stop()


@pytest.fixture(params=servers.ALL_NAMES)
def source(request: pytest.FixtureRequest, _servers: dict[str, Server]) -> Source:
    """An empty server of every kind in turn, fakeredis included."""
    return _empty(request.param, _servers)


@pytest.fixture(params=servers.REAL_NAMES)
def real_url(request: pytest.FixtureRequest, _servers: dict[str, Server]) -> Source:
    """An empty real server of every kind in turn, as a URL."""
    return _empty(request.param, _servers)


@pytest.fixture
def url(_servers: dict[str, Server]) -> Source:
    """One empty real server (Valkey), as a URL; for what doesn't depend on the kind."""
    return _empty(servers.VALKEY.name, _servers)


@pytest.fixture
def raw(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A plain redis-py client on the same server as `source`, `real_url` or `url`, for looking into structures."""
    name = next(n for n in ("source", "real_url", "url") if n in request.fixturenames)
    value = request.getfixturevalue(name)
    if not isinstance(value, str):
        yield value
        return
    client = redis.Redis.from_url(value)
    yield client
    client.close()


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Acker]]:
    """Make ackers on the test's server: `connect(shards=1, clock="last_update")`; closed at the end."""
    name = next(n for n in ("source", "real_url", "url") if n in request.fixturenames)
    made: list[Acker] = []

    def make(**settings: Any) -> Acker:
        settings.setdefault("app", "test")
        acker = Acker.connect(request.getfixturevalue(name), AckerConfig(**settings))
        made.append(acker)
        return acker

    yield make
    for acker in made:
        acker.close()


def _empty(name: str, started: dict[str, Server]) -> Source:
    if name == servers.FAKE:
        return fakeredis.FakeRedis()
    if name not in started:
        server = servers.REAL_KINDS[name].server()
        server.start()
        started[name] = server
    client = redis.Redis.from_url(started[name].url)
    client.flushall()
    client.script_flush()
    client.close()
    return started[name].url
