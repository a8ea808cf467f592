"""Rows that failed, on their way to the driver: their roots by an accumulator, the sum of their shares beside the data.

The driver compares both, so no failed row gets lost. A task that runs again, or a step that Spark evaluates twice, makes a
report of another number; the driver takes those whose numbers it meets in the data.
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
"""What becomes of an error that a function of the user's raises: its rows fail, or the task does."""

NoRetry: TypeAlias = tuple[type[Exception], ...]
"""Exceptions after which a message is not emitted again."""

REASON_CHARS = 300
"""Longer reasons are cut."""

MAX_REASONS = 1000
"""So many are told apart in one task."""

PAYLOAD_BYTES = 256 << 10
"""So much of payloads is sent along from one task: that of a thousand tasks still fits into Spark's maxResultSize."""

OTHER_REASONS = f"one of more than {MAX_REASONS} reasons in one task"

_NUMBERS = 1 << 42
_COMPACT_ROOTS = 500_000
_PER_PART = 16
"""An array costs about as much as so many roots in it."""


class Reason(NamedTuple):
    """Why a row failed.

    Attributes:
        text: for people.
        retry: whether its message is to be emitted again.
        is_expected: whether the pipeline said so itself, or something could not be reached. Anything else may be a
            mistake in the pipeline, and counts only once the operator has processed other rows.
    """

    text: str
    retry: bool = True
    is_expected: bool = True


class UnexpectedError(RowFailedError):
    """How a row function's exception, which it did not declare, goes from row to report."""


@dataclass(frozen=True)
class Failure:
    """The failed rows of one operator in one task.

    Attributes:
        number: drawn at random, 2 <= number < 2**42.
        operator: its tag, given by the driver.
        component: its name.
        parts: sum of the rows' shares, mod 2^61.
        rows: how many they are.
        reasons: for each reason the distinct roots of its rows, as packed int64 of the machine's byte order.
        rootless: how many rows have a share and no root: whose they are is not known.
        payloads: of roots that brought theirs along.
    """

    number: int
    operator: str
    component: str
    parts: int
    rows: int
    reasons: dict[Reason, bytes]
    rootless: int = 0
    payloads: dict[int, bytes] = field(default_factory=dict)


class FailuresParam(AccumulatorParam[list[Failure]]):
    """How Spark adds up failures: all of them, in the order in which their tasks end."""

    def zero(self, value: list[Failure]) -> list[Failure]:
        """No failures."""
        return []

    def addInPlace(self, value1: list[Failure], value2: list[Failure]) -> list[Failure]:  # noqa: N802  # Spark's name
        """Both."""
        value1.extend(value2)
        return value1


@dataclass
class Roots:
    """Distinct roots; memory is bounded by their number."""

    _parts: list[Int64Array] = field(default_factory=list)
    _size: int = 0
    _distinct: int = 0

    def add(self, roots: Int64Array) -> None:
        """Roots, with repeats."""
        if len(roots):
            self._parts.append(roots[np.concatenate(([True], roots[1:] != roots[:-1]))])
            self._size += len(self._parts[-1]) + _PER_PART
        if self._size >= max(_COMPACT_ROOTS, 2 * self._distinct):
            self._parts = [self.distinct()]
            self._size = self._distinct = len(self._parts[0])

    def distinct(self) -> Int64Array:
        """Each once, sorted."""
        return np.unique(np.concatenate(self._parts)) if self._parts else np.array([], np.int64)


class Residue(NamedTuple):
    """What stands in the data for the rows that failed."""

    number: int
    parts: int
    rows: int


class FailureCollector:
    """Collects the failed rows of one operator in one task. Nothing is sent before `residue`."""

    def __init__(self, operator: str, component: str, failures: Accumulator[list[Failure]]) -> None:
        """Begin a failure.

        Args:
            operator: tag of the operator.
            component: its name.
            failures: where the failure goes.
        """
        self.number = CHILDLESS + 1 + secrets.randbelow(_NUMBERS - CHILDLESS - 1)
        self._operator, self._component, self._failures = operator, component, failures
        self._parts = self._rows = self._rootless = 0
        self._roots: dict[Reason, Roots] = {}
        self._payloads: dict[int, bytes] = {}
        self._payload_bytes = 0

    def add(self, own: Int64Array, anchors: pa.ListArray, reasons: Sequence[Reason]) -> None:
        """Rows that failed: the share, the anchors and the reason of each."""
        self._parts += shares.total(own)
        self._rows += len(own)
        named = {reason: self._named(reason) for reason in dict.fromkeys(reasons)}
        numbers = {name: number for number, name in enumerate(dict.fromkeys(named.values()))}
        by_row = np.array([numbers[named[reason]] for reason in reasons], np.int64)
        lengths = anchors.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        by_root = np.repeat(by_row, lengths)
        self._rootless += rootless(own, lengths)
        roots = anchors.flatten().fill_null(0).to_numpy(zero_copy_only=False)  # 0 is nobody's: the driver says so
        for reason, number in numbers.items():
            self._roots[reason].add(roots[by_root == number])

    def add_all(self, parts: int, rows: int, roots: Roots, reason: Reason, without: int = 0) -> None:
        """Rows that failed for one reason: the sum of their shares, their number and their roots; how many are without."""
        self._parts += parts
        self._rows += rows
        self._rootless += without
        self._roots[self._named(reason)].add(roots.distinct())

    def bring(self, roots: Int64Array, payloads: Sequence[bytes | None]) -> None:
        """Payloads of messages, as far as they fit."""
        for root, payload in zip(roots.tolist(), payloads, strict=True):
            if payload is not None and self._payload_bytes + len(payload) <= PAYLOAD_BYTES:
                self._payloads[root] = payload
                self._payload_bytes += len(payload)

    def residue(self) -> Residue | None:
        """Send the failure, once, at the end of the partition; None if no row failed, and nothing is sent."""
        if not self._rows:
            return None
        parts = self._parts & shares.MASK
        reasons = {reason: roots.distinct().tobytes() for reason, roots in self._roots.items()}
        failure = Failure(
            self.number, self._operator, self._component, parts, self._rows, reasons, self._rootless, self._payloads
        )
        self._failures.add([failure])
        return Residue(self.number, parts, self._rows)

    def _named(self, reason: Reason) -> Reason:
        """The reason under which a row is kept."""
        cut = _cut(reason)
        if cut not in self._roots:
            if len(self._roots) >= MAX_REASONS:
                cut = reason._replace(text=OTHER_REASONS)
            self._roots.setdefault(cut, Roots())
        return cut


def rootless(own: Int64Array, roots: npt.NDArray[np.integer[Any]]) -> int:
    """How many rows have a share, and so came from a message, but no root; given their shares and numbers of roots."""
    return int(np.count_nonzero((own != 0) & (roots == 0)))


def reason_of(exc: BaseException, no_retry: NoRetry = ()) -> Reason:
    """Why a row failed whose function raised."""
    retry = not isinstance(exc, no_retry)
    if isinstance(exc, RowFailedError):
        return Reason(str(exc), retry and exc.retry, not isinstance(exc, UnexpectedError))
    return Reason(f"{type(exc).__name__}: {exc}", retry, not retry or is_outage(exc))


def as_reason(given: str | RowFailedError) -> Reason:
    """A reason as functions of the user's give it for a row."""
    return Reason(given) if isinstance(given, str) else reason_of(given)


def failure_of(component: str, reason: Reason, roots: Int64Array, without: int = 0) -> Failure:
    """A report that the driver makes itself, of rows that no task has named; `without`: how many have no root."""
    number = CHILDLESS + 1 + secrets.randbelow(_NUMBERS - CHILDLESS - 1)
    return Failure(number, "", component, 0, len(roots), {_cut(reason): roots.tobytes()}, without)


def _cut(reason: Reason) -> Reason:
    """A text of the user's may be long, and hold halves of pairs, which UTF-8 can't."""
    return reason._replace(text=reason.text[:REASON_CHARS].encode(errors="replace").decode())
