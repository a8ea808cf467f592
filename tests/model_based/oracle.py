"""A ledger of one app in plain Python, written from the design and not from the scripts.

It knows no Redis, no bytes and no time: a tick is a number, an outcome a tuple. `Oracle.send` is one batch, cut into one
call per update and shard, as idempotency keys are. Roots that are equal in their last 59 bits are a block: it has one
time, and what was acked is known as long as another root of the block is there.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Row = tuple[int, int]
"""A root and a value; a fail has no value and carries 0."""


class Update(NamedTuple):
    """Updates of one kind that are sent together: of one spout_id (init), of one component or none (ack, fail)."""

    operation: Literal["init", "ack", "fail"]
    rows: tuple[Row, ...]
    spout_id: int = 0
    component: str | None = None


class End(NamedTuple):
    """The outcome of one root."""

    kind: Literal["ack", "fail"]
    root: int
    spout_id: int
    reason: Literal["failed", "timeout"] | None
    last_component: str | None


class Sent(NamedTuple):
    """What a batch did: updates applied, calls whose idempotency key was seen, and those where it had other content."""

    applied: int
    seen: int
    reused: int


@dataclass
class Tree:
    """What is known of one root. `vals` keeps every value apart, to check completions by counting edges.

    A closed one failed and has its outcome; it stays until its time is over, and nothing changes it.
    """

    val: int = 0
    spout_id: int | None = None
    failed: bool = False
    closed: bool = False
    component: str | None = None
    vals: list[int] = field(default_factory=list)

    @property
    def state(self) -> str:
        """As `LedgerRoot.state` names it."""
        if self.closed:
            return "closed"
        if self.spout_id is not None:
            return "owned"
        return "failed" if self.failed else "waiting"


class Oracle:
    """One app.

    Attributes:
        ends: outcomes in the order they were written; the caller takes them away.
        trees: pending, waiting and closed roots.
        stats: the counters of the stats hash.
        completed: values of every tree that was reported acked.
    """

    def __init__(self, num_buckets: int, clock: str, shard_of: Callable[[int], int]) -> None:
        self._num_buckets, self._clock, self._shard_of = num_buckets, clock, shard_of
        self._idempotency_keys: dict[tuple[str, str, int, int], tuple[int, object]] = {}
        self.tick = 0
        self.trees: dict[int, Tree] = {}
        self.ends: list[End] = []
        self.stats: Counter[str] = Counter()
        self.completed: list[tuple[int, list[int]]] = []
        self._put_at: dict[int, int] = {}
        self._acked: dict[int, set[int]] = {}
        self._closing: set[int] = set()

    def send(self, updates: Iterable[Update], idempotency_key: str | None) -> Sent:
        """One batch. A call whose idempotency key lives in any dedup window of the ring changes nothing."""
        applied = seen = reused = 0
        for part, update in enumerate(updates):
            rows, repeats = _combined(update)
            for shard in sorted({self._shard_of(root) for root in rows}):
                own = {root: val for root, val in sorted(rows.items()) if self._shard_of(root) == shard}
                content = (own, update.spout_id, update.component, repeats)
                name = (idempotency_key or "", update.operation, part, shard)
                if idempotency_key is not None and name in self._idempotency_keys:
                    self.stats["deduplicated"] += 1
                    same = self._idempotency_keys[name][1] == content
                    seen, reused = seen + same, reused + (not same)
                else:
                    if idempotency_key is not None:
                        self._idempotency_keys[name] = (self.tick, content)
                    self.stats["duplicate_inits"] += repeats
                    applied += sum(self._apply(update, root, val) for root, val in own.items())
                    self._renew_closed()  # these behind all of them: a call changes a block once
                    self._forget_blocks()
                repeats = 0
        return Sent(applied, seen, reused)

    def reset_timeout(self, roots: Iterable[int]) -> int:
        """Move the blocks of known roots to the nursery; unknown ones stay unknown, closed ones where they are."""
        known = 0
        for root in set(roots):
            if root in self.trees and not self.trees[root].closed:
                self._put(root)
                known += 1
            else:
                self.stats["late_updates"] += 1
        return known

    def rotate(self) -> tuple[int, int]:
        """One tick; what was put num_buckets ticks ago expires. Returns timed out and orphaned."""
        self.tick += 1
        before = self.stats["timed_out"], self.stats["orphaned"]
        for root, tree in list(self.trees.items()):
            if self.tick - self.put_at(root) == self._num_buckets:
                if tree.closed:
                    del self.trees[root]
                    self.stats["closed"] -= 1
                elif tree.spout_id is None:
                    del self.trees[root]
                    self.stats["orphaned"] += 1
                else:
                    self._settle(root, tree.spout_id, "timeout")
        self._forget_blocks()
        oldest = self.tick - self._num_buckets
        self._idempotency_keys = {name: seen for name, seen in self._idempotency_keys.items() if seen[0] >= oldest}
        return self.stats["timed_out"] - before[0], self.stats["orphaned"] - before[1]

    def put_at(self, root: int) -> int:
        """The tick at which the root's block was put into the nursery last."""
        return self._put_at[_block(root)]

    def pending(self) -> int:
        """Owned roots without outcome."""
        return sum(tree.state == "owned" for tree in self.trees.values())

    def unowned(self) -> int:
        """Roots that wait for their init."""
        return sum(tree.spout_id is None for tree in self.trees.values())

    def _apply(self, update: Update, root: int, val: int) -> bool:
        """One update of one root; whether it was applied."""
        if root in self._acked.get(_block(root), ()):
            self.stats["duplicate_inits" if update.operation == "init" else "late_updates"] += 1
            return False
        new = root not in self.trees
        tree = self.trees.setdefault(root, Tree())
        if update.operation == "init" and tree.spout_id is not None:
            self.stats["duplicate_inits"] += 1
            return False
        if tree.closed:
            self.stats["late_updates"] += 1
            return False
        self.stats[update.operation + "s"] += 1
        others = [other for other in self.trees if other != root and _block(other) == _block(root)]
        hangs = any(self.trees[other].state == "owned" for other in others)  # they keep their timeout
        if new or (update.operation == "fail" and not hangs) or self._clock == "last_update":
            self._put(root)
        if update.operation == "init":
            tree.spout_id = update.spout_id
        if update.operation == "fail":
            tree.failed = True
        else:
            tree.val ^= val
            tree.vals.append(val)
        tree.component = update.component or tree.component
        if tree.spout_id is not None and tree.failed:
            self._settle(root, tree.spout_id, "failed")
        elif tree.spout_id is not None and tree.val == 0:
            self._settle(root, tree.spout_id, None)
        return True

    def _settle(self, root: int, spout_id: int, reason: Literal["failed", "timeout"] | None) -> None:
        tree = self.trees[root]
        if reason == "failed":
            tree.closed = True
            self._closing.add(root)
            self.stats["closed"] += 1
        else:
            del self.trees[root]
        self.ends.append(End("fail" if reason else "ack", root, spout_id, reason, tree.component))
        self.stats["timed_out" if reason == "timeout" else reason or "acked"] += 1
        if reason is None:
            self.completed.append((root, tree.vals))
            self._acked.setdefault(_block(root), set()).add(root)

    def _renew_closed(self) -> None:
        """Put the blocks of roots that a call closed, unless one that is owned at its end keeps its timeout."""
        for root in self._closing:
            others = (tree for other, tree in self.trees.items() if _block(other) == _block(root))
            if not any(one.state == "owned" for one in others):
                self._put(root)
        self._closing.clear()

    def _put(self, root: int) -> None:
        self._put_at[_block(root)] = self.tick

    def _forget_blocks(self) -> None:
        left = {_block(root) for root in self.trees}
        self._acked = {block: acked for block, acked in self._acked.items() if block in left}


def _block(root: int) -> int:
    return root % 2**59


def _combined(update: Update) -> tuple[dict[int, int], int]:
    """Each root once: of inits the first counts and the others are repeats, acks are combined by XOR."""
    rows: dict[int, int] = {}
    repeats = 0
    for root, val in update.rows:
        if update.operation == "ack":
            rows[root] = rows.get(root, 0) ^ val
        elif root not in rows:
            rows[root] = val
        else:
            repeats += update.operation == "init"
    return rows, repeats
