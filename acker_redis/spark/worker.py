"""What runs in a Python worker: one acker per process, updates sent once per partition under a stable token."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from acker_redis import ids
from acker_redis.acker import Acker
from acker_redis.config import AckerConfig
from acker_redis.errors import LedgerLostError, TokenReusedError
from acker_redis.ids import UInt64Array

log = logging.getLogger("acker_redis.spark")

COMPACT_ROWS = 500_000
"""Acks kept before equal roots are combined: bounds the memory of a partition by its distinct roots."""

NOT_DETERMINISTIC = "ran again and gave other rows: the function is not deterministic"

_ackers: dict[tuple[str, AckerConfig], Acker] = {}


def acker_of_worker(url: str, config: AckerConfig) -> Acker:
    """This process's acker; made at first use, kept over tasks. Spark forks its workers before this module is imported."""
    acker = _ackers.get((url, config))
    if acker is None:
        acker = _ackers[url, config] = Acker.connect(url, config)
    return acker


@dataclass
class Updates:
    """The updates of one partition of one operator.

    Sent once, by `send`, after the partition was consumed to its end. A task that ends earlier (an error, a worker's
    death, limit/take) sends nothing; one that runs again sends the same under the same token, which changes nothing.
    """

    url: str
    config: AckerConfig
    stage: str
    token: str
    _inits: list[tuple[int, UInt64Array, UInt64Array]] = field(default_factory=list)
    _ack_roots: list[UInt64Array] = field(default_factory=list)
    _ack_vals: list[UInt64Array] = field(default_factory=list)
    _fails: dict[str, list[UInt64Array]] = field(default_factory=dict)
    _rows: int = 0

    def init(self, task: int, roots: UInt64Array, vals: UInt64Array) -> None:
        """Roots of a spout task."""
        self._inits.append((task, roots, vals))

    def ack(self, roots: UInt64Array, vals: UInt64Array) -> None:
        """Edges consumed or produced; an ack is the XOR of both."""
        self._ack_roots.append(roots)
        self._ack_vals.append(vals)
        self._rows += len(roots)
        if self._rows >= COMPACT_ROWS:
            combined = ids.xor_by_root(np.concatenate(self._ack_roots), np.concatenate(self._ack_vals))
            self._ack_roots, self._ack_vals, self._rows = [combined[0]], [combined[1]], 0

    def fail(self, roots: UInt64Array, reason: str) -> None:
        """Roots of rows that failed."""
        self._fails.setdefault(reason, []).append(roots)

    def send(self) -> int:
        """Send everything; returns the ledger updates applied (0 when a first run of the task got through before)."""
        acker = acker_of_worker(self.url, self.config)
        try:
            return self._send(acker)
        except LedgerLostError:
            # The spout learns of the loss by itself and replays; these updates then wait for no one and expire.
            acker.recover()
            return self._send(acker)

    def _send(self, acker: Acker) -> int:
        try:
            with acker.batch(self.token) as batch:
                for task, roots, vals in self._inits:
                    batch.init_many(roots, vals, task)
                if self._ack_roots:
                    batch.ack_many(_joined(self._ack_roots), _joined(self._ack_vals), self.stage)
                for reason, fails in self._fails.items():
                    batch.fail_many(_joined(fails), reason, self.stage)
        except TokenReusedError as exc:
            # The task ran before and gave other updates: its function is not deterministic. The rows handed on now are not
            # those the ledger knows of, so these trees could complete without them: fail them, before anybody acks.
            log.warning(
                "%s: %s. The roots are failed, to be replayed; make the function deterministic", self.token, exc
            )
            acker.fail_many(self._roots(), f"{self.token}:again", NOT_DETERMINISTIC, self.stage)
            return 0
        return batch.result.applied if batch.result else 0

    def _roots(self) -> UInt64Array:
        parts = [
            *(roots for _, roots, _ in self._inits),
            *self._ack_roots,
            *(r for rs in self._fails.values() for r in rs),
        ]
        return _joined(parts)


def _joined(parts: Sequence[UInt64Array]) -> UInt64Array:
    return np.concatenate(parts)
