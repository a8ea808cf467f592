"""Fixtures of the integration tests: servers of one's own, processes, a proxy that cuts connections."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from acker_redis import Acker, AckerConfig
from acker_redis.client.client import OUTAGE_TIMEOUT_SECS
from acker_redis.testing import wait_until
from acker_redis.testing.server import Server
from tests.support.proxy import Proxy
from tests.support.servers import REAL_KINDS, REAL_NAMES

if TYPE_CHECKING:
    from tests.support.kafka import Broker


@pytest.fixture(params=REAL_NAMES)
def kind(request: pytest.FixtureRequest) -> str:
    """Every kind of real server in turn."""
    return str(request.param)


@pytest.fixture
def start_server() -> Iterator[Callable[..., Server]]:
    """Start a server that the test may reconfigure or kill: `start_server("--appendonly", "yes", kind="redis7")`."""
    started: list[Server] = []

    def start(*arguments: str, kind: str = "valkey") -> Server:
        server = REAL_KINDS[kind].server(*arguments)
        started.append(server)
        server.start()
        return server

    yield start
    for server in reversed(started):  # a primary that stops waits for its replicas
        server.stop()


@pytest.fixture(scope="session")
def _broker() -> Iterator["Broker"]:
    from tests.support.kafka import broker

    with broker(**{"log.cleaner.backoff.ms": 200}) as started:  # a test waits for compaction
        yield started


@pytest.fixture(scope="module")
def node(_broker: "Broker") -> Iterator["Broker"]:
    """A broker of Kafka without topics, for files that neither end it nor need settings of their own."""
    yield _broker
    _broker.delete_topics()


@pytest.fixture
def open_acker() -> Iterator[Callable[..., Acker]]:
    """Open an app anywhere: `open_acker(url, shards=2)`; closed at the end."""
    ackers: list[Acker] = []

    def make(source: Any, **settings: Any) -> Acker:
        settings.setdefault("app", "test")
        outage_timeout_secs = settings.pop("outage_timeout_secs", OUTAGE_TIMEOUT_SECS)
        acker = Acker.connect(source, AckerConfig(**settings), outage_timeout_secs=outage_timeout_secs)
        ackers.append(acker)
        return acker

    yield make
    for acker in ackers:
        acker.close()


@pytest.fixture
def plain() -> Iterator[Callable[..., Any]]:
    """A plain redis-py client for a URL; closed at the end."""
    clients: list[Any] = []

    def make(url: str, **options: Any) -> Any:
        clients.append(redis.Redis.from_url(url, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def start_proxy() -> Iterator[Callable[[Server], Proxy]]:
    """A proxy in front of a server."""
    proxies: list[Proxy] = []

    def make(server: Server) -> Proxy:
        proxies.append(Proxy(server.port))
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.close()


@pytest.fixture
def start_sentinel() -> Iterator[Callable[..., int]]:
    """A Sentinel that watches `service`; returns its port. It takes a busy primary for dead only if a test asks for that."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        primary: Server,
        *lines: str,
        kind: str = "redis7",
        login: dict[str, Any] | None = None,
        down_after_ms: int = 60_000,
    ) -> int:
        sentinel = REAL_KINDS[kind].server()  # for its free port and its folder
        config = sentinel.folder / "sentinel.conf"
        config.write_text(
            "\n".join(
                [
                    f"port {sentinel.port}",
                    "bind 127.0.0.1",
                    f"dir {sentinel.folder}",
                    f"sentinel monitor service 127.0.0.1 {primary.port} 1",
                    f"sentinel down-after-milliseconds service {down_after_ms}",
                    "sentinel failover-timeout service 5000",
                    *(line.format(port=sentinel.port) for line in lines),
                ]
            )
        )
        started.append(
            subprocess.Popen(
                [sentinel.program, config, "--sentinel"], stdout=subprocess.DEVNULL, start_new_session=True
            )
        )
        folders.append(sentinel)
        wait_until(lambda: sentinel_answers(sentinel.port, login or {}), "the sentinel answers")
        return sentinel.port

    folders: list[Server] = []
    yield start
    for process in started:
        process.kill()
        process.wait()
    for folder in folders:
        folder.stop()


def sentinel_answers(port: int, login: dict[str, Any]) -> bool:
    with redis.Redis(host="127.0.0.1", port=port, **login) as sentinel:
        try:
            return bool(sentinel.ping())
        except redis.AuthenticationError:
            return True
        except redis.ConnectionError:
            return False


class Process:
    """A process of the command line, with its log."""

    def __init__(self, arguments: tuple[str, ...], log: Path) -> None:
        self._log = log
        with log.open("wb") as out:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "acker_redis", *arguments], stdout=out, stderr=subprocess.STDOUT
            )

    def log(self) -> str:
        return self._log.read_text()

    def end(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start `acker-redis` with these arguments; killed at the end if it still runs."""
    started: list[Process] = []

    def start(*arguments: str) -> Process:
        started.append(Process(arguments, tmp_path / f"process-{len(started)}.log"))
        return started[-1]

    yield start
    for process in started:
        process.end()
