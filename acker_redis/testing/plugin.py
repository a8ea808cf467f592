"""A pytest plugin with the fixture `acker`. pytest loads it in every environment that has the library."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from acker_redis.acker import Acker


@pytest.fixture
def acker() -> Iterator["Acker"]:
    """Open an acker on a new in-memory fakeredis, and close it behind the test. See `acker_redis.testing.fake_acker`."""
    from acker_redis.testing.fake import fake_acker

    with fake_acker() as opened:
        yield opened
