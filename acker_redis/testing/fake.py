"""For your own unit tests: an acker on fakeredis that runs the very same Lua files, no server needed.

    from acker_redis.testing import fake_acker

    def test_my_bolt():
        acker = fake_acker()
        acker.init(root=1, val=5, spout_id=0)
        my_bolt(acker)
        assert settle(acker) == {1: "ack"}

fakeredis is slower than a server and knows no memory limit; everything else is the same.
"""

import time
from collections.abc import Callable
from typing import Unpack

from acker_redis.acker import Acker
from acker_redis.errors import AckerError
from acker_redis.model.config import AckerConfig, Settings

_POLL_SECS = 0.02


def fake_acker(config: AckerConfig | None = None, **settings: Unpack[Settings]) -> Acker:
    """Open an acker on a fresh in-memory fakeredis; `acker.admin.rotate(force=True)` is its clock.

    Args:
        config: settings; None: those of `AckerConfig`, with app "test" and 2 shards.
        settings: the same as keywords in place of a config, as for `Acker.connect`: `num_buckets=2`.

    Raises:
        BadConfigError: as `Acker.connect`.
        AckerError: fakeredis with Lua is not installed.

    >>> acker = fake_acker(num_buckets=2)
    >>> acker.init(1, 5, spout_id=0)
    True
    """
    try:
        import fakeredis
        import lupa  # noqa: F401
    except ImportError as exc:
        raise AckerError("install fakeredis with Lua for tests: pip install 'acker-redis[testing]'") from exc
    if config is None:
        settings = {"app": "test", "shards": 2, **settings}
    return Acker.connect(fakeredis.FakeRedis(), config, **settings)


def settle(acker: Acker) -> dict[int, str]:
    """Take and confirm all outcomes that are there: root -> `ack`, `failed` or `timeout`.

    >>> acker.init_many([1, 2], [0, 5], spout_id=0).applied
    2
    >>> settle(acker)
    {1: 'ack'}
    """
    results: dict[int, str] = {}
    while outcomes := acker.poll():
        results.update({outcome.root: outcome.reason or "ack" for outcome in outcomes})
        acker.confirm(outcomes)
    return results


def expire(acker: Acker) -> dict[int, str]:
    """Rotate until everything pending has timed out, and settle.

    >>> acker.init(1, 5, spout_id=0)
    True
    >>> expire(acker)
    {1: 'timeout'}
    """
    for _ in range(acker.config.num_buckets):
        acker.admin.rotate(force=True)
    return settle(acker)


def wait_until(condition: Callable[[], bool], description: str, timeout_secs: float = 30.0) -> None:
    """Wait for a condition that another process brings about; the description is for the error.

    Raises:
        TimeoutError: not within timeout_secs.

    >>> wait_until(lambda: acker.stats().pending == 0, "nothing is pending")
    """
    deadline = time.monotonic() + timeout_secs
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_secs} s in vain for: {description}")
        time.sleep(_POLL_SECS)
