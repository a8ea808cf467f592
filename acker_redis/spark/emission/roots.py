"""The roots of one emission: initialised while its job runs, then renewed, and closed once the pipeline is proven.

Roots that become known only after the job are initialised and closed in one call. The driver sends all of it. If the driver
dies, its roots are never acked and time out.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from multiprocessing.pool import ThreadPool
from types import TracebackType
from typing import Self, TypeVar

import numpy as np

from acker_redis.acker import app_of
from acker_redis.errors import (
    AckerError,
    InexactPipelineError,
    LedgerLostError,
    PendingLimitError,
    ServerUnavailableError,
)
from acker_redis.model import ids
from acker_redis.model.arrays import Int64Array, UInt64Array
from acker_redis.model.blocks import Index
from acker_redis.model.roots import SLOT_BITS, root_salt
from acker_redis.model.xxhash64 import hash_longs, hash_salt
from acker_redis.spark.proof.blame import cause_of, place_of
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

UNREPORTED = (
    "Given back. So many rows failed that Spark can't report all of them, and this message may be one of those."
)
"""Reason for roots that fail because it is unknown whether their rows failed."""

HELD = "Held back. The message succeeded and waits until the whole output is written."
"""Reason for roots that fail because the output of their emission can't be written yet."""

_T = TypeVar("_T")

_SENDERS = 2
"""Sending threads: one packs its part while the server processes the other's."""


def salts(app: str, run_id: str, number: int, repeat: int = 0) -> tuple[str, str]:
    """Derive the salts of an emission: for its roots, and for its shares, which differ when its pipeline is run again."""
    return root_salt(app, run_id, number), ids.derive_salt("share", app, run_id, number, *([repeat] if repeat else []))


def shares_of(salt: str, emission: Emission) -> Int64Array:
    """Compute the shares of an emission's messages, as `tracking.tracked` does."""
    return shares_of_ids(salt, emission.message_ids)


def shares_of_ids(salt: str, message_ids: Int64Array) -> Int64Array:
    """Compute the shares of messages, as `tracking.tracked` does."""
    hashed = hash_longs(np.ascontiguousarray(message_ids).view(np.uint64), seed=hash_salt(salt))
    return (np.asarray(hashed) & np.uint64(shares.MASK)).view(np.int64)


def counts_of(spout: Spout) -> dict[str, int]:
    """Return the counts of a spout that jobs have as properties."""
    return {"pending": spout.pending, "left": spout.state.left, **asdict(spout.counts)}


class EmissionRoots:
    """Context manager that keeps the roots of one emission in the ledger.

    Leaving it waits for calls that are being sent.

    Attributes:
        emission: emission with the roots.
    """

    def __init__(
        self,
        spout: Spout,
        emission: Emission,
        own: Int64Array,
        *,
        begun_at: float | None = None,
        known_from_job: bool = False,
        part: str = "",
    ) -> None:
        """Prepare the roots without sending them.

        Args:
            spout: spout of the run, which owns the roots.
            emission: emission with the roots.
            own: share of each root; it becomes the root's ack val while the job runs.
            begun_at: time at which the emission began, as `time.monotonic`, if its messages became known later. The age of
                the roots counts from it. None: now.
            known_from_job: whether a job that is over told which messages there are. Such roots wait for `complete`.
            part: name of these messages if they are a part of the emission, whose other roots are kept apart.
        """
        self._begun_at, self._known_from_job = begun_at, known_from_job
        self._has_begun, self._age_ms = False, 0
        self.emission = emission
        self._spout, self._acker = spout, spout.acker
        order = _by_block(emission)
        _warn_about_sparse_ids(spout.acker.config.app, emission.message_ids[order])
        self._roots = emission.roots[order]
        self._own = own[order].view(np.uint64)
        self._idempotency_key = f"{spout.run_id}:{emission.number}{part and f':{part}'}"
        self._stop = threading.Event()
        self._initialised = threading.Event()
        self._beginning = threading.Lock()  # sinks may run in several threads
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._keep, name="acker-roots", daemon=True)

    def __enter__(self) -> Self:
        """Start initialising the roots, and then renewing them."""
        if not self._known_from_job:
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
        if not self._known_from_job:
            self._thread.join()
        is_refused = isinstance(error, PendingLimitError)
        if is_refused:
            self._spout.marks.exempt(self._roots)
        if isinstance(error, Exception) and (is_refused or not isinstance(error, ServerUnavailableError)):
            try:
                if self._known_from_job and not self._has_begun:
                    self._take_age()
                    self._send("init", self._init)
                self._send("fail", partial(self._fail, cause_of(error).text, place_of(error)))
            except AckerError as exc:
                log.warning(
                    "could not fail the messages of a failed emission, so they will time out run_id=%s error=%s",
                    self._spout.run_id, exc,
                )  # fmt: skip

    @property
    def roots(self) -> Self:
        """These roots. `LateMessages` gets its own later."""
        return self

    def known_emission(self) -> Emission:
        """Return the emission, as `LateMessages` does."""
        return self.emission

    def complete(self, failed: Iterable[Failure]) -> None:
        """Fail the roots of failed rows, and ack the others.

        If not all failed rows were reported, the others are unknown. They fail, too, without counting an attempt.

        Raises:
            InexactPipelineError: a failure names a root of another emission, or a failed row names none.
            AckerError: the roots could not be initialised, or the server is unreachable.
        """
        failed = list(failed)
        unreported = sum(failure.unreported for failure in failed)
        rows = self._fail_roots_of(failed, closes=not unreported)
        if not unreported:
            if not self._known_from_job:
                self._send("ack", self._ack, rows)
            return
        others = self._roots if rows is None else self._roots[rows]
        log.warning(
            "too many rows failed to report all, will emit the other messages again run_id=%s failed=%d unreported=%d "
            "others=%d", self._spout.run_id, len(self._roots) - len(others), unreported, len(others),
        )  # fmt: skip
        self._spout.marks.exempt(others)
        self._send("release", partial(self._release, UNREPORTED), rows)

    def release(self, failed: Iterable[Failure], delay_secs: float = 0.0) -> None:
        """Fail the roots of failed rows, and hold the others, which fail too; see `Marks.hold`.

        Raises:
            AckerError: as `complete`.
        """
        rows = self._fail_roots_of(failed)
        held = self._roots if rows is None else self._roots[rows]
        self._spout.marks.hold(held, delay_secs)
        self._send("release", partial(self._release, HELD), rows)

    def _fail_roots_of(self, failed: Iterable[Failure], *, closes: bool = False) -> Int64Array | None:
        """Fail the roots of failed rows. Return the positions of the others; None: all roots.

        If the job told which messages there are, this initialises the roots. With `closes`, the others are acked, too.
        """
        failed, none = list(failed), np.array([], np.int64)
        index = Index(self._roots[: None if failed else 0].view(np.uint64))
        for failure in failed:
            places = [index.rows_of(np.frombuffer(packed, np.uint64)) for packed in failure.reasons.values()]
            foreign = sum(int(np.count_nonzero(rows < 0)) for rows in places)
            if foreign or failure.rootless:
                raise InexactPipelineError(
                    f"{failure.rows:,} rows failed in {failure.component!r}, but {failure.rootless:,} of them name no "
                    f"message, and {foreign:,} messages they name are not part of this emission. The failed messages are "
                    "unknown, so nothing was acked. Keep the column _roots as it is, also in rows that you unite with others."
                )
        by_reason = [
            (reason, failure.component, f"fail:{place}:{number}", index.rows_of(np.frombuffer(packed, np.uint64)))
            for place, failure in enumerate(failed)
            for number, (reason, packed) in enumerate(failure.reasons.items())
        ]
        # Failures without retry decide, then those that are no outage.
        by_reason.sort(key=lambda entry: (entry[0].retry, entry[0].is_outage))
        self._wait_for_init(np.concatenate([none, *(rows for *_, rows in by_reason)]) if closes else None)
        is_open = np.ones(len(self._roots), np.bool_)
        for reason, component, idempotency_key, of_reason in by_reason:
            rows = of_reason[is_open[of_reason]]
            if len(rows):
                is_open[rows] = False
                if not reason.retry:
                    self._spout.marks.non_retryable(self._roots[rows])
                self._spout.marks.failed(
                    self.emission.number, self._roots[rows], reason=_sent_text(reason.text), component=component
                )
                self._send(idempotency_key, partial(self._fail, reason.text, component), rows)
        return np.flatnonzero(is_open) if by_reason else None

    def _wait_for_init(self, stay_open: Int64Array | None) -> None:
        """Wait until the roots are initialised, or, if the job told which they are, initialise them.

        Args:
            stay_open: positions of the roots that the latter leaves open, and so doesn't ack. None: all of them.
        """
        if self._known_from_job:
            self._has_begun = True
            self._take_age()
            vals = None
            if stay_open is not None:
                vals = np.zeros(len(self._roots), np.uint64)
                vals[stay_open] = self._vals(stay_open)
            self._send("settle", partial(self._settle, vals))
            return
        self._wait_until_initialised()

    def initialise(self) -> None:
        """Return once the ledger has the roots. Those that wait for `complete` are initialised now.

        Raises:
            AckerError: they could not be initialised.
        """
        with self._beginning:
            if self._known_from_job:
                self._known_from_job = False
                self._thread.start()
        self._wait_until_initialised()

    def _wait_until_initialised(self) -> None:
        self._initialised.wait()
        if self._error is not None:
            raise self._error

    def _keep(self) -> None:
        """Initialise the roots, then renew them until the emission ends."""
        try:
            self._take_age()
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

        Once a part fails, the parts after it are skipped. The update's name is part of its idempotency keys.
        """
        count = len(self._roots if rows is None else rows)
        broken = threading.Event()

        def send(at: int) -> None:
            if broken.is_set():
                return
            part = slice(at, min(at + PART, count)) if rows is None else rows[at : at + PART]
            idempotency_key = f"{self._idempotency_key}:{name}:{at}"
            try:
                do(part, idempotency_key)
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

    def _again_if_lost(self, call: Callable[[], _T]) -> _T:
        """Send one call, and once more if the ledger was lost.

        Calls that depend on each other's replies are repeated one by one. A reply may change in between, but the content
        behind an idempotency key must not.
        """
        try:
            return call()
        except LedgerLostError:
            # The spout notices the loss itself and emits again, so nothing waits for these roots any more.
            self._acker.reopen()
            return call()

    def _vals(self, rows: Rows) -> UInt64Array:
        """Compute ack vals for the time the job runs: the shares plus one more bit, so that none is zero."""
        return self._own[rows] | np.uint64(1 << shares.BITS)

    def _take_age(self) -> None:
        """Note the age of the roots. Calls that are sent again must have the same."""
        if self._begun_at is not None:
            self._age_ms = int((time.monotonic() - self._begun_at) * 1000)

    def _settle(self, all_vals: UInt64Array | None, rows: Rows, idempotency_key: str) -> None:
        """Initialise roots with their age. Those with a value of 0 are acked; without values, none is."""
        roots = self._roots[rows].view(np.uint64)
        vals = self._vals(rows) if all_vals is None else all_vals[rows]
        settle = partial(app_of(self._acker).ledger.settle, roots, vals, self._spout.spout_id, self._age_ms)
        refused = self._again_if_lost(lambda: settle(idempotency_key))
        if len(refused):  # the ledger has roots in their blocks
            places = Index(roots).rows_of(refused)
            own, is_done = self._vals(rows)[places], vals[places] == 0
            self._send_inits(refused, own, f"{idempotency_key}:init")
            if is_done.any():
                self._send_acks(refused[is_done], own[is_done], f"{idempotency_key}:ack")

    def _init(self, rows: Rows, idempotency_key: str) -> None:
        if self._begun_at is not None:
            self._settle(None, rows, idempotency_key)
        else:
            self._send_inits(self._roots[rows], self._vals(rows), idempotency_key)

    def _ack(self, rows: Rows, idempotency_key: str) -> None:
        self._send_acks(self._roots[rows], self._vals(rows), idempotency_key)

    def _send_inits(self, roots: Int64Array | UInt64Array, vals: UInt64Array, idempotency_key: str) -> None:
        init = partial(self._acker.init_many, roots, vals, self._spout.spout_id, idempotency_key=idempotency_key)
        self._again_if_lost(init)

    def _send_acks(self, roots: Int64Array | UInt64Array, vals: UInt64Array, idempotency_key: str) -> None:
        self._again_if_lost(partial(self._acker.ack_many, roots, vals, idempotency_key=idempotency_key))

    def _fail(self, reason: str, component: str | None, rows: Rows, idempotency_key: str) -> None:
        fail = partial(
            self._acker.fail_many,
            self._roots[rows],
            idempotency_key=idempotency_key,
            reason=_sent_text(reason),
            component=component,
        )
        self._again_if_lost(fail)

    def _release(self, reason: str, rows: Rows, idempotency_key: str) -> None:
        ledger = app_of(self._acker).ledger
        self._again_if_lost(partial(ledger.release, self._roots[rows], reason, idempotency_key))

    def _renew(self, rows: Rows, idempotency_key: str) -> None:  # noqa: ARG002
        self._again_if_lost(partial(self._acker.reset_timeout_many, self._roots[rows]))


def _sent_text(reason: str) -> str:
    """Return the text of a reason that the ledger gets."""
    return reason[:REASON_CHARS].encode(errors="replace").decode()


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
