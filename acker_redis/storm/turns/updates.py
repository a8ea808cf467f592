"""Updates of roots that a turn's tasks make, binned by block, and sent by one task per bin under a claim."""

import pickle
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from acker_redis.acker import Acker
from acker_redis.model import ids
from acker_redis.model.arrays import UInt64Array
from acker_redis.storm.turns.plan import Plan

REASON_CHARS = 1000
"""Longest reason of a fail, in characters."""

_FEW = 10_000
_NONE = np.array([], np.uint64)
_BLOCK = np.uint64((1 << 59) - 1)


class Fail(NamedTuple):
    """Fail of a root. The least of several counts, so that it doesn't depend on the order of tasks.

    Attributes:
        rank: rank of the component that failed it.
        reason: text.
        retry: False if the message must not be tried again.
        is_expected: False if the bolt doesn't declare the exception that caused it.
    """

    rank: int
    reason: str
    retry: bool
    is_expected: bool


class Bin(NamedTuple):
    """Updates of some roots: one value per root.

    Attributes:
        roots: roots that are acked, sorted.
        vals: value of each, by XOR.
        ranks: rank of the last component that acked each.
        fails: root -> fail.
    """

    roots: UInt64Array
    vals: UInt64Array
    ranks: Any
    fails: dict[int, Fail]

    def to_bytes(self) -> bytes:
        """Serialise the updates."""
        parts = (self.roots.tobytes(), self.vals.tobytes(), self.ranks.tobytes(), sorted(self.fails.items()))
        return pickle.dumps(parts, 5)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Bin":
        """Read serialised updates, made by `to_bytes` of another task of the run."""
        roots, vals, ranks, fails = pickle.loads(data)  # noqa: S301
        return cls(
            np.frombuffer(roots, np.uint64),
            np.frombuffer(vals, np.uint64),
            np.frombuffer(ranks, np.uint16),
            {root: Fail(*fail) for root, fail in fails},
        )

    @classmethod
    def merged(cls, parts: Iterable["Bin"]) -> "Bin":
        """Combine updates. Failed roots are not acked."""
        listed = list(parts)
        fails: dict[int, Fail] = {}
        for part in listed:
            for root, fail in part.fails.items():
                fails[root] = min(fail, fails.get(root, fail))
        roots, vals, ranks = (
            np.concatenate([np.array([], kind), *(part[place] for part in listed)])
            for place, kind in enumerate((np.uint64, np.uint64, np.uint16))
        )
        if fails:
            acked = ~np.isin(roots, np.fromiter(fails, np.uint64, len(fails)))
            roots, vals, ranks = roots[acked], vals[acked], ranks[acked]
        if len(roots):
            order = np.argsort(roots)
            roots, vals, ranks = roots[order], vals[order], ranks[order]
            starts = np.flatnonzero(np.concatenate(([True], roots[1:] != roots[:-1])))
            vals, ranks = np.bitwise_xor.reduceat(vals, starts), np.maximum.reduceat(ranks, starts)
            roots = roots[starts]
        return cls(roots, vals, ranks, fails)

    def digest(self) -> bytes:
        """Hash the updates."""
        return blake2b(self.to_bytes(), digest_size=16).digest()

    def send(self, acker: Acker, plan: Plan, idempotency_key: str) -> None:
        """Send one update per root. Sending them again under the same key changes nothing."""
        names = [plan.ledger_names.get(name) for name in plan.component_names]
        by_fail: dict[tuple[str, str | None], list[int]] = defaultdict(list)
        for root, fail in self.fails.items():
            by_fail[fail.reason, names[fail.rank]].append(root)
        useful = self.vals != 0
        with acker.batch(idempotency_key=idempotency_key) as batch:
            for rank in np.unique(self.ranks[useful]).tolist():
                of = useful & (self.ranks == rank)
                batch.ack_many(self.roots[of], self.vals[of], component=names[rank])
            for (reason, name), roots in sorted(by_fail.items(), key=repr):
                batch.fail_many(np.array(sorted(roots), np.uint64), reason=reason, component=name)


class Updates:
    """Updates that one task collects."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._acks: dict[str, list[dict[int, int]]] = defaultdict(list)
        self._many: list[Bin] = []
        self._fails: dict[int, Fail] = {}

    def ack(self, edges: dict[int, int], component: str) -> None:
        """XOR a value into each root. The values are final."""
        acks = self._acks[component]
        acks.append(edges)
        if len(acks) >= _FEW:
            self._gather()

    def ack_tuples(self, edges: list[dict[int, int]], component: str) -> None:
        """Ack tuples: XOR the edges of each."""
        acks = self._acks[component]
        acks += edges
        if len(acks) >= _FEW:
            self._gather()

    def _gather(self) -> None:
        """Turn acks into arrays, which need less memory."""
        for component, acks in self._acks.items():
            roots, vals = array("Q", chain.from_iterable(acks)), array("Q", chain.from_iterable(map(dict.values, acks)))
            self.ack_many(np.frombuffer(roots, np.uint64), np.frombuffer(vals, np.uint64), component)
            acks.clear()

    def ack_many(self, roots: UInt64Array, vals: UInt64Array, component: str) -> None:
        """XOR a value into each root. A root may occur several times."""
        self._many.append(Bin(roots, vals, np.full(len(roots), self._plan.ranks[component], np.uint16), {}))

    def add_edges(self, roots: UInt64Array, edges: UInt64Array) -> None:
        """XOR the edges of new tuples into their roots. They are no acks, so they have the rank of a spout."""
        self._many.append(Bin(roots, edges, np.zeros(len(roots), np.uint16), {}))

    def fail(self, root: int, reason: str, component: str, *, retry: bool, is_expected: bool) -> None:
        """Fail a root."""
        fail = Fail(self._plan.ranks[component], reason[:REASON_CHARS], retry, is_expected)
        self._fails[root] = min(fail, self._fails.get(root, fail))

    def bins(self) -> Iterator[tuple[int, Bin]]:
        """Yield the number of each bin that has updates, and these."""
        count = len(self._plan.keys)
        self._gather()
        whole = Bin.merged([*self._many, Bin(_NONE, _NONE, np.array([], np.uint16), self._fails)])
        of_root = bin_numbers(whole.roots, count)
        failed = np.fromiter(whole.fails, np.uint64, len(whole.fails))
        of_failed = dict(zip(failed.tolist(), bin_numbers(failed, count).tolist(), strict=True))
        for number in range(count):
            own = of_root == number
            fails = {root: fail for root, fail in whole.fails.items() if of_failed[root] == number}
            if own.any() or fails:
                yield number, Bin(whole.roots[own], whole.vals[own], whole.ranks[own], fails)


def bin_numbers(roots: UInt64Array, count: int) -> Any:
    """Compute the bin of each root: roots of one block are in one bin."""
    return (ids.mix64(roots & _BLOCK) >> np.uint64(32)) % np.uint64(count)
