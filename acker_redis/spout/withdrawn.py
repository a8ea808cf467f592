"""Roots in flight whose messages were withdrawn from the spout, until their outcomes arrive."""

import numpy as np

from acker_redis.model.arrays import Int64Array
from acker_redis.spout.in_flight import Attempts, InFlight


class Withdrawn:
    """Attempts of withdrawn messages. Their jobs may still run, so a message that comes back is adopted.

    Attributes:
        parts: attempts whose outcomes have not arrived.
    """

    def __init__(self) -> None:
        """Start without attempts."""
        self.parts: list[InFlight] = []

    def take(self, part: InFlight, rows: Int64Array) -> None:
        """Move open rows of messages in flight here."""
        if len(rows):
            self.parts.append(InFlight(part.roots[rows], part.attempts[rows]))
            part.close_rows(rows)

    def close(self, roots: Int64Array) -> int:
        """Forget attempts whose outcome arrived or that were lost. Return their number."""
        before = sum(part.count for part in self.parts)
        for part in self.parts:
            rows = part.rows_of(roots)
            part.close_rows(rows[rows >= 0])
        self._drop_finished()
        return before - sum(part.count for part in self.parts)

    def adopt(self, message_ids: Int64Array) -> InFlight | None:
        """Remove and return the last attempts of messages that came back. None if there are none."""
        roots, parts, left = [], [], message_ids
        for part in reversed(self.parts):
            rows = np.flatnonzero(part.open & np.isin(part.attempts.message_ids, left))
            roots.append(part.roots[rows])
            parts.append(part.attempts[rows])
            left = np.setdiff1d(left, parts[-1].message_ids)
            part.close_rows(rows)
        self._drop_finished()
        attempts = Attempts.concatenate(parts) if parts else None
        return InFlight(np.concatenate(roots), attempts) if attempts is not None and len(attempts) else None

    def _drop_finished(self) -> None:
        self.parts = [part for part in self.parts if part.count]
