"""One seeded shard per test, on every server."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from acker_redis.client import Client
from tests.lua.seeding import Lab


@pytest.fixture
def client(source: Any) -> Iterator[Client]:
    """The client that sends the scripts."""
    client = Client(source)
    yield client
    client.close()


@pytest.fixture
def lab(client: Client, raw: Any) -> Callable[..., Lab]:
    """Make the shard: `lab(clock="last_update", max_age_ms=1000, lanes=2, num_buckets=2, tick=5, due_in_ms=0)`."""
    return lambda **settings: Lab(raw, client, **settings)
