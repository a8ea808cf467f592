"""Progress in one partition: which of its records are open, and what a commit may say."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from acker_redis.kafka.commit_metadata import NO_EPOCH, Run


class PartitionProgress:
    """Offsets of one partition, from its assignment until it is revoked.

    Every offset below `next` that isn't open is done: it was acked, became a dead letter, was done by an earlier owner, or
    has no record. Transactions and compaction leave such gaps between records.

    Guarantee: the committed offset is at most the first open one, and never decreases.

    Attributes:
        next: offset after the last record that was read.
        epoch: highest leader epoch of the records that were read; `NO_EPOCH`: none.
    """

    def __init__(self, begin: int, runs: Sequence[Run] = (), epoch: int = NO_EPOCH) -> None:
        """Start at a committed offset.

        Args:
            begin: committed offset.
            runs: runs from it on that earlier owners did, in order and not adjacent.
            epoch: highest leader epoch of the records in the runs.
        """
        self.next = begin
        self.epoch = epoch
        self._earlier, self._earlier_epoch = list(runs), epoch
        self._open: dict[int, int] = {}  # first -> behind last, in order, because records are read in order

    def read(self, offset: int, epoch: int | None) -> bool:
        """Note that a record was read. Return True if it is to be processed, or False if it is done or was read before.

        Leader epochs never decrease within a log. So a record with a higher one than that of the runs shows that all
        records from there on are newer than the runs, and that the log has lost those of the runs.
        """
        if offset < self.next:
            return False
        self.next = offset + 1
        if epoch is not None and epoch > self.epoch:
            if epoch > self._earlier_epoch:
                self._earlier = []
            self.epoch = epoch
        if self._earlier and self._is_in_earlier(offset):
            return False
        self._open[offset] = offset + 1
        return True

    def hold(self, begin: int, end: int) -> None:
        """Keep a range of lost records open, until `done(begin)` is called. Nothing at or behind it was read."""
        self._open[begin] = self.next = end

    def reached(self, offset: int) -> None:
        """Note that no record before an offset is left to read, as at the end of the partition."""
        self.next = max(self.next, offset)

    def replace_open(self, offsets: Iterable[int], end: int) -> None:
        """Note that all records before an offset were read at once, and which of them are open.

        Args:
            offsets: offsets of the open records, of all that were read so far.
            end: offset behind the last record.
        """
        self._open = {offset: offset + 1 for offset in sorted(offsets)}
        self.next = max(self.next, end, *self._open.values())

    def done(self, offset: int) -> None:
        """Note that a record was acked or is a dead letter, or that a range that is held has one."""
        self._open.pop(offset, None)

    @property
    def open(self) -> list[int]:
        """Offsets of the records that were read and aren't done, and of ranges that are held, in order."""
        return list(self._open)

    def lost(self, until: int) -> list[Run]:
        """Return the ranges from `next` to an offset that nobody has done."""
        ranges: list[Run] = []
        at = self.next
        for begin, end in self._earlier:
            if end <= at:
                continue
            if begin >= until:
                break
            if begin > at:
                ranges.append((at, begin))
            at = end
        if at < until:
            ranges.append((at, until))
        return ranges

    def until(self) -> int:
        """Return the offset to commit: the first one that is open or was not read."""
        return next(iter(self._open), self.next)

    def runs(self) -> list[Run]:
        """Return the runs of done offsets from `until` on, in order and not adjacent."""
        runs: list[Run] = []
        for end, following in zip(self._open.values(), [*self._open, self.next][1:], strict=True):
            if following > end:
                runs.append((end, following))
        for begin, end in self._earlier:
            if end <= self.next:
                continue
            if runs and runs[-1][1] >= begin:
                runs[-1] = (runs[-1][0], end)
            else:
                runs.append((max(begin, self.next), end))
        return runs

    def _is_in_earlier(self, offset: int) -> bool:
        place = bisect_right(self._earlier, offset, key=lambda run: run[0]) - 1
        return place >= 0 and offset < self._earlier[place][1]
