"""How much one task may send to the driver."""

from typing import Any

import pytest

from acker_redis.spark.runtime import collected
from acker_redis.spark.runtime.collected import collected_bytes_per_task


class Conf:
    def __init__(self, settings: dict[str, str]) -> None:
        self.settings = settings

    def get(self, key: str, default: str) -> str:
        return self.settings.get(key, default)


class Session:
    def __init__(self, **settings: str) -> None:
        self.conf = Conf({key.replace("__", "."): value for key, value in settings.items()})


MAX, SHUFFLE = "spark__driver__maxResultSize", "spark__sql__shuffle__partitions"


@pytest.mark.parametrize(
    ("settings", "connect", "expected"),
    [
        ({}, False, (1 << 30) // 4 // 200),
        ({MAX: "512m"}, False, (512 << 20) // 4 // 200),
        ({MAX: "2GB"}, False, (2 << 30) // 4 // 200),
        ({MAX: "1048576"}, False, (1 << 20) // 4 // 200),
        ({MAX: "0"}, False, (1 << 30) // 4 // 200),  # no limit: what the driver keeps is limited all the same
        ({SHUFFLE: "1000"}, False, (1 << 30) // 4 // 1000),
        ({SHUFFLE: "2", "spark__default__parallelism": "64"}, False, (1 << 30) // 4 // 64),
        ({}, True, (128 << 20) // 4 // 200),
        ({MAX: "64m"}, True, (64 << 20) // 4 // 200),
    ],
)
def test_bytes_per_task_follow_the_session(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], connect: bool, expected: int
) -> None:
    monkeypatch.setattr(collected, "is_connect", lambda session: connect)
    session: Any = Session(**settings)
    assert collected_bytes_per_task(session) == expected
