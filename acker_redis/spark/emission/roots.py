"""The roots of one emission: initialised while its job runs, then renewed, and closed once the pipeline is proven.

The driver sends all of it. If the driver dies, its roots are never acked and time out.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing.pool import ThreadPool
from types import TracebackType
from typing import Self

import numpy as np

from acker_redis.errors import AckerError, LedgerLostError, NotExactError, PendingLimitError, ServerUnavailableError
from acker_redis.model import ids
from acker_redis.model.arrays import Int64Array, UInt64Array
from acker_redis.model.blocks import Index
from acker_redis.model.roots import SLOT_BITS, root_salt
from acker_redis.model.xxhash64 import hash_longs, hash_salt
from acker_redis.spark.proof.received_failures import cause_of
from acker_redis.spark.protocol import shares
from acker_redis.spark.worker.failures import REASON_CHARS, Failure
from acker_redis.spout.in_flight import Emission, Rows
from acker_redis.spout.spout import Spout

log = logging.getLogger("acker_redis.spark")

_FEW_PER_BLOCK, _MIN_MESSAGES = 8, 1000
"""Roots per block below which ids count as sparse, and the smallest emission that is judged."""

_warned_apps: set[str] = set()
"""Apps for which this process has logged sparse ids."""

PART = 65_536
"""Roots per call, so that a million roots don't fill the memory with packed calls."""

HELD = "Held back. The message succeeded and waits until the whole output is written."
"""Reason for roots that fail because the output of their emission can't be written yet."""

_SENDERS = 2
"""Sending threads: one packs its part while the server processes the other's."""


def salts(app: str, run_id: str, number: int) -> tuple[str, str]:
    """Derive the salts of an emission: for its roots, and for its shares."""
    return root_salt(app, run_id, number), ids.derive_salt("share", app, run_id, number)


def shares_of(salt: str, emission: Emission) -> Int64Array:
    """Compute the shares of an emission's messages, as `tracking.tracked` does."""
    hashed = hash_longs(np.ascontiguousarray(emission.message_ids).view(np.uint64), seed=hash_salt(salt))
    return (np.asarray(hashed) & np.uint64(shares.MASK)).view(np.int64)


class EmissionRoots:
    """Context manager that keeps the roots of one emission in the ledger.

    Leaving it waits for calls that are being sent.
    """

    def __init__(self, spout: Spout, emission: Emission, own: Int64Array) -> None:
        """Prepare the roots without sending them.

        Args:
            spout: spout of the run, which owns the roots.
            emission: emission with the roots.
            own: share of each root; it becomes the root's ack val while the job runs.
        """
        self._spout, self._acker = spout, spout.acker
        order = _by_block(emission)
        _warn_about_sparse_ids(spout.acker.config.app, emission.message_ids[order])
        self._roots = emission.roots[order]
        self._own = own[order].view(np.uint64)
        self._idempotency_key = f"{spout.run_id}:{emission.number}"
        self._stop = threading.Event()
        self._initialised = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._keep, name="acker-roots", daemon=True)

    def __enter__(self) -> Self:
        """Start initialising the roots, and then renewing them."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop renewing. If the pipeline raised, fail its roots at once instead of letting them time out.

        If the app's pending limit refused some roots, those it accepted fail too, without counting an attempt: they
        would block the others.
        """
        self._stop.set()
        self._thread.join()
        is_refused = isinstance(error, PendingLimitError)
        if is_refused:
            self._spout.marks.exempt(self._roots)
        if isinstance(error, Exception) and (is_refused or not isinstance(error, ServerUnavailableError)):
            try:
                self._send("fail", partial(self._fail, cause_of(error).text, None))
            except AckerError as exc:
                log.warning(
                    "could not fail the messages of a failed emission, so they will time out run_id=%s error=%s",
                    self._spout.run_id, exc,
                )  # fmt: skip

    def complete(self, failed: Iterable[Failure]) -> None:
        """Fail the roots of failed rows, and ack the others.

        Raises:
            NotExactError: a failure names a root of another emission, or a failed row names none.
            AckerError: the roots could not be initialised, or the server is unreachable.
        """
        rows = self._fail_roots_of(failed)
        self._send("ack", self._ack, rows)

    def release(self, failed: Iterable[Failure], delay_secs: float = 0.0) -> None:
        """Fail the roots of failed rows, and hold the others, which fail too; see `Marks.hold`.

        Raises:
            AckerError: as `complete`.
        """
        rows = self._fail_roots_of(failed)
        held = self._roots if rows is None else self._roots[rows]
        self._spout.marks.hold(held, delay_secs)
        self._send("release", partial(self._fail, HELD, None), rows)

    def _fail_roots_of(self, failed: Iterable[Failure]) -> Int64Array | None:
        """Fail the roots of failed rows. Return the positions of the others; None: all roots."""
        failed = list(failed)
        index = Index(self._roots[: None if failed else 0].view(np.uint64))
        for failure in failed:
            places = [index.rows_of(np.frombuffer(packed, np.uint64)) for packed in failure.reasons.values()]
            foreign = sum(int(np.count_nonzero(rows < 0)) for rows in places)
            if foreign or failure.rootless:
                raise NotExactError(
                    f"{failure.rows:,} rows failed in {failure.component!r}, but {failure.rootless:,} of them name no "
                    f"message, and {foreign:,} messages they name are not part of this emission. The failed messages are "
                    "unknown, so nothing was acked. Keep the column _roots as it is, also in rows that you unite with others."
                )
        self._initialised.wait()
        if self._error is not None:
            raise self._error
        is_open = np.ones(len(self._roots), np.bool_)
        by_reason = [
            (reason, failure.component, f"fail:{failure.number}:{number}", packed)
            for failure in failed
            for number, (reason, packed) in enumerate(failure.reasons.items())
        ]
        by_reason.sort(key=lambda entry: entry[0].retry)  # failures without retry decide
        for reason, component, idempotency_key, packed in by_reason:
            rows = index.rows_of(np.frombuffer(packed, np.uint64))
            rows = rows[is_open[rows]]
            if len(rows):
                is_open[rows] = False
                if not reason.retry:
                    self._spout.marks.non_retryable(self._roots[rows])
                self._send(idempotency_key, partial(self._fail, reason.text, component), rows)
        return np.flatnonzero(is_open) if by_reason else None

    def _keep(self) -> None:
        """Initialise the roots, then renew them until the emission ends."""
        try:
            self._send("init", self._init)
        except BaseException as exc:
            self._error = exc
            return
        finally:
            self._initialised.set()
        while not self._stop.wait(self._acker.config.message_timeout_secs / 2):
            try:
                self._send("renew", self._renew)
            except AckerError as exc:
                log.warning(
                    "could not renew the messages of an emission, so they may time out run_id=%s error=%s",
                    self._spout.run_id, exc,
                )  # fmt: skip

    def _send(self, name: str, do: Callable[[Rows, str], object], rows: Int64Array | None = None) -> None:
        """Send an update of the roots, or of some, in parts.

        A part is sent again if the ledger was lost. Once a part fails, the parts after it are skipped. The update's name
        is part of its idempotency keys.
        """
        count = len(self._roots if rows is None else rows)
        broken = threading.Event()

        def send(at: int) -> None:
            if broken.is_set():
                return
            part = slice(at, min(at + PART, count)) if rows is None else rows[at : at + PART]
            idempotency_key = f"{self._idempotency_key}:{name}:{at}"
            try:
                self._send_part(partial(do, part, idempotency_key))
            except BaseException:
                broken.set()
                raise

        parts = range(0, count, PART)
        if len(parts) < 2:
            for at in parts:
                send(at)
            return
        with ThreadPool(_SENDERS) as pool:  # of daemons: a silent server doesn't hold up a process that ends
            pool.map(send, parts, chunksize=1)

    def _send_part(self, do: Callable[[], object]) -> None:
        try:
            do()
        except LedgerLostError:
            # The spout notices the loss itself and emits again, so nothing waits for these roots any more.
            self._acker.recover()
            do()

    def _vals(self, rows: Rows) -> UInt64Array:
        """Compute ack vals for the time the job runs: the shares plus one more bit, so that none is zero."""
        return self._own[rows] | np.uint64(1 << shares.BITS)

    def _init(self, rows: Rows, idempotency_key: str) -> None:
        self._acker.init_many(
            self._roots[rows], self._vals(rows), self._spout.spout_id, idempotency_key=idempotency_key
        )

    def _ack(self, rows: Rows, idempotency_key: str) -> None:
        self._acker.ack_many(self._roots[rows], self._vals(rows), idempotency_key=idempotency_key)

    def _fail(self, reason: str, component: str | None, rows: Rows, idempotency_key: str) -> None:
        self._acker.fail_many(
            self._roots[rows],
            idempotency_key=idempotency_key,
            reason=reason[:REASON_CHARS].encode(errors="replace").decode(),
            component=component,
        )

    def _renew(self, rows: Rows, idempotency_key: str) -> None:  # noqa: ARG002
        self._acker.reset_timeout_many(self._roots[rows])


def _by_block(emission: Emission) -> Int64Array | slice:
    """Order roots by message id, so that one call has all roots of a block."""
    ids_in_order = bool((emission.message_ids[1:] > emission.message_ids[:-1]).all())
    return slice(None) if ids_in_order else np.argsort(emission.message_ids, kind="stable")  # merges ordered runs


def _warn_about_sparse_ids(app: str, message_ids: Int64Array) -> None:
    """Log once per app if few roots share a block. `message_ids` must be sorted."""
    if len(message_ids) < _MIN_MESSAGES or app in _warned_apps:
        return
    places = message_ids >> SLOT_BITS
    count = 1 + int(np.count_nonzero(places[1:] != places[:-1]))
    if len(message_ids) < _FEW_PER_BLOCK * count:
        _warned_apps.add(app)
        log.warning(
            "message ids are sparse, which takes up to ten times the memory of sequential ids (offsets, row numbers) "
            "app=%s messages_per_block=%.1f max_per_block=32", app, len(message_ids) / count,
        )  # fmt: skip
