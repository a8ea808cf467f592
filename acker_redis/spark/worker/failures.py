"""Failed rows on their way to the driver.

Their roots travel in an accumulator, and the sum of their shares in the data. The driver compares both, so no failed row gets
lost. A task that runs again, or a step that Spark evaluates twice, makes a failure with a different number. The driver uses
the failures whose numbers occur in the data.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.accumulators import Accumulator, AccumulatorParam

from acker_redis.client.backoff import is_outage
from acker_redis.errors import RowFailedError
from acker_redis.model.arrays import Int64Array
from acker_redis.spark.protocol import shares
from acker_redis.spark.protocol.columns import CHILDLESS

OnError: TypeAlias = Literal["fail", "raise"]
"""Effect of an exception in a user's function: it fails its rows, or is raised and fails the task."""

NoRetry: TypeAlias = tuple[type[Exception], ...]
"""Exceptions after which a message is not emitted again."""

REASON_CHARS = 300
"""Longest reason, in characters. Longer ones are cut."""

MAX_REASONS = 1000
"""Number of different reasons kept per task."""

PAYLOAD_BYTES = 256 << 10
"""Limit of payloads sent from one task, in bytes. Those of a thousand tasks still fit into Spark's maxResultSize."""

OTHER_REASONS = f"one of more than {MAX_REASONS} reasons in one task"

_NUMBERS = 1 << 42
_COMPACT_ROOTS = 500_000
_PER_ARRAY = 16
"""Overhead of an array, as a number of roots that take the same memory."""


class Reason(NamedTuple):
    """Why a row failed.

    Attributes:
        text: reason, for people to read.
        retry: whether to emit its message again.
        is_expected: whether the pipeline failed the row on purpose, or a service could not be reached. Any other reason may be
            a mistake in the pipeline, and counts only once the operator has processed other rows.
    """

    text: str
    retry: bool = True
    is_expected: bool = True


class UnexpectedError(RowFailedError):
    """An exception that a row function did not declare, on its way from the row to the failure."""


@dataclass(frozen=True)
class Failure:
    """The failed rows of one operator in one task.

    Attributes:
        number: random number, 2 <= number < 2**42.
        operator: tag of the operator, assigned by the driver.
        component: name of the operator.
        share_sum: sum of the rows' shares, mod 2^61.
        rows: number of rows.
        reasons: reason -> distinct roots of its rows, as packed int64 of the machine's byte order.
        rootless: number of rows that have a share but no root. Their messages are unknown.
        payloads: root -> payload of its message, if it was sent along.
    """

    number: int
    operator: str
    component: str
    share_sum: int
    rows: int
    reasons: dict[Reason, bytes]
    rootless: int = 0
    payloads: dict[int, bytes] = field(default_factory=dict)


class FailuresParam(AccumulatorParam[list[Failure]]):
    """Accumulate all failures in Spark, in the order in which their tasks end."""

    def zero(self, value: list[Failure]) -> list[Failure]:
        """Start with no failures."""
        return []

    def addInPlace(self, value1: list[Failure], value2: list[Failure]) -> list[Failure]:  # noqa: N802  # Spark's name
        """Append the later failures."""
        value1.extend(value2)
        return value1


@dataclass
class DistinctRoots:
    """A set of roots. The number of distinct roots bounds its memory."""

    _arrays: list[Int64Array] = field(default_factory=list)
    _size: int = 0
    _distinct: int = 0

    def add(self, roots: Int64Array) -> None:
        """Add roots, which may repeat."""
        if len(roots):
            self._arrays.append(roots[np.concatenate(([True], roots[1:] != roots[:-1]))])
            self._size += len(self._arrays[-1]) + _PER_ARRAY
        if self._size >= max(_COMPACT_ROOTS, 2 * self._distinct):
            self._arrays = [self.distinct()]
            self._size = self._distinct = len(self._arrays[0])

    def distinct(self) -> Int64Array:
        """Return each root once, sorted."""
        return np.unique(np.concatenate(self._arrays)) if self._arrays else np.array([], np.int64)


class FailedRows(NamedTuple):
    """The summary that represents failed rows in the data.

    Attributes:
        number: number of their failure.
        share_sum: sum of their shares, mod 2^61.
        rows: number of rows.
    """

    number: int
    share_sum: int
    rows: int


class FailureCollector:
    """Collector of the failed rows of one operator in one task. Only `send` sends them."""

    def __init__(self, operator: str, component: str, failures: Accumulator[list[Failure]]) -> None:
        """Start without failed rows.

        Args:
            operator: tag of the operator.
            component: name of the operator.
            failures: accumulator for the failure.
        """
        self.number = _draw_number()
        self._operator, self._component, self._failures = operator, component, failures
        self._share_sum = self._rows = self._rootless = 0
        self._roots: dict[Reason, DistinctRoots] = {}
        self._payloads: dict[int, bytes] = {}
        self._payload_bytes = 0

    def add_rows(self, row_shares: Int64Array, roots_column: pa.ListArray, reasons: Sequence[Reason]) -> None:
        """Add failed rows, with the share, the roots and the reason of each."""
        self._share_sum += shares.total(row_shares)
        self._rows += len(row_shares)
        kept = {reason: self._kept_reason(reason) for reason in dict.fromkeys(reasons)}
        numbers = {reason: number for number, reason in enumerate(dict.fromkeys(kept.values()))}
        by_row = np.array([numbers[kept[reason]] for reason in reasons], np.int64)
        lengths = roots_column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        by_root = np.repeat(by_row, lengths)
        self._rootless += count_rootless(row_shares, lengths)
        roots = (
            roots_column.flatten().fill_null(0).to_numpy(zero_copy_only=False)
        )  # no message has root 0: the driver refuses
        for reason, number in numbers.items():
            self._roots[reason].add(roots[by_root == number])

    def add_total(self, share_sum: int, rows: int, roots: DistinctRoots, reason: Reason, rootless: int = 0) -> None:
        """Add rows that failed for one reason. `rootless` counts those without a root."""
        self._share_sum += share_sum
        self._rows += rows
        self._rootless += rootless
        self._roots[self._kept_reason(reason)].add(roots.distinct())

    def add_payloads(self, roots: Int64Array, payloads: Sequence[bytes | None]) -> None:
        """Add payloads of messages. A payload that exceeds `PAYLOAD_BYTES` in total is skipped."""
        for root, payload in zip(roots.tolist(), payloads, strict=True):
            if payload is not None and self._payload_bytes + len(payload) <= PAYLOAD_BYTES:
                self._payloads[root] = payload
                self._payload_bytes += len(payload)

    def send(self) -> FailedRows | None:
        """Send the failure at the end of the partition. Call this once.

        Returns None, and sends nothing, if no row failed.
        """
        if not self._rows:
            return None
        share_sum = self._share_sum & shares.MASK
        reasons = {reason: roots.distinct().tobytes() for reason, roots in self._roots.items()}
        failure = Failure(
            self.number, self._operator, self._component, share_sum, self._rows, reasons, self._rootless, self._payloads
        )
        self._failures.add([failure])
        return FailedRows(self.number, share_sum, self._rows)

    def _kept_reason(self, reason: Reason) -> Reason:
        """Cut a reason, or replace it by `OTHER_REASONS` if there are too many."""
        cut = _cut(reason)
        if cut not in self._roots:
            if len(self._roots) >= MAX_REASONS:
                cut = reason._replace(text=OTHER_REASONS)
            self._roots.setdefault(cut, DistinctRoots())
        return cut


def count_rootless(row_shares: Int64Array, root_counts: npt.NDArray[np.integer[Any]]) -> int:
    """Count the rows that have a share, so they came from a message, but no root."""
    return int(np.count_nonzero((row_shares != 0) & (root_counts == 0)))


def reason_of(exc: BaseException, no_retry: NoRetry = ()) -> Reason:
    """Return the reason for a row whose function raised."""
    retry = not isinstance(exc, no_retry)
    if isinstance(exc, RowFailedError):
        return Reason(str(exc), retry and exc.retry, not isinstance(exc, UnexpectedError))
    return Reason(f"{type(exc).__name__}: {exc}", retry, not retry or is_outage(exc))


def as_reason(reason: str | RowFailedError) -> Reason:
    """Convert a reason that a user's function returned for a row."""
    return Reason(reason) if isinstance(reason, str) else reason_of(reason)


def failure_of(component: str, reason: Reason, roots: Int64Array, rootless: int = 0) -> Failure:
    """Create a failure in the driver, for rows that no task has named.

    Args:
        component: name of the operator.
        reason: reason of the failure.
        roots: distinct roots of the rows.
        rootless: number of rows without a root.
    """
    return Failure(_draw_number(), "", component, 0, len(roots), {_cut(reason): roots.tobytes()}, rootless)


def _draw_number() -> int:
    return CHILDLESS + 1 + secrets.randbelow(_NUMBERS - CHILDLESS - 1)


def _cut(reason: Reason) -> Reason:
    """Cut a user's text, which may be long, and replace lone surrogates, which UTF-8 can't encode."""
    return reason._replace(text=reason.text[:REASON_CHARS].encode(errors="replace").decode())
