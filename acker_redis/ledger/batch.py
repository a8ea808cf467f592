"""Batch: updates collected in this process and sent together."""

from types import TracebackType
from typing import Self, SupportsIndex

import numpy as np

from acker_redis.errors import BadBatchError
from acker_redis.ledger.ledger import Ledger, Update
from acker_redis.model import ids
from acker_redis.model.arrays import UInt64Array
from acker_redis.model.ids import Ids
from acker_redis.model.types import Applied


class Batch:
    """Updates of any kind for any roots, combined per root by XOR and sent packed and pipelined on exit.

    Guarantees: a bad id raises at once, at the line that passed it. If an exception leaves the `with` block, nothing is
    sent. A batch sent again with the same idempotency key changes nothing. An empty batch sends nothing.

    Not guaranteed: that the batch is applied as a whole. It is split into calls of 500 blocks, each atomic.

    Attributes:
        result: result of the batch; None until the `with` block ends.
    """

    def __init__(self, ledger: Ledger, idempotency_key: str | None) -> None:
        """Collect updates for this ledger; see `Acker.batch`."""
        self._ledger = ledger
        self._idempotency_key = idempotency_key
        self._inits: dict[int, tuple[list[UInt64Array], list[UInt64Array]]] = {}
        self._acks: dict[str | None, tuple[list[UInt64Array], list[UInt64Array]]] = {}
        self._keyed: dict[str | None, tuple[list[UInt64Array], ...]] = {}
        self._fails: dict[tuple[str | None, str | None], list[UInt64Array]] = {}
        self.result: Applied | None = None
        self._begun = False

    def init(self, root: SupportsIndex, val: SupportsIndex, spout_id: SupportsIndex) -> None:
        """Initialise one root; see `Acker.init`.

        >>> with acker.batch() as batch:
        ...     batch.init(1, 5, spout_id=0)
        """
        self.init_many([ids.to_uint64(root, "root")], [ids.to_uint64(val, "val")], spout_id)

    def ack(self, root: SupportsIndex, val: SupportsIndex, *, component: str | None = None) -> None:
        """Ack one root; see `Acker.ack`.

        >>> with acker.batch() as batch:
        ...     batch.ack(1, 5, component="write")
        """
        self.ack_many([ids.to_uint64(root, "root")], [ids.to_uint64(val, "val")], component=component)

    def fail(self, root: SupportsIndex, *, reason: str | None = None, component: str | None = None) -> None:
        """Fail one root; see `Acker.fail`.

        >>> with acker.batch() as batch:
        ...     batch.fail(1, reason="no such customer", component="parse")
        """
        self.fail_many([ids.to_uint64(root, "root")], reason=reason, component=component)

    def init_many(self, roots: Ids, vals: Ids, spout_id: SupportsIndex) -> None:
        """Initialise roots; see `Acker.init_many`. `roots` may be empty here.

        >>> with acker.batch() as batch:
        ...     batch.init_many([1, 2], [5, 6], spout_id=0)
        >>> batch.result
        Applied(applied=2, duplicate=False)
        """
        _append(self._inits.setdefault(ids.to_spout_id(spout_id), ([], [])), roots, vals)

    def ack_many(self, roots: Ids, vals: Ids, *, record_keys: Ids | None = None, component: str | None = None) -> None:
        """Ack roots; see `Acker.ack_many`. `roots` may be empty here.

        The batch's idempotency key doesn't apply to acks with keys of their own.

        >>> with acker.batch(idempotency_key="partition-7") as batch:
        ...     batch.ack_many([1, 2], [5, 6], component="write")
        >>> with acker.batch() as batch:
        ...     batch.ack_many([1, 2], [5, 6], record_keys=[5, 6])
        """
        if record_keys is None:
            _append(self._acks.setdefault(component, ([], [])), roots, vals)
            return
        parts = ids.to_triples(roots, vals, record_keys)
        for column, part in zip(self._keyed.setdefault(component, ([], [], [])), parts, strict=True):
            column.append(part)

    def fail_many(self, roots: Ids, *, reason: str | None = None, component: str | None = None) -> None:
        """Fail roots; see `Acker.fail_many`. `roots` may be empty here.

        >>> with acker.batch() as batch:
        ...     batch.fail_many([1, 2], reason="no such customer")
        """
        self._fails.setdefault((reason, component), []).append(ids.to_uint64_array(roots, "roots"))

    def __enter__(self) -> Self:
        """Begin to collect updates.

        Raises:
            BadBatchError: the batch was used before, so its updates would be sent twice.
        """
        if self._begun:
            raise BadBatchError(
                "This batch was used before, so its updates would be sent twice. Make a new one with Acker.batch()."
            )
        self._begun = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send the updates, unless an exception leaves the `with` block."""
        if kind is None:
            self.result = self._ledger.send(self._updates(), self._idempotency_key)

    def _updates(self) -> list[Update]:
        ledger = self._ledger
        inits = [
            ledger.init(np.concatenate(roots), np.concatenate(vals), spout_id)
            for spout_id, (roots, vals) in sorted(self._inits.items())
        ]
        acks = [
            ledger.ack(np.concatenate(roots), np.concatenate(vals), component)
            for component, (roots, vals) in sorted(self._acks.items(), key=lambda item: item[0] or "")
        ]
        fails = [
            ledger.fail(np.concatenate(roots), reason, component)
            for (reason, component), roots in sorted(
                self._fails.items(), key=lambda item: (item[0][0] or "", item[0][1] or "")
            )
        ]
        keyed = [
            ledger.ack_keyed(np.concatenate(roots), np.concatenate(vals), np.concatenate(record_keys), component)
            for component, (roots, vals, record_keys) in sorted(self._keyed.items(), key=lambda item: item[0] or "")
        ]
        return [*inits, *acks, *fails, *keyed]


def _append(columns: tuple[list[UInt64Array], list[UInt64Array]], roots: Ids, vals: Ids) -> None:
    for column, part in zip(columns, ids.to_pairs(roots, vals), strict=True):
        column.append(part)
