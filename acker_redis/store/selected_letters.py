"""Dead letters whose messages a run processes again. Each is deleted once its message is done."""

import logging
from collections import Counter

import numpy as np

from acker_redis.client.client import Client
from acker_redis.model import keys
from acker_redis.model.arrays import Int64Array
from acker_redis.store.dead_letter import FROM_PAYLOAD, FROM_SOURCE, DeadLetter, DeadLetterFilter
from acker_redis.store.dead_letters import DeadLetters

log = logging.getLogger("acker_redis.dead_letters")

_PER_PIPELINE = 1000
_FIRST = 10
"""Number of message ids that the log names."""


class SelectedLetters:
    """Dead letters of one spout_id, by message, until their messages are done.

    Attributes:
        matching: number of letters that match the filter.
        deleted: number of letters whose message is done, and which are gone.
    """

    def __init__(self, client: Client, app: str, spout_id: int, wanted: DeadLetterFilter) -> None:
        """Select the letters that match a filter now.

        Letters of another spout_id are left out, because its message ids are those of another source. So are letters whose
        ids mean nothing outside of their run, those that a spout was asked to replay, and those that a run with output
        `whole` has yet to remove.

        The caller holds the lane of the spout_id. So no run that writes or replays such letters is under way.
        """
        self._client, self._app, self._spout_id = client, app, spout_id
        self._letters, self._requests = DeadLetters(client, app), keys.replays(app, spout_id)
        self._entry_ids: dict[int, list[str]] = {}
        self._left = Counter[str]()
        self.matching = self.deleted = 0
        self._requested = set[str]()  # letters whose request nobody fulfils any more
        requested = self._read_requests()
        for letter in self._letters.find(wanted):
            self.matching += 1
            is_requested = letter.entry_id in requested
            if (why := self._why_left(letter, is_requested=is_requested)) is not None:
                self._left[why] += 1
                continue
            self._entry_ids.setdefault(letter.message_id, []).append(letter.entry_id)
            if is_requested:
                self._requested.add(letter.entry_id)
        if not self._entry_ids:
            log.warning(
                "no dead letter to run again app=%r spout_id=%d matching=%d filter=%.200s",
                app, spout_id, self.matching, wanted,
            )  # fmt: skip

    @property
    def message_ids(self) -> Int64Array:
        """Ids of the messages that aren't done."""
        return np.array(list(self._entry_ids), np.int64)

    @property
    def left(self) -> int:
        """Number of letters that match and are still there."""
        return self.matching - self.deleted

    def keep_only(self, message_ids: Int64Array) -> None:
        """Leave the letters of other messages, which the source doesn't have."""
        missing = np.setdiff1d(self.message_ids, message_ids).tolist()
        if missing:
            self._left["not_in_source"] = sum(len(self._entry_ids.pop(message)) for message in missing)
        if self._left:
            log.warning(
                "some dead letters stay app=%r spout_id=%d not_in_source=%d of_other_spout_ids=%d replay_requested=%d "
                "of_unwritten_output=%d of_kafka=%d missing_message_ids=%s",
                self._app, self._spout_id, self._left["not_in_source"], self._left["of_other_spout_ids"],
                self._left["replay_requested"], self._left["of_unwritten_output"], self._left["of_kafka"],
                ",".join(map(str, missing[:_FIRST])),
            )  # fmt: skip

    def done(self, message_ids: Int64Array) -> None:
        """Delete the letters of messages that were acked or have a new letter."""
        done = [message for message in message_ids.tolist() if message in self._entry_ids]
        if not done:
            return
        entry_ids = [entry_id for message in done for entry_id in self._entry_ids[message]]
        self._letters.delete(entry_ids)
        requested = [entry_id for entry_id in entry_ids if entry_id in self._requested]
        parts = [requested[start : start + _PER_PIPELINE] for start in range(0, len(requested), _PER_PIPELINE)]
        self._client.pipeline([("ZREM", self._requests, *part) for part in parts])
        for message in done:
            self.deleted += len(self._entry_ids.pop(message))

    def _why_left(self, letter: DeadLetter, *, is_requested: bool) -> str | None:
        if letter.spout_id != self._spout_id:
            return "of_other_spout_ids"
        if letter.is_of_kafka:
            return "of_kafka"
        if letter.unwritten:
            return "of_unwritten_output"
        # A request for a letter of a run that is over stays, and nobody fulfils it.
        return "replay_requested" if is_requested and letter.replay in (FROM_PAYLOAD, FROM_SOURCE) else None

    def _read_requests(self) -> set[str]:
        requested, start = set[str](), 0
        while True:
            (part,) = self._client.pipeline([("ZRANGE", self._requests, start, start + _PER_PIPELINE - 1)])
            requested.update(map(bytes.decode, part))
            if len(part) < _PER_PIPELINE:
                return requested
            start += _PER_PIPELINE
