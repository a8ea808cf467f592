"""State of a Python worker: its acker, its imports, and the running task's partition."""

import gc
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from pyspark import TaskContext
from redis.retry import Retry

from acker_redis.acker import Acker
from acker_redis.errors import AckerError, AppNotFoundError, ConnectionLostError, LedgerLostError
from acker_redis.model.config import AckerConfig
from acker_redis.outages import Backoff

_LOST_TRIES = 20
"""A worker creates no shard. The driver recovers one that lost its data; it checks ten times a second."""

_LOST_BASE_SECS, _LOST_CAP_SECS = 0.05, 1.0

_T = TypeVar("_T")

_ackers: dict[tuple[str, AckerConfig], Acker] = {}


def acker_of_worker(url: str, config: AckerConfig) -> Acker:
    """Return this process's acker, which is created on first use and kept across tasks.

    Spark forks its workers before it imports this module. The acker opens an existing app and creates no shard; the driver's
    acker does.
    """
    acker = _ackers.get((url, config))
    if acker is None:
        try:
            acker = _ackers[url, config] = while_lost(lambda: Acker.open_existing(url, config.app))
        except ConnectionLostError as exc:
            raise ConnectionLostError(
                "A Python worker of Spark can't reach the server. If executors reach it by another address, pass that as "
                f"executor_url. The error was: {exc}"
            ) from exc
    return acker


def while_lost(call: Callable[[], _T]) -> _T:
    """Call a function, and retry while the app's ledger is lost and not yet recovered by the driver.

    Raises:
        LedgerLostError, AppNotFoundError: the last error after about 15 s.
    """
    backoff = Backoff(base=_LOST_BASE_SECS, cap=_LOST_CAP_SECS)
    retry: Retry = Retry(backoff, _LOST_TRIES, supported_errors=(LedgerLostError, AppNotFoundError))
    result = retry.call_with_retry(call, lambda exc: None)
    return result


@cache
def keep_imports() -> None:
    """Exempt the existing objects of this process from garbage collection, once.

    Spark's workers collect garbage after each task (`pyspark/daemon.py`, 4.3). Traversing the modules that a flat_map function
    needs costs more CPU than the rest of a small task.
    """
    gc.freeze()


def partition_id() -> int:
    """Return the number of the running task's partition. It is the same in every kind of retry.

    Raises:
        AckerError: no task is running.
    """
    context = TaskContext.get()
    if context is None:
        raise AckerError("No Spark task is running here. Call this in a Python worker only.")
    return context.partitionId()
