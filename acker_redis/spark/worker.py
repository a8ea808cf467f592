"""What runs in a Python worker: one acker per process, updates sent once per partition under a stable token."""

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from acker_redis import ids
from acker_redis.acker import Acker
from acker_redis.config import AckerConfig
from acker_redis.errors import BadBatchError, ConnectionLostError, LedgerLostError, NotExactError, TokenReusedError
from acker_redis.ids import UInt64Array
from acker_redis.ledger import Ledger, Part, Update

log = logging.getLogger("acker_redis.spark")

COMPACT_ROWS = 500_000
"""Acks kept before equal roots are combined: bounds the memory of a partition by its distinct roots."""

NOT_DETERMINISTIC = "ran again and gave other rows: the function is not deterministic"

_ackers: dict[tuple[str, AckerConfig], Acker] = {}


def acker_of_worker(url: str, config: AckerConfig) -> Acker:
    """This process's acker; made at first use, kept over tasks. Spark forks its workers before this module is imported."""
    acker = _ackers.get((url, config))
    if acker is None:
        try:
            acker = _ackers[url, config] = Acker.connect(url, config)
        except ConnectionLostError as exc:
            raise ConnectionLostError(
                f"a Python worker of Spark: {exc}. Is `url` the server as executors reach it?"
            ) from exc
    return acker


@dataclass
class Updates:
    """The updates of one partition of one operator; `send` sends those of operators that ran together."""

    url: str = field(repr=False)  # may hold a password
    config: AckerConfig
    stage: str
    token: str
    folds: bool = True
    _inits: list[tuple[int, UInt64Array, UInt64Array]] = field(default_factory=list)
    _ack_roots: list[UInt64Array] = field(default_factory=list)
    _ack_vals: list[UInt64Array] = field(default_factory=list)
    _fails: dict[str, list[UInt64Array]] = field(default_factory=dict)
    _rows: int = 0
    _distinct: int = 0

    def init(self, task: int, roots: UInt64Array, vals: UInt64Array) -> None:
        """Roots of a spout task."""
        self._inits.append((task, roots, vals))

    def ack(self, roots: UInt64Array, vals: UInt64Array) -> None:
        """Edges consumed or produced; an ack is the XOR of both."""
        roots, vals = ids.xor_runs(roots, vals)
        self._ack_roots.append(roots)
        self._ack_vals.append(vals)
        self._rows += len(roots)
        if self._rows >= max(COMPACT_ROWS, self._distinct):
            combined = ids.xor_by_root(np.concatenate(self._ack_roots), np.concatenate(self._ack_vals))
            self._ack_roots, self._ack_vals, self._rows = [combined[0]], [combined[1]], 0
            self._distinct = len(combined[0])

    def fail(self, roots: UInt64Array, reason: str) -> None:
        """Roots of rows that failed."""
        self._fails.setdefault(_encodable(reason), []).append(roots)

    def fail_instead(self, reason: str) -> None:
        """Fail what was to be acked."""
        self._fails.setdefault(_encodable(reason), []).extend(self._ack_roots)
        self._ack_roots, self._ack_vals, self._rows, self._distinct = [], [], 0, 0

    def update(self, ledger: Ledger) -> Update | None:
        """The init or the acks, combined per root; None if there are none."""
        if self._inits:
            task = self._inits[0][0]
            roots = _joined([init_roots for _, init_roots, _ in self._inits])
            update = ledger.init(roots, _joined([vals for _, _, vals in self._inits]), task)
            if update.repeats:  # early enough: nobody acks a row of this task before its updates went out
                raise BadBatchError(
                    f"spout {self.stage!r}: {update.repeats} message ids stand more than once in one emission; each row "
                    "needs an id of its own"
                )
            return update
        return ledger.ack(_joined(self._ack_roots), _joined(self._ack_vals), self.stage) if self._ack_roots else None

    def fail_all(self, acker: Acker) -> None:
        """Fail the rows that failed."""
        for reason, fails in sorted(self._fails.items()):
            acker.fail_many(_joined(fails), f"{self.token}:{reason}", reason, self.stage)

    def roots(self) -> UInt64Array:
        """Every root these updates are about."""
        return _joined(
            [*(init[1] for init in self._inits), *self._ack_roots, *(r for rs in self._fails.values() for r in rs)]
        )


@dataclass
class Handed:
    """The roots of rows handed on, each about once; bounded by the partition's distinct roots."""

    _parts: list[UInt64Array] = field(default_factory=list)
    _rows: int = 0
    _distinct: int = 0

    def add(self, roots: UInt64Array) -> None:
        """Roots of one batch, with repeats; children of one row stand side by side, so most repeats are cheap to leave out."""
        if len(roots):
            roots = roots[np.concatenate([[True], roots[1:] != roots[:-1]])]
        self._parts.append(roots)
        self._rows += len(roots)
        if self._rows >= max(COMPACT_ROWS, 2 * self._distinct):
            self._parts = [self.roots()]
            self._rows = self._distinct = len(self._parts[0])

    def roots(self) -> UInt64Array:
        """Distinct."""
        return np.unique(_joined(self._parts))


def send(sent: Sequence[Updates], handed: Handed) -> int:
    """Send the updates of operators that ran together on one partition; returns the ledger updates applied.

    Called once, after the partition was consumed to its end. A task that ends earlier (an error, a worker's death,
    limit/take) sends nothing; one that runs again sends the same under the same tokens, which changes nothing.

    Raises:
        NotExactError: the task ran before and gave other updates, and rows handed on now belong to trees that settled
            without them; or its tokens belong to other rows.
    """
    acker = acker_of_worker(sent[0].url, sent[0].config)
    try:
        return _send(acker, sent, handed)
    except LedgerLostError:
        # The spout learns of the loss by itself and replays; these updates then wait for no one and expire.
        acker.recover()
        return _send(acker, sent, handed)


def _send(acker: Acker, sent: Sequence[Updates], handed: Handed) -> int:
    made = [(updates, updates.update(acker.ledger)) for updates in sent]
    parts = [
        (updates, Part(updates.token, update)) for updates, update in made if update is not None and len(update.roots)
    ]
    together = [part for updates, part in parts if updates.folds]
    alone = [[part] for updates, part in parts if not updates.folds]
    applied, reused = 0, None
    for group in [*alone, together]:
        try:
            applied += acker.ledger.send_folded(group).applied if group else 0
        except TokenReusedError as exc:
            reused = exc
    for updates in sent:
        try:
            updates.fail_all(acker)
        except TokenReusedError as exc:
            reused = exc
    if reused is not None:
        _check_inits(acker, together)
        _fail_reused(acker, sent, handed, reused)
    return applied


def _check_inits(acker: Acker, parts: Sequence[Part]) -> None:
    """Inits under a token that other rows have were left out: nobody would ever hear of these roots."""
    inits = [part for part in parts if part.update.operation == "init"]
    try:
        for part in inits:
            acker.ledger.send([part.update], part.token)
    except TokenReusedError as exc:
        raise NotExactError(
            f"the roots of {part.token!r} were never initialised: {exc}. Give each emission a number of its own and each "
            "operator a name of its own, and let a source give the same rows when it is read again"
        ) from exc


def _fail_reused(acker: Acker, sent: Sequence[Updates], handed: Handed, reused: TokenReusedError) -> None:
    """The task ran before and gave other updates: its function is not deterministic.

    The rows handed on now are not those the ledger knows of, so these trees could complete without them: fail them, before
    anybody acks. A tree that completed can't be failed any more; if rows of it are handed on now, the task must not end well.
    One that has failed already is replayed anyway.
    """
    rows = handed.roots()
    roots = np.unique(_joined([rows, *(updates.roots() for updates in sent)]))
    states = _states(acker, roots)
    settled = len(rows) - int(np.isin(rows, roots[np.isin(states, ("owned", "closed"))]).sum())
    if not settled:
        pending = roots[states == "owned"]
        if len(pending):
            token = f"{sent[-1].token}:again:{secrets.token_hex(8)}"
            acker.fail_many(pending, token, NOT_DETERMINISTIC, sent[-1].stage)
        # What settled after it was looked at had no owner any more to be failed: the fail stands there and waits for one.
        settled = int((_states(acker, rows) != "closed").sum())
    if settled:
        raise NotExactError(
            f"{settled} of {len(rows)} roots had settled before their task ran again and gave other rows: {reused}. Make "
            "functions deterministic, give each emission a number of its own and each operator a name of its own"
        ) from reused
    log.warning("%s. The roots are failed, to be replayed; make the function deterministic", reused)


def _states(acker: Acker, roots: UInt64Array) -> npt.NDArray[np.str_]:
    records = acker.inspect_many(roots) if len(roots) else []
    return np.array(["" if record is None else record.state for record in records], np.str_)


def _encodable(reason: str) -> str:
    """A text of the user's may hold halves of surrogate pairs, which UTF-8 can't."""
    return reason.encode(errors="replace").decode()


def _joined(parts: Sequence[UInt64Array]) -> UInt64Array:
    return np.concatenate(parts) if parts else np.array([], np.uint64)
