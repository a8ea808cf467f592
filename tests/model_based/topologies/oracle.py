"""The trees of a run, counted by what its spouts and bolts did and saw. Nothing here knows how the product tracks them."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


class Wrong(BaseException):
    """The run did what no run of Storm may do. No bolt's exception: those only fail their tuples."""


@dataclass(eq=False)
class Root:
    """One emission of a message with an id."""

    task: int
    key: str
    """Text of the id, as ids may be of any type."""
    born: float
    renewed: float
    open: int = 0
    failed: bool = False
    outcome: str | None = None

    @property
    def complete(self) -> bool:
        return self.open == 0 and not self.failed


@dataclass(eq=False)
class Copy:
    """One tuple at one task."""

    serial: int
    task: int
    roots: list[Root]
    """One entry per edge's root; a copy has one edge for each of its roots."""
    done: str | None = None


@dataclass
class Oracle:
    """Counts the open edges of each root."""

    timeout_secs: float
    """Least age of a message that times out."""
    is_real_time: bool = False
    """True if a message may time out while its ack is on its way, as in Storm."""
    may_lose: bool = False
    """True if the ledger may lose its roots."""
    now: float = 0.0
    """Time of a simulated run."""
    roots: list[Root] = field(default_factory=list)
    waiting: dict[tuple[int, int], deque[Copy]] = field(default_factory=lambda: defaultdict(deque))
    """Copies on their way, by (serial, task)."""
    order: dict[tuple[int, int], deque[int]] = field(default_factory=lambda: defaultdict(deque))
    """Serials on their way, by (from, to)."""
    ids_seen: dict[int, set[Any]] = field(default_factory=lambda: defaultdict(set))
    counts: Counter[str] = field(default_factory=Counter)
    """How often what happened: shows that a run had something of everything."""

    # -- what components did

    def spout_emitted(self, task: int, serial: int, tup_id: Any, targets: list[int]) -> None:
        roots = []
        if tup_id is not None:
            root = Root(task, repr(tup_id), self.now, self.now)
            self.roots.append(root)
            roots.append(root)
        self._send(task, serial, roots, targets)
        self.counts["tracked" if roots else "untracked"] += 1

    def bolt_emitted(self, task: int, serial: int, anchors: list[Copy], targets: list[int]) -> None:
        for anchor in anchors:
            if anchor.done == "ack":
                raise Wrong(f"an emit anchored to tuple {anchor.serial}, which was acked, was accepted")
        roots = list({id(root): root for anchor in anchors for root in anchor.roots}.values())
        self._send(task, serial, roots, targets)
        self.counts["unanchored" if not anchors else "multi-anchored" if len(anchors) > 1 else "anchored"] += 1

    def _send(self, task: int, serial: int, roots: list[Root], targets: list[int]) -> None:
        for target in targets:
            self.waiting[serial, target].append(Copy(serial, target, roots))
            self.order[task, target].append(serial)
            for root in roots:
                root.open += 1

    def received(self, task: int, source: int, serial: int, tuple_id: Any) -> Copy:
        if not self.waiting[serial, task]:
            raise Wrong(f"task {task} received tuple {serial}, which nobody sent there, or which it had before")
        if self.order[source, task].popleft() != serial:
            raise Wrong(f"task {task} received tuple {serial} of task {source} out of order")
        if tuple_id in self.ids_seen[task]:
            raise Wrong(f"task {task} has two tuples with the id {tuple_id}")
        self.ids_seen[task].add(tuple_id)
        self.counts["received"] += 1
        return self.waiting[serial, task].popleft()

    def acked(self, copy: Copy) -> None:
        if copy.done is None:
            copy.done = "ack"
            for root in copy.roots:
                root.open -= 1

    def failed(self, copy: Copy) -> None:
        if copy.done is None:
            copy.done = "fail"
            for root in copy.roots:
                root.failed = True
            self.counts["failed tuples"] += 1

    def abandoned(self, copies: Iterable[Copy]) -> None:
        """A batching bolt whose fresh copy took its place fails what it held."""
        for copy in copies:
            self.failed(copy)

    def renewed(self, copy: Copy) -> None:
        for root in copy.roots:
            root.renewed = self.now

    # -- what spouts heard

    def spout_acked(self, task: int, tup_id: Any) -> None:
        pending = self._pending(task, tup_id, "acked")
        complete = [root for root in pending if root.complete]
        if not complete:
            raise Wrong(f"message {tup_id!r} was acked with {[root.open for root in pending]} tuples open: a false ack")
        complete[0].outcome = "ack"
        self.counts["acks"] += 1

    def spout_failed(self, task: int, tup_id: Any, reason: str) -> None:
        pending = self._pending(task, tup_id, "failed")
        if reason == "lost" and self.may_lose:
            old = pending
        elif reason == "timeout":
            old = [
                root
                for root in pending
                if self.is_real_time or (self.now - root.renewed >= self.timeout_secs and not root.complete)
            ]
        else:
            old = [root for root in pending if root.failed]
        if not old:
            raise Wrong(f"message {tup_id!r} failed ({reason}), although none of its tuples did")
        min(old, key=lambda root: root.renewed).outcome = "fail"  # of one id, the oldest times out first
        self.counts["timeouts" if reason == "timeout" else "fails"] += 1
        self.counts["lost"] += reason == "lost"

    def _pending(self, task: int, tup_id: Any, what: str) -> list[Root]:
        mine = [r for r in self.roots if r.task == task and r.key == repr(tup_id) and r.outcome is None]
        if not mine:
            raise Wrong(f"message {tup_id!r} was {what} at task {task}, where none of that id is pending")
        return mine

    # -- when the run has settled

    def check_settled(self, pending: list[Any]) -> None:
        """Every tuple arrived, every settled tree has its outcome, and nothing else has one."""
        lost = [key for key, copies in self.waiting.items() if copies]
        if lost:
            raise Wrong(f"tuples (serial, task) {lost[:5]} never arrived")
        for root in self.roots:
            if root.outcome is None and root.complete:
                raise Wrong(f"message {root.key} is complete, and was not acked")
            if root.outcome is None and root.failed:
                raise Wrong(f"message {root.key} failed, and its spout was not told")
            if root.outcome is None and self.now - root.renewed > 2 * self.timeout_secs:
                raise Wrong(f"message {root.key} is {self.now - root.renewed} s old, and did not time out")
        mine = Counter(root.key for root in self.roots if root.outcome is None)
        if Counter(repr(tup_id) for tup_id in pending) != mine:
            raise Wrong(f"the run has {pending} pending, and the trees of {dict(mine)} are open")
