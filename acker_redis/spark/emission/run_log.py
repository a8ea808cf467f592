"""The publish log of one run, with the names that its messages have there."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from acker_redis.errors import AckerError
from acker_redis.model.arrays import Int64Array
from acker_redis.publishing.messages import MessageNames
from acker_redis.publishing.publish_log import PublishLog
from acker_redis.spark.emission.outages import patiently
from acker_redis.spout.spout import Spout

_T = TypeVar("_T")


@dataclass
class RunLog:
    """The publish log of one run.

    Attributes:
        spout: spout of the run.
        publish_log: the log.
        location: its folder.
        names: function of message ids to the lasting names of messages of the source.
        outage_secs: time that an outage of the log or a table is waited for, in seconds.
        reopened: message id that a letter has brought back -> its lasting name.
    """

    spout: Spout
    publish_log: PublishLog
    location: str
    names: Callable[[Int64Array], MessageNames]
    outage_secs: float
    reopened: dict[int, tuple[str, int]] = field(default_factory=dict, init=False)

    def names_of(self, message_ids: Int64Array) -> MessageNames:
        """Return the lasting names of messages: those of the source, and those that letters have brought back."""
        reopened = self.reopened
        is_back = np.isin(message_ids, list(reopened))
        if not is_back.any():
            return self.names(message_ids)
        back = MessageNames.of_places([reopened[message] for message in message_ids[is_back].tolist()])
        return self.names(message_ids[~is_back]).joined(back, is_back)

    def wait_for(self, call: Callable[[], _T]) -> _T:
        """Call a function of the log or a table, again after an outage.

        Raises:
            AckerError: the outage lasts.
        """
        try:
            return patiently(call, self.outage_secs, "publish log or table")
        except OSError as exc:
            raise AckerError(
                f"The publish log {self.location} or a table can't be reached: {exc}. So it isn't known which rows count, "
                "and nothing more was acked. Repair the file system, and run again. The next run completes what was accepted."
            ) from None  # its cause would be taken for an outage, and waited for once more
