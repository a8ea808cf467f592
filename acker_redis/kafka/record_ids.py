"""Message ids of records: 15 bits for the partition, 48 bits for the offset."""

import numpy as np
import numpy.typing as npt

from acker_redis.errors import AckerError

_OFFSET_BITS = 48
_MOST_PARTITIONS = 1 << 15


class RecordIds:
    """Numbers of the partitions that a run has met, and the message ids made of them.

    Ids of neighbours are neighbours, so that they share a block of the ledger. The numbers mean nothing in another run.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int], int] = {}

    def first_of(self, topic_id: str, partition: int) -> int:
        """Return the id of a partition's offset 0. The id of another record is greater by its offset.

        Raises:
            AckerError: the run has met too many partitions.
        """
        number = self._numbers.setdefault((topic_id, partition), len(self._numbers))
        if number >= _MOST_PARTITIONS:
            del self._numbers[topic_id, partition]
            raise AckerError(
                f"This run has met more than {_MOST_PARTITIONS} partitions, and message ids have no room for another. Start "
                "it again, or read fewer topics per run."
            )
        return number << _OFFSET_BITS

    @staticmethod
    def split(message_ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the number of each record's partition, and its offset."""
        return message_ids >> _OFFSET_BITS, message_ids & np.int64((1 << _OFFSET_BITS) - 1)
