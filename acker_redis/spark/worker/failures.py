"""Failed rows on their way to the driver.

They travel in the data. A task that had failed rows adds one row that represents them: it holds the sum of their shares, and
their failure as JSON. The meter that sums the shares collects the failure from the same row, so the two can't come apart, and
a task that runs again contributes once.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from acker_redis.errors import AckerError, RowFailedError
from acker_redis.model.arrays import Int64Array
from acker_redis.model.blocks import Blocks, roots_of
from acker_redis.outages import is_outage
from acker_redis.spark.protocol import shares

OnError: TypeAlias = Literal["fail", "raise"]
"""Effect of an exception in a user's function: it fails its rows, or is raised and fails the task."""

NoRetry: TypeAlias = tuple[type[Exception], ...]
"""Exceptions after which a message is not emitted again."""

REASON_CHARS = 300
"""Longest reason, in characters. Longer ones are cut."""

MAX_REASONS = 1000
"""Number of different reasons kept per task."""

OTHER_REASONS = f"one of more than {MAX_REASONS} reasons in one task"

_NOTE = "Raised by the function of "
_NOTED = re.compile(rf"^{_NOTE}(.+)$", re.MULTILINE)
_OUTAGE, _NO_OUTAGE = "It counts as an outage.", "It counts as no outage."

_COMPACT_ROOTS = 500_000
_PER_ARRAY = 16
"""Overhead of an array, as a number of roots that take the same memory."""


class Reason(NamedTuple):
    """Why a row failed.

    Attributes:
        text: reason, for people to read.
        retry: whether to emit its message again.
        is_expected: whether the pipeline failed the row on purpose, or a service could not be reached. Any other reason may be
            a mistake in the pipeline, and counts only once the operator has processed other rows. So may an unreadable record
            of `read_files`, whose schema may be wrong. It is the only such reason without a retry.
        is_outage: whether a service could not be reached, so that it is no attempt (`RetryPolicy.outage_secs`).
    """

    text: str
    retry: bool = True
    is_expected: bool = True
    is_outage: bool = False


class UnexpectedError(RowFailedError):
    """An exception that a row function did not declare, on its way from the row to the failure."""


class UnreachableError(RowFailedError):
    """An exception of a row function that means an outage, on its way from the row to the failure."""


@dataclass(frozen=True)
class Failure:
    """Failed rows of one operator.

    Attributes:
        component: name of the operator.
        rows: number of rows.
        reasons: reason -> distinct roots of its rows, as packed int64 of the machine's byte order.
        rootless: number of rows that have a share but no root. Their messages are unknown.
        unreported: number of roots left out, because a task may report only so many bytes.
    """

    component: str
    rows: int
    reasons: dict[Reason, bytes]
    rootless: int = 0
    unreported: int = 0


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
    """The row that represents a task's failed rows in the data.

    Attributes:
        share_sum: sum of their shares, mod 2^61.
        rows: number of rows.
        failure: their failure, as JSON.
    """

    share_sum: int
    rows: int
    failure: str


class FailureCollector:
    """Collector of the failed rows of one operator in one task."""

    def __init__(self, max_bytes: int) -> None:
        """Start without failed rows.

        Args:
            max_bytes: limit on the size of the failure. Spark keeps what it collects in the driver's memory.
        """
        self._max_bytes = max_bytes
        self._share_sum = self._rows = self._rootless = 0
        self._roots: dict[Reason, DistinctRoots] = {}

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

    def failed_rows(self) -> FailedRows | None:
        """Return the row for all failed rows at the end of the partition, or None if no row failed.

        Roots beyond the limit are counted and left out.
        """
        if not self._rows:
            return None
        reasons: list[tuple[str, bool, bool, bool, str]] = []
        left, unreported = self._max_bytes, 0
        for reason, distinct in self._roots.items():
            roots = distinct.distinct()
            packed, count = _packed(roots, left - len(reason.text.encode()))
            unreported += len(roots) - count
            if count or not len(roots):
                reasons.append((*reason, packed))
                left -= len(reason.text.encode()) + len(packed)
        failure = {"rows": self._rows, "rootless": self._rootless, "unreported": unreported, "reasons": reasons}
        text = json.dumps(failure, ensure_ascii=False, separators=(",", ":"))
        return FailedRows(self._share_sum & shares.MASK, self._rows, text)

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


@contextmanager
def naming(component: str) -> Iterator[None]:
    """Add the name of an operator or sink to the exceptions of its function."""
    try:
        yield
    except Exception as exc:
        note_component(exc, component)
        raise


def note_component(exc: Exception, component: str) -> None:
    """Add the operator or sink whose function has raised an exception, and whether that is an outage.

    `component_in` and `is_outage_in` find them in the traceback, which has no types.
    """
    if not isinstance(exc, AckerError):  # the driver reads its text to the end
        exc.add_note(f"{_NOTE}{json.dumps(component)}")
        exc.add_note(_OUTAGE if is_outage(exc) else _NO_OUTAGE)


def component_in(traceback: str) -> str | None:
    """Return the operator or sink whose function raised the error of a worker's traceback. None: no function did."""
    *_, noted = ["null", *_NOTED.findall(traceback)]
    try:
        component = json.loads(noted)
    except ValueError:  # a line of the user's own
        return None
    return component if isinstance(component, str) else None


def is_outage_in(traceback: str) -> bool | None:
    """Return whether the error of a worker's traceback is an outage, as the worker has judged. None: no function raised it."""
    *_, noted = ["", *(line for line in traceback.splitlines() if line in (_OUTAGE, _NO_OUTAGE))]
    return noted == _OUTAGE if noted else None


def reason_of(exc: BaseException, no_retry: NoRetry = ()) -> Reason:
    """Return the reason for a row whose function raised."""
    retry = not isinstance(exc, no_retry)
    if isinstance(exc, RowFailedError):
        is_unreachable = retry and exc.retry and isinstance(exc, UnreachableError)
        return Reason(str(exc), retry and exc.retry, not isinstance(exc, UnexpectedError), is_unreachable)
    is_unreachable = retry and is_outage(exc)
    return Reason(f"{type(exc).__name__}: {exc}", retry, not retry or is_unreachable, is_unreachable)


def as_reason(reason: str | RowFailedError) -> Reason:
    """Convert a reason that a user's function returned for a row."""
    return Reason(reason) if isinstance(reason, str) else reason_of(reason)


def read_failure(component: str, failure: Mapping[str, Any]) -> Failure:
    """Read a failure of `FailureCollector`, parsed from its JSON."""
    reasons = {
        Reason(text, retry, is_expected, is_unreachable): _unpacked(packed)
        for text, retry, is_expected, is_unreachable, packed in failure["reasons"]
    }
    return Failure(component, failure["rows"], reasons, failure["rootless"], failure["unreported"])


def failure_of(component: str, reason: Reason, roots: Int64Array, rootless: int = 0) -> Failure:
    """Create a failure in the driver, for rows that no task has named.

    Args:
        component: name of the operator.
        reason: reason of the failure.
        roots: distinct roots of the rows.
        rootless: number of rows without a root.
    """
    return Failure(component, len(roots), {_cut(reason): roots.tobytes()}, rootless)


_NUMBER_BYTES, _BLOCK_BYTES = 8, 12
"""Size of a block's number, and of the number with the mask of its roots."""


def _packed(roots: Int64Array, max_chars: int) -> tuple[str, int]:
    """Pack roots by block, as base64 of so many characters at most. Return also how many roots that took."""
    blocks = Blocks.from_roots(roots.view(np.uint64))
    kept = min(len(blocks.numbers), max(0, max_chars // 4 * 3 // _BLOCK_BYTES))
    numbers, masks = blocks.numbers[:kept].astype("<u8"), blocks.masks[:kept].astype("<u4")
    return base64.b64encode(numbers.tobytes() + masks.tobytes()).decode(), int(blocks.sizes[:kept].sum())


def _unpacked(text: str) -> bytes:
    """Unpack roots, sorted, as packed int64."""
    data = base64.b64decode(text)
    count = len(data) // _BLOCK_BYTES
    numbers, masks = np.frombuffer(data, "<u8", count), np.frombuffer(data, "<u4", count, count * _NUMBER_BYTES)
    return np.sort(roots_of(numbers.astype(np.uint64), masks.astype(np.uint32)).view(np.int64)).tobytes()


def _cut(reason: Reason) -> Reason:
    """Cut a user's text, which may be long, and replace lone surrogates, which UTF-8 can't encode."""
    return reason._replace(text=reason.text[:REASON_CHARS].encode(errors="replace").decode())
