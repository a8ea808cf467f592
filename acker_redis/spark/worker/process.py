"""What a Python worker has: one acker per process, its imports, and the partition of the task it runs."""

import gc
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from pyspark import TaskContext
from redis.retry import Retry

from acker_redis.acker import Acker
from acker_redis.client.backoff import Backoff
from acker_redis.errors import AckerError, AppNotFoundError, ConnectionLostError, LedgerLostError
from acker_redis.model.config import AckerConfig

_LOST_TRIES = 20
"""A worker makes no shard: the driver recovers one whose data is lost, and looks ten times a second."""

_LOST_BASE_SECS, _LOST_CAP_SECS = 0.05, 1.0

_T = TypeVar("_T")

_ackers: dict[tuple[str, AckerConfig], Acker] = {}


def acker_of_worker(url: str, config: AckerConfig) -> Acker:
    """Give this process's acker; made at first use, kept over tasks. Spark forks its workers before it imports this module.

    It opens the app as it is: it makes no shard, which the driver's acker does.
    """
    acker = _ackers.get((url, config))
    if acker is None:
        try:
            acker = _ackers[url, config] = while_lost(lambda: Acker.open_existing(url, config.app))
        except ConnectionLostError as exc:
            raise ConnectionLostError(
                f"a Python worker of Spark: {exc}. Do executors reach the server by another name? Give it as `executor_url`"
            ) from exc
    return acker


def while_lost(call: Callable[[], _T]) -> _T:
    """Call a function, again while the app's ledger is lost and the driver has not recovered it.

    Raises:
        LedgerLostError, AppNotFoundError: the last of some 15 s.
    """
    backoff = Backoff(base=_LOST_BASE_SECS, cap=_LOST_CAP_SECS)
    retry: Retry = Retry(backoff, _LOST_TRIES, supported_errors=(LedgerLostError, AppNotFoundError))
    result = retry.call_with_retry(call, lambda exc: None)
    return result


@cache
def keep_imports() -> None:
    """Exempt the objects that the process has by now from garbage collection, once; later ones are collected.

    Spark's workers collect after each task (`pyspark/daemon.py`, 4.3). Over the modules that a flat_map function needs
    this takes 40 ms of CPU, more than all the rest of a small task.
    """
    gc.freeze()


def partition_id() -> int:
    """Give the number of the partition that the running task works on; the same over every kind of retry.

    Raises:
        AckerError: no task is running.
    """
    context = TaskContext.get()
    if context is None:
        raise AckerError("this runs inside Spark tasks only")
    return context.partitionId()
