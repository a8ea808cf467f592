"""One seeded shard per test, on every server."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from acker_redis.client.client import Client
from tests.support.seeding import Lab


@pytest.fixture(scope="session")
def _clients() -> Iterator[dict[str, Client]]:
    clients: dict[str, Client] = {}
    yield clients
    for client in clients.values():
        client.close()


@pytest.fixture
def client(source: Any, _clients: dict[str, Client]) -> Client:
    """The client that sends the scripts; a server that is emptied between tests keeps the one it has."""
    if not isinstance(source, str):
        return Client(source)
    if source not in _clients:
        _clients[source] = Client(source)
    return _clients[source]


@pytest.fixture
def lab(client: Client, raw: Any) -> Callable[..., Lab]:
    """Make the shard: `lab(clock="last_update", max_age_ms=1000, lanes=2, num_buckets=2, tick=5, due_in_ms=0)`."""
    return lambda **settings: Lab(raw, client, **settings)
