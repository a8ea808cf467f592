"""How far a source was worked off: per partition the highest offset below which everything is done.

As Storm's Kafka spout does: what is done above a gap is not committed, so a restart repeats it and loses nothing. Kept in a
file of the program's own, not in Redis: it has to survive the loss of Redis's memory.
"""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from acker_redis.errors import BadBatchError, BadConfigError

Int64Array = npt.NDArray[np.int64]


class Offsets:
    """Contiguous progress of a source's partitions.

    Guarantee: every offset below a partition's in `known` was done. The file is replaced as a whole, so a crash leaves the old
    one. Not guaranteed: that an offset above was not done.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read the file, if it is there.

        Raises:
            BadConfigError: the file holds something else.
        """
        self._path = Path(path)
        self._begin: dict[str, int] = {}
        if self._path.exists():
            try:
                found = json.loads(self._path.read_text(encoding="utf-8"))
                self._begin = {str(partition): int(offset) for partition, offset in found.items()}
            except (ValueError, AttributeError, TypeError) as exc:
                raise BadConfigError(
                    f"{self._path} holds no offsets: give the file an earlier run made, or move it away to begin anew"
                ) from exc
        self._ids = np.array([], np.int64)
        self._partition_of = np.array([], np.int64)
        self._offset_of = np.array([], np.int64)
        self._done = np.array([], np.bool_)
        self._names: list[str] = []

    def known(self) -> dict[str, int]:
        """The first offset that is not known to be done, of each partition that something is known of."""
        return dict(self._begin)

    def track(
        self, message_ids: Int64Array, partitions: Sequence[str], of_message: Int64Array, offsets: Int64Array
    ) -> None:
        """Take messages under way, in place of those tracked before.

        Args:
            message_ids: distinct.
            partitions: names.
            of_message: for each message the index of its partition.
            offsets: for each message its offset there. A partition's have no gaps of unknown messages.
        """
        if len(np.unique(message_ids)) != len(message_ids):
            raise BadBatchError("message ids stand more than once")
        order = np.argsort(message_ids)
        self._ids, self._names = message_ids[order], list(partitions)
        self._partition_of, self._offset_of = of_message[order], offsets[order]
        self._done = np.zeros(len(order), np.bool_)

    def complete(self, message_ids: Int64Array) -> None:
        """Messages are done: acked, or kept as dead letters. Ids that are not tracked are ignored."""
        if len(self._ids):
            places = np.minimum(np.searchsorted(self._ids, message_ids), len(self._ids) - 1)
            self._done[places[self._ids[places] == message_ids]] = True

    def save(self) -> dict[str, int]:
        """Write how far each partition is contiguously done; returns it."""
        seen = np.bincount(self._partition_of, minlength=len(self._names)) > 0
        first_open = np.full(len(self._names), np.iinfo(np.int64).min)
        np.maximum.at(first_open, self._partition_of, self._offset_of + 1)  # where all is done: behind the last
        np.minimum.at(first_open, self._partition_of[~self._done], self._offset_of[~self._done])
        for number in np.flatnonzero(seen).tolist():
            name, offset = self._names[number], int(first_open[number])
            self._begin[name] = max(self._begin.get(name, offset), offset)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self._path.parent, prefix=self._path.name, delete=False) as file:
            json.dump(self._begin, file)
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(self._path)
        return dict(self._begin)
