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
from hypothesis import HealthCheck, settings

from acker_redis import Acker, AckerConfig
from acker_redis.testing.server import Server
from tests.support import compiling, elsewhere, java, repeats, scheduling, servers, skips
from tests.support.spark import versions


def pytest_addoption(parser: pytest.Parser) -> None:
    """One process has either classic sessions or those of Spark Connect."""
    parser.addoption(
        "--connect",
        action="store_true",
        help="run the tests of the `spark` fixture and of its own servers over Spark Connect, and no others",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Threads for algebra that nobody does cost each process that imports numpy a tenth of a second."""
    for one in versions.warning_filters():
        config.addinivalue_line("filterwarnings", one)
    # No example may depend on the speed of the machine, and no run draws others than the run before it.
    settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("suite")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # `make test &`; what it starts can't be interrupted then
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("connect"):
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # PySpark's own mark: columns that modules make are Connect's
    gc.disable()  # nothing of what is collected now is garbage


def pytest_collection(session: pytest.Session) -> None:
    """Of a whole run, in which each process imports everything."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker and session.config.args == session.config.getini("testpaths"):
        compiling.compile_modules(int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests get the marks of their kind, and files that take long go first."""
    if config.getoption("connect"):
        others = {item for item in items if not is_over_connect(item)}
        config.hook.pytest_deselected(items=list(others))
        items[:] = [item for item in items if item not in others]
        for item in items:
            mark = item.get_closest_marker("classic")
            if mark is not None:
                item.add_marker(pytest.mark.skip(reason=f"not over Spark Connect: {mark.args[0]}"))
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        if used & SERVERS:
            item.add_marker("server")
        if "_sessions" in used:
            item.add_marker("spark")
        if repeats.is_repeat(item.nodeid):
            item.add_marker("chaos")
        elif versions.is_tried_on_all(item.nodeid):
            item.add_marker("versions")
    on_spark = [
        item.nodeid for item in items if item.get_closest_marker("spark") and not repeats.is_repeat(item.nodeid)
    ]
    further = set(elsewhere.further_cases(name for name in on_spark if not elsewhere.is_elsewhere(name)))
    for item in items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if (
            elsewhere.is_elsewhere(item.nodeid)
            or item.nodeid in further
            or elsewhere.is_on_another_server(item.nodeid, parameters)
        ):
            item.add_marker("matrix")
    items.sort(key=lambda item: scheduling.place(item.nodeid.partition("::")[0]))


def is_over_connect(item: pytest.Item) -> bool:
    """Whether a test has the session of the `spark` fixture, or a server of Spark Connect."""
    return "_sessions" in getattr(item, "fixturenames", ()) or item.get_closest_marker("connect") is not None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> scheduling.ByKind:
    """See there."""
    return scheduling.ByKind(config, log)


pytest_plugins = [
    "tests.support.failures",
    "tests.support.fixtures",
    "tests.support.jvms",
    "tests.support.spark.fixtures",
]

SERVERS = {"source", "real_url", "url", "kind", "start_server"}
"""Fixtures of which a test that uses one needs a server."""

MANY = 20
"""Tests on Spark for which an archive of classes pays."""

_making = pytest.StashKey[Popen[bytes] | None]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """For all JVMs that the tests start, themselves or in programs of their own."""
    java.use()
    keep_format(item.config)


def pytest_runtest_call(item: pytest.Item) -> None:
    """An error of the set-up may have changed the format."""
    keep_format(item.config)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """An error of the test may have changed the format."""
    keep_format(item.config)


def keep_format(config: pytest.Config) -> None:
    """
    Give what pytest records its own format.

    PySpark makes two loggers for some of its errors that don't propagate. At each phase of a test, pytest adds its handlers to
    such loggers, and these set the format of a handler to JSON, for all tests that follow in the process.
    """
    records: Any = config.pluginmanager.get_plugin("logging-plugin")
    for handler in (records.caplog_handler, records.report_handler):
        handler.setFormatter(records.formatter)


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
    ackers: list[Acker] = []

    def make(**settings: Any) -> Acker:
        settings.setdefault("app", "test")
        acker = Acker.connect(request.getfixturevalue(name), AckerConfig(**settings))
        ackers.append(acker)
        return acker

    yield make
    for acker in ackers:
        acker.close()


def _empty(name: str, started: dict[str, Server]) -> Source:
    if name == servers.FAKE:
        return fakeredis.FakeRedis()
    if name not in started:
        server = servers.REAL_KINDS[name].server()
        server.start()
        started[name] = server
    client = redis.Redis.from_url(started[name].url)
    client.flushall()  # scripts stay, as compiling them for each test takes longer than most tests
    client.close()
    return started[name].url
