"""Messages that failed because something was unreachable, and evidence of whether it is for all of them.

An outage is no message's fault, so it counts no attempt. A message is to blame only if others get through the same operator
or sink. The caller provides the time. This module does no I/O.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from acker_redis.model.arrays import FloatArray, Int64Array
from acker_redis.spout.in_flight import Mask
from acker_redis.store.outages import Outage

FEW = 20
"""Waiting messages below which the emission in which they first failed shows that their operator works.

A store that is lost in the middle of an emission leaves more.
"""

EARLIER_START = -1
"""Number of an emission of an earlier start of the program."""

ANY_OPERATOR = ""
"""Operator of a failed job if the job doesn't tell it. Every operator that processes rows is evidence."""


@dataclass(frozen=True)
class OutageRows:
    """Messages that wait for the end of an outage, one row each, sorted by id.

    Attributes:
        message_ids: 64-bit ids.
        since_secs: time of the first failure by the outage, in seconds since 1970.
        last_secs: time of the latest such failure.
        failures: number of such failures that were the message's own. Others were those of an emission that it was in.
        numbers: number of the emission of the first failure, or `EARLIER_START`.
        operators: index into `OutageTable.operators`.
        is_first_evidence: True if that emission had rows of other messages that got through the operator.
        is_proven: True if a row of another message got through in a later emission.
    """

    message_ids: Int64Array = field(default_factory=lambda: np.array([], np.int64))
    since_secs: FloatArray = field(default_factory=lambda: np.array([], np.float64))
    last_secs: FloatArray = field(default_factory=lambda: np.array([], np.float64))
    failures: npt.NDArray[np.int32] = field(default_factory=lambda: np.array([], np.int32))
    numbers: Int64Array = field(default_factory=lambda: np.array([], np.int64))
    operators: npt.NDArray[np.int16] = field(default_factory=lambda: np.array([], np.int16))
    is_first_evidence: Mask = field(default_factory=lambda: np.array([], np.bool_))
    is_proven: Mask = field(default_factory=lambda: np.array([], np.bool_))

    def __len__(self) -> int:
        return len(self.message_ids)

    def __getitem__(self, rows: Any) -> "OutageRows":  # noqa: ANN401
        """Return the selected rows."""
        return OutageRows(*(column[rows] for column in self.columns))

    @property
    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        """All columns, in the order of the attributes."""
        return tuple(getattr(self, column.name) for column in fields(self))

    def rows_of(self, message_ids: Int64Array) -> Int64Array:
        """Return the row of each message, or -1."""
        if not len(self):
            return np.full(len(message_ids), -1)
        places = np.minimum(np.searchsorted(self.message_ids, message_ids), len(self) - 1)
        return np.where(self.message_ids[places] == message_ids, places, -1)

    def joined(self, other: "OutageRows") -> "OutageRows":
        """Return the rows of both, which have no message in common."""
        columns = [np.concatenate(pair) for pair in zip(self.columns, other.columns, strict=True)]
        return OutageRows(*columns)[np.argsort(columns[0], kind="stable")]


class _Passed(NamedTuple):
    """Emissions in which rows got through an operator.

    Attributes:
        number: number of the latest one.
        message: the only message whose rows are known to have got through there; None: there are several.
        other: number of the latest one with a row of a message other than that.
    """

    number: int
    message: int | None
    other: int


class OutageTable:
    """Track messages that failed by an outage, and the emissions in which others got through.

    Attributes:
        operators: names of operators and sinks that failed.
        rows: messages that wait for the end of an outage.
        errors: latest error by operator, as an index.
    """

    def __init__(self) -> None:
        """Start without outages."""
        self.operators: list[str] = []
        self.rows = OutageRows()
        self.errors: dict[int, str] = {}
        self._passed: dict[str, _Passed] = {}
        self._marked_ids, self._marked_as = np.array([], np.int64), np.array([], np.int16)

    def __len__(self) -> int:
        """Count the messages that wait for the end of an outage."""
        return len(self.rows)

    def operator_number(self, operator: str) -> int:
        """Return the index of an operator in `operators`."""
        if operator not in self.operators:
            self.operators.append(operator)
        return self.operators.index(operator)

    def resume(self, rows: OutageRows, operators: list[str]) -> None:
        """Add messages of an earlier start. `operators` is what `rows.operators` indexes."""
        numbers = np.array([self.operator_number(operator) for operator in operators], np.int16)
        if len(rows):
            earlier = np.full(len(rows), EARLIER_START)
            self.rows = self.rows.joined(replace(rows, operators=numbers[rows.operators], numbers=earlier))

    def note_passed(self, operator: str, number: int, message: int | None) -> None:
        """Note that rows got through an operator in an emission: those of one message, or of several (None)."""
        before = self._passed.get(operator)
        if before is None:
            self._passed[operator] = _Passed(number, message, number if message is None else EARLIER_START - 1)
        elif message is None:
            self._passed[operator] = _Passed(number, None, number)
        else:
            other = before.other if before.message == message else before.number
            self._passed[operator] = _Passed(number, message, other)

    def mark(self, message_ids: Int64Array, operator: str) -> None:
        """Mark messages in flight: if they fail, it is by an outage of this operator."""
        ids = np.concatenate([message_ids, self._marked_ids])
        marks = np.concatenate([
            np.full(len(message_ids), self.operator_number(operator), np.int16), self._marked_as,
        ])  # fmt: skip
        self._marked_ids, first = np.unique(ids, return_index=True)
        self._marked_as = marks[first]

    def take_marks(self, message_ids: Int64Array) -> npt.NDArray[np.int16]:
        """Remove the marks of messages that are no longer in flight. Return the operator of each, or -1."""
        taken = np.full(len(message_ids), -1, np.int16)
        if len(self._marked_ids):
            places = np.minimum(np.searchsorted(self._marked_ids, message_ids), len(self._marked_ids) - 1)
            hits = self._marked_ids[places] == message_ids
            taken[hits] = self._marked_as[places[hits]]
            kept = np.ones(len(self._marked_ids), np.bool_)
            kept[places[hits]] = False
            self._marked_ids, self._marked_as = self._marked_ids[kept], self._marked_as[kept]
        return taken

    def fail(
        self,
        message_ids: Int64Array,
        operators: npt.NDArray[np.int16],
        numbers: Int64Array,
        now_secs: float,
        *,
        counts: bool = True,
    ) -> Int64Array:
        """Note failures by an outage. Return the row of each message.

        Args:
            message_ids: distinct messages.
            operators: operator of each failure, as an index.
            numbers: number of the emission of each failure.
            now_secs: time, in seconds since 1970.
            counts: whether these are the messages' own failures. False: a job failed, and it may be any of them.
        """
        rows = self.rows.rows_of(message_ids)
        known = rows >= 0
        # A message that fails elsewhere now has got through where it failed before.
        known[known] = self.rows.operators[rows[known]] == operators[known]
        new = OutageRows(
            message_ids=message_ids[~known],
            since_secs=np.full(int((~known).sum()), now_secs),
            last_secs=np.full(int((~known).sum()), now_secs),
            failures=np.zeros(int((~known).sum()), np.int32),
            numbers=numbers[~known],
            operators=operators[~known],
            is_first_evidence=self._has_passed(message_ids[~known], operators[~known], numbers[~known] - 1),
            is_proven=np.zeros(int((~known).sum()), np.bool_),
        )
        if len(new):
            self.remove(new.message_ids)
            self.rows = self.rows.joined(new)
        rows = self.rows.rows_of(message_ids)
        self.rows.last_secs[rows] = now_secs
        self.rows.failures[rows] += counts
        self.note_evidence()
        return rows

    def note_evidence(self) -> None:
        """Note which messages are to blame, because others have got through since."""
        rows = self.rows
        if len(rows):
            rows.is_proven[:] |= self._has_passed(rows.message_ids, rows.operators, rows.numbers)

    def has_evidence(self, rows: OutageRows | None = None) -> Mask:
        """Return, per row, whether other messages got through, so that there is no outage."""
        rows = self.rows if rows is None else rows
        few = np.bincount(rows.operators, minlength=len(self.operators)) < FEW
        has_evidence: Mask = rows.is_proven | (rows.is_first_evidence & few[rows.operators])
        return has_evidence

    def remove(self, message_ids: Int64Array) -> None:
        """Remove messages that are done, or belong to another spout."""
        if len(self.rows):
            kept = np.ones(len(self.rows), np.bool_)
            rows = self.rows.rows_of(message_ids)
            kept[rows[rows >= 0]] = False
            if not kept.all():
                self.rows = self.rows[kept]

    def outages(self) -> list[Outage]:
        """Return the operators that messages wait for without evidence, the longest outage first. Thread-safe."""
        rows = self.rows  # as it is now: other threads may call this
        if not len(rows):
            return []
        rows = rows[~self.has_evidence(rows)]
        found = []
        for number in np.unique(rows.operators).tolist():
            of = rows[rows.operators == number]
            since_secs, last_secs = float(of.since_secs.min()), float(of.last_secs.max())
            found.append(Outage(self.operators[number], len(of), since_secs, last_secs, self.errors.get(number, "")))
        return sorted(found, key=lambda outage: outage.since_secs)

    def _has_passed(self, message_ids: Int64Array, operators: npt.NDArray[np.int16], after: Int64Array) -> Mask:
        """Return whether a row of another message got through the operator after an emission."""
        has_passed = np.zeros(len(message_ids), np.bool_)
        for number in np.unique(operators).tolist():
            passed = self._passed.get(self.operators[number])
            if passed is not None:
                latest = np.full(len(message_ids), passed.number)
                if passed.message is not None:
                    latest[message_ids == passed.message] = passed.other
                has_passed |= (operators == number) & (latest > after)
        return has_passed
