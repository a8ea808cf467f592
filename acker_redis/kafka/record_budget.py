"""Limit on the bytes of records that are read and not done."""

from collections.abc import Iterable
from typing import Any

_FIRST_BYTES = 16_384
"""Size of a record before one was read."""

_OVERHEAD_BYTES = 300
"""Memory that a record needs beside its key, value and headers."""


class RecordBudget:
    """Bytes of the records that are read and not done, and their limit. A single larger record is read all the same."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes, self._read_bytes, self._read = 0, 0, 0

    def room(self) -> int:
        """Return the number of records that there is room for, if they are as large as those before."""
        left = self._most_bytes - self._bytes
        average = self._read_bytes // self._read if self._read else _FIRST_BYTES
        return 0 if left <= 0 else max(1, left // average)

    def add(self, records: Iterable[Any]) -> None:
        """Count records that were read."""
        sizes = list(map(_size, records))
        size = sum(sizes)
        self._bytes += size
        self._read_bytes, self._read = self._read_bytes + size, self._read + len(sizes)

    def remove(self, records: Iterable[Any]) -> None:
        """Forget records that are done, or were given up."""
        self._bytes -= sum(map(_size, records))


def _size(record: Any) -> int:
    size = len(record) + _OVERHEAD_BYTES
    if key := record.key():
        size += len(key)
    if headers := record.headers():
        size += sum(len(name) + len(value or b"") for name, value in headers)
    return size
