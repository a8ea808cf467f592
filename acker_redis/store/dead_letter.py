"""The types of dead letters, and a filter for them."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from acker_redis.client.replies import Fields
from acker_redis.errors import BadConfigError

FROM_PAYLOAD, FROM_SOURCE, FROM_RUN = "payload", "source", "run"
"""Where a spout gets the message of a letter from, for a replay."""


class DeadLetter(NamedTuple):
    """A message whose attempts are exhausted.

    Attributes:
        message_id: 64-bit id its source knows it by.
        run_id: of the spout.
        attempts: how many failed, timed out or got lost.
        reason: of the last one: `failed`, `timeout` or `lost`.
        last_component: that touched it, where components are named.
        detail: text of the last fail, where one was given.
        payload: the message, where the spout keeps it; None: `message_id` is the pointer to it.
        entry_id: in the stream; empty before it is written.
        spout_id: of the spout that emitted it.
        first_secs: when the message was emitted first, in seconds since 1970 by the spout's clock.
        replay: how the spout gets the message for a replay: from the `payload` here, from its
            `source`, or from the source of its `run`, as long as that goes on; None: it can't be replayed, and `message_id` is
            for looking it up by hand.
    """

    message_id: int
    run_id: str
    attempts: int
    reason: str
    last_component: str | None = None
    detail: str | None = None
    payload: bytes | None = None
    entry_id: str = ""
    spout_id: int = 0
    first_secs: int | None = None
    replay: str | None = None


def check_time(name: str, moment: object) -> None:
    """Refuse a value that is neither a datetime nor None.

    Raises:
        BadConfigError: it is something else.
    """
    if moment is not None and not isinstance(moment, datetime):
        raise BadConfigError(
            f"{name}={moment!r} is no time. Give a datetime, such as datetime(2026, 1, 31, tzinfo=UTC)"
        )


def millis(moment: datetime) -> int:
    """Convert a time to milliseconds since 1970; a time without a zone is in this machine's."""
    return round(moment.timestamp() * 1000)


@dataclass(frozen=True)
class DeadLetterFilter:
    """Chooses letters: those that match all fields that are given.

    Attributes:
        message_ids: any of these.
        run_id: of the spout.
        reason: `failed`, `timeout` or `lost`.
        last_component: that touched it.
        text: in the detail, large or small letters alike.
        since: written then or later, by the server's clock; with a time zone, or in this machine's.
        until: written before.

    Raises:
        BadConfigError: a time is no datetime.

    >>> letter = DeadLetter(7, "run-1", 5, "failed", detail="no such customer")
    >>> DeadLetterFilter(reason="failed", text="customer").matches(letter)
    True
    """

    message_ids: frozenset[int] | None = None
    run_id: str | None = None
    reason: str | None = None
    last_component: str | None = None
    text: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        """Check the times.

        Raises:
            BadConfigError: a time is no datetime.
        """
        check_time("since", self.since)
        check_time("until", self.until)

    def matches(self, letter: DeadLetter) -> bool:
        """Whether a letter matches."""
        pairs = (
            (self.run_id, letter.run_id), (self.reason, letter.reason), (self.last_component, letter.last_component),
        )  # fmt: skip
        return (
            (self.message_ids is None or letter.message_id in self.message_ids)
            and all(wanted is None or wanted == value for wanted, value in pairs)
            and (self.text is None or self.text.casefold() in (letter.detail or "").casefold())
        )


EVERY_LETTER = DeadLetterFilter()
"""Matches all letters."""


class DeadLetterCounts(NamedTuple):
    """Letters that match a filter, counted.

    Attributes:
        letters: how many there are.
        replayable: of these, the ones that a spout can replay.
        spout_ids: of the spouts that can, and how many each.
    """

    letters: int
    replayable: int
    spout_ids: dict[int, int]


class DamagedLetter(NamedTuple):
    """An entry of the stream that is no dead letter: something else wrote it.

    Attributes:
        entry_id: in the stream, for `DeadLetters.delete`.
        why: it can't be read.
        fields: as they stand there.
    """

    entry_id: str
    why: str
    fields: Fields
