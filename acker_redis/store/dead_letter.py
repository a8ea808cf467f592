"""Types of dead letters, and a filter for them."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from acker_redis.client.replies import Fields
from acker_redis.errors import BadConfigError

FROM_PAYLOAD, FROM_SOURCE, FROM_RUN = "payload", "source", "run"
"""Places from which a spout reads the message of a letter for a replay."""

CORRUPT_ROW = "corrupt"
"""Reason of letters for rows of a stream that have no id."""

REASONS = ("failed", "timeout", "lost", CORRUPT_ROW)
"""Reasons that a letter may have."""


class DeadLetter(NamedTuple):
    """Message whose attempts are exhausted.

    Attributes:
        message_id: 64-bit id of the message in its source.
        run_id: run id of the spout.
        attempts: number of attempts that failed, timed out or were lost.
        reason: outcome of the last attempt: `failed`, `timeout` or `lost`. `corrupt`: a row of a stream without an id, which
            was not attempted. Its message id is a hash of the row.
        last_component: component that processed the message last, if components are named.
        detail: text of the last fail, if it had one.
        payload: the message itself, if the spout keeps messages. None: look it up by `message_id`.
        entry_id: entry id in the stream; empty before the letter is written.
        spout_id: number of the spout that emitted the message.
        first_secs: time of the first emission by the spout's clock, in seconds since 1970.
        replay: place that a replay reads the message from: the `payload` here, its `source`, or the source of its `run` as
            long as that run continues. None: the letter can't be replayed. Look the message up by `message_id`.
        place: position of the message in its source, as JSON. For Kafka, that is group, topic, topic_id, partition and offset,
            and its message id means nothing outside of the run. A range of lost records also has `until`. For `read_files`
            without an id column, it is `file` and `row`, or None if that takes too long to find out.
        unwritten: True if the run has output `whole`, and has not written it: the run continues, or it ended without. The
            next run of the app and spout_id that writes its output removes the letter, because it processed the message, too.
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
    place: str | None = None
    unwritten: bool = False

    @property
    def is_of_kafka(self) -> bool:
        """True if the message was read from Kafka, where a record is known by its place, and not by the message id."""
        if self.place is None:
            return False
        try:
            return set(json.loads(self.place)) != {"file", "row"}
        except (ValueError, TypeError):  # of somebody else: it's not known what its message id means
            return True


def check_time(name: str, moment: object) -> None:
    """Validate a time: a datetime or None.

    Raises:
        BadConfigError: the value is something else.
    """
    if moment is not None and not isinstance(moment, datetime):
        raise BadConfigError(
            f"{name}={moment!r} is not a datetime. Pass a datetime such as datetime(2026, 1, 31, tzinfo=UTC)."
        )


def millis(moment: datetime) -> int:
    """Convert a time to milliseconds since 1970.

    A time without a zone is local to this machine.
    """
    return round(moment.timestamp() * 1000)


@dataclass(frozen=True)
class DeadLetterFilter:
    """Filter of dead letters. A letter matches if it matches all fields that are set.

    Attributes:
        message_ids: message ids to match, any of them.
        run_id: run id of the spout.
        reason: `failed`, `timeout`, `lost` or `corrupt`.
        last_component: component that processed the message last.
        text: text contained in the detail, in upper or lower case.
        since: earliest time that the letter was written, by the server's clock; without a time zone it is local.
        until: time before which the letter was written.

    Raises:
        BadConfigError: a time is not a datetime.

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
        """Validate the times.

        Raises:
            BadConfigError: a time is not a datetime.
        """
        check_time("since", self.since)
        check_time("until", self.until)

    def matches(self, letter: DeadLetter) -> bool:
        """Return True if a letter matches the filter, except for its times."""
        pairs = (
            (self.run_id, letter.run_id), (self.reason, letter.reason), (self.last_component, letter.last_component),
        )  # fmt: skip
        return (
            (self.message_ids is None or letter.message_id in self.message_ids)
            and all(wanted is None or wanted == value for wanted, value in pairs)
            and (self.text is None or self.text.casefold() in (letter.detail or "").casefold())
        )


EVERY_LETTER = DeadLetterFilter()
"""Filter that matches all letters."""


class DeadLetterCounts(NamedTuple):
    """Counts of the letters that match a filter.

    Attributes:
        letters: number of matching letters.
        replayable: number of these letters that a spout can replay.
        spout_ids: spout_id of each spout that can replay some -> their number.
    """

    letters: int
    replayable: int
    spout_ids: dict[int, int]


class DamagedLetter(NamedTuple):
    """Stream entry that is not a dead letter. Another program wrote it.

    Attributes:
        entry_id: entry id in the stream, for `DeadLetters.delete`.
        why: reason that the entry can't be read.
        fields: raw fields of the entry.
    """

    entry_id: str
    why: str
    fields: Fields
