"""What a Python worker has: one acker per process, and the partition of the task it runs."""

from pyspark import TaskContext

from acker_redis.acker import Acker
from acker_redis.config import AckerConfig
from acker_redis.errors import AckerError, ConnectionLostError

_ackers: dict[tuple[str, AckerConfig], Acker] = {}


def acker_of_worker(url: str, config: AckerConfig) -> Acker:
    """This process's acker; made at first use, kept over tasks. Spark forks its workers before this module is imported."""
    acker = _ackers.get((url, config))
    if acker is None:
        try:
            acker = _ackers[url, config] = Acker.connect(url, config)
        except ConnectionLostError as exc:
            raise ConnectionLostError(
                f"a Python worker of Spark: {exc}. Do executors reach the server by another name? Give it as `executor_url`"
            ) from exc
    return acker


def partition_id() -> int:
    """Number of the partition that the running task works on; the same over every kind of retry.

    Raises:
        AckerError: no task is running.
    """
    context = TaskContext.get()
    if context is None:
        raise AckerError("this runs inside Spark tasks only")
    return context.partitionId()
