"""Updates of roots, collected and sent together: one update per root and flush."""

import secrets
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from acker_redis.acker import Acker, app_of
from acker_redis.errors import BadBatchError, ServerRefusesWritesError
from acker_redis.model.arrays import UInt64Array

_ROOTS_PER_DRAW = 32


class Verdict(NamedTuple):
    """Outcome of a root.

    Attributes:
        root: root, unsigned.
        is_acked: True for an ack.
        reason: text of the fail; empty for an ack.
        last_component: component that updated a failed root last; None if it is unknown.
    """

    root: int
    is_acked: bool
    reason: str
    last_component: str | None = None


class Parcel:
    """Updates that are sent together, under one idempotency key."""

    def __init__(self) -> None:
        self.key = f"topology:{secrets.token_hex(12)}"
        self.inits: dict[int, int] = {}
        self.acks: dict[int, int] = {}
        self.components: dict[int, str] = {}
        self.fails: dict[int, tuple[str, str | None]] = {}
        self.resets: set[int] = set()

    def __bool__(self) -> bool:
        """Return True if there is something to send."""
        return bool(self.inits or self.acks or self.fails or self.resets)


class Updates:
    """Inits, acks, fails and resets on their way to the ledger.

    Acks of a root are combined by XOR, and with its init if that is still here. So a tree that is done within one flush costs
    one init of value zero, which the ledger completes at once.

    Attributes:
        changes: number of updates so far.
    """

    def __init__(self, acker: Acker, spout_id: int) -> None:
        self.acker = acker
        self.spout_id = spout_id
        self.changes = 0
        self._lane = spout_id % acker.config.lanes
        self._consumer = f"spout-{spout_id}"
        self._roots: list[int] = []
        self._open = Parcel()
        self._unsent: list[Parcel] = []
        self._names: dict[str, str | None] = {}

    def new_root(self) -> int:
        """Draw a root, from a block of 32."""
        if not self._roots:
            self._roots = self.acker.new_roots(_ROOTS_PER_DRAW).view(np.uint64).tolist()[::-1]
        return self._roots.pop()

    def init(self, root: int, val: int) -> None:
        """Init a root."""
        self.changes += 1
        self._open.inits[root] = val

    def ack(self, root: int, val: int, component: str) -> None:
        """XOR a value into a root."""
        self.changes += 1
        parcel = self._open
        if root in parcel.inits:
            parcel.inits[root] ^= val
        else:
            parcel.acks[root] = parcel.acks.get(root, 0) ^ val
            parcel.components[root] = component

    def fail(self, root: int, reason: str, component: str | None) -> None:
        """Fail a root. The first reason counts."""
        self.changes += 1
        self._open.fails.setdefault(root, (reason, component))

    def reset_timeout(self, root: int) -> None:
        """Restart the timeout of a root."""
        self.changes += 1
        self._open.resets.add(root)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to send."""
        return not self._open and not self._unsent

    def send(self) -> None:
        """Send everything. After an error the rest is still here, and is sent again under its idempotency key.

        Raises:
            AckerError: as for `Acker.batch`.
        """
        if self._open:
            self._unsent.append(self._open)
            self._open = Parcel()
        kept, refused = [], None
        for number, parcel in enumerate(self._unsent):
            try:
                self._send(parcel)
            except ServerRefusesWritesError as exc:  # inits above a limit; later acks make room for them
                kept.append(parcel)
                refused = exc
            except BaseException:
                self._unsent = [*kept, *self._unsent[number:]]
                raise
        self._unsent = kept
        if refused is not None:
            raise refused

    def _send(self, parcel: Parcel) -> None:
        if parcel.resets:
            self.acker.reset_timeout_many(_array(parcel.resets))
            parcel.resets.clear()
        if not parcel:
            return
        acks: dict[str | None, list[int]] = defaultdict(list)
        for root, val in parcel.acks.items():
            if val and root not in parcel.fails:
                acks[self.name_of(parcel.components[root])].append(root)
        fails: dict[tuple[str, str | None], list[int]] = defaultdict(list)
        for root, (reason, component) in parcel.fails.items():
            fails[reason, self.name_of(component)].append(root)
        with self.acker.batch(idempotency_key=parcel.key) as batch:
            if parcel.inits:
                batch.init_many(_array(parcel.inits), _array(parcel.inits.values()), self.spout_id)
            for name, roots in acks.items():
                batch.ack_many(_array(roots), _array([parcel.acks[root] for root in roots]), component=name)
            for (reason, name), roots in fails.items():
                batch.fail_many(_array(roots), reason=reason, component=name)

    def name_of(self, component: str | None) -> str | None:
        """Return the name under which the ledger knows a component: at most 100 characters, and None beyond 255 names."""
        if component is None:
            return None
        if component not in self._names:
            name: str | None = component[:100]
            try:
                app_of(self.acker).ledger.component_number(name)
            except BadBatchError:
                name = None
            self._names[component] = name
        return self._names[component]

    def forget(self) -> None:
        """Drop everything, because the ledger was lost."""
        self._open, self._unsent = Parcel(), []
        self._roots.clear()

    def renew(self, roots: Iterable[int]) -> None:
        """Restart the timeouts of roots at once."""
        array = _array(list(roots))
        if len(array):
            self.acker.reset_timeout_many(array)

    def poll(self, max_outcomes: int = 100_000) -> list[Verdict]:
        """Receive the outcomes of this spout_id, and confirm them."""
        batches = self.acker.poll_batches(max_outcomes, consumer=self._consumer, lane=self._lane)
        own = [batch for batch in batches if batch.spout_id == self.spout_id]
        verdicts = [
            Verdict(root, batch.kind == "ack", batch.detail or batch.reason or "", batch.last_component)
            for batch in own
            for root in batch.roots.view(np.uint64).tolist()
        ]
        if own:
            self.acker.confirm_batches(own)
        return verdicts


def _array(values: Iterable[int]) -> UInt64Array:
    return np.fromiter(values, np.uint64)
