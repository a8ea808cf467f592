"""An acker on fakeredis for your unit tests. It runs the same Lua files as a server, and needs none.

    from acker_redis.testing import fake_acker

    def test_order_is_acked():
        acker = fake_acker()
        acker.init(root=1, val=5, spout_id=0)
        complete_order(acker)
        assert settle(acker) == {1: "ack"}

fakeredis is slower than a server and has no memory limit. Everything else is the same.
"""

import time
from collections.abc import Callable
from typing import Unpack

from acker_redis.acker import Acker
from acker_redis.errors import AckerError
from acker_redis.extras import install_hint
from acker_redis.model.config import AckerConfig, Settings

_POLL_SECS = 0.02


def fake_acker(config: AckerConfig | None = None, **settings: Unpack[Settings]) -> Acker:
    """Open an acker on a new in-memory fakeredis. `acker.admin.rotate(force=True)` is its clock.

    Args:
        config: settings. None means the defaults of `AckerConfig`, with app "test" and 2 shards.
        settings: settings as keywords in place of a config, as for `Acker.connect`, such as `num_buckets=2`.

    Raises:
        BadConfigError: as for `Acker.connect`.
        AckerError: if fakeredis with Lua is not installed.

    >>> acker = fake_acker(num_buckets=2)
    >>> acker.init(1, 5, spout_id=0)
    True
    """
    try:
        import fakeredis
        import lupa  # noqa: F401
    except ImportError as exc:
        raise AckerError(
            f"fake_acker needs fakeredis with Lua, which is not installed. {install_hint('testing')}"
        ) from exc
    if config is None:
        settings = {"app": "test", "shards": 2, **settings}
    return Acker.connect(fakeredis.FakeRedis(), config, **settings)


def settle(acker: Acker) -> dict[int, str]:
    """Receive and confirm all waiting outcomes. Return `ack`, `failed` or `timeout` by root.

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
    """Rotate until every pending root has timed out, then `settle`.

    >>> acker.init(1, 5, spout_id=0)
    True
    >>> expire(acker)
    {1: 'timeout'}
    """
    for _ in range(acker.config.num_buckets):
        acker.admin.rotate(force=True)
    return settle(acker)


def wait_until(condition: Callable[[], bool], description: str, timeout_secs: float = 60.0) -> None:
    """Wait until another process makes a condition true.

    Args:
        condition: function that returns True when the wait is over.
        description: description of the condition, for the error.
        timeout_secs: longest wait, in seconds.

    Raises:
        TimeoutError: if the condition is still false after timeout_secs.

    >>> wait_until(lambda: acker.stats().pending == 0, "nothing is pending")
    """
    deadline = time.monotonic() + timeout_secs
    while True:
        is_late = time.monotonic() > deadline  # before the look: a process that stood still looks once more
        if condition():
            return
        if is_late:
            raise TimeoutError(f"Condition not met within {timeout_secs} s: {description}")
        time.sleep(_POLL_SECS)
