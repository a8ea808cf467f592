"""Producers that a worker process keeps between tasks, because a new one takes half a second until it is ready."""

import os
from collections import OrderedDict
from typing import Any

from acker_redis.kafka.client import ClientLog, confluent, connected

_MOST = 4
"""Number of producers that a process keeps. Each has threads and connections."""

_kept: OrderedDict[object, "WorkerProducer"] = OrderedDict()


class WorkerProducer:
    """A producer of this process, and what its connections said last.

    Attributes:
        client: producer of the client library.
        words: error that a connection had last; empty if it had none.
        has_failed: whether a record was not acknowledged. Such a producer isn't kept.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        """Make a producer.

        Raises:
            OutageError: `oauth_cb` gives no token.
        """
        self.words, self.has_failed = "", False
        own = {"error_cb": self._note, "logger": ClientLog(settings), "delivery.report.only.error": True}
        self.client = connected(confluent().Producer, {**own, **settings})

    @classmethod
    def take(cls, settings: dict[str, Any]) -> "WorkerProducer":
        """Return a producer with these settings that an earlier task has left, or a new one."""
        kept = _kept.pop(_key(settings), None)
        if kept is None:
            return cls(settings)
        kept.client.poll(0)  # what its connections said while nobody used it is not about the next task
        kept.words = ""
        return kept

    def leave(self, settings: dict[str, Any]) -> None:
        """Leave it to the next task. All its records must have been acknowledged."""
        if (
            self.has_failed
            or len(self.client)
            or any(not isinstance(one, (str, int, float)) for one in settings.values())
        ):
            return  # a function is another object in each task
        _kept[_key(settings)] = self
        while len(_kept) > _MOST:
            _kept.popitem(last=False)

    def _note(self, error: Any) -> None:
        self.words = error.str()


def _key(settings: dict[str, Any]) -> object:
    """Return what makes a producer the same. A process that was forked meanwhile has no use for its parent's."""
    return os.getpid(), tuple(sorted((name, repr(value)) for name, value in settings.items()))
