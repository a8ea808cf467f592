"""Records that another application exported: their upstream messages are acked or failed once a record is done."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis.acker import Acker, app_of
from acker_redis.errors import AckerError, BadAnchorsError, BadConfigError, LedgerLostError
from acker_redis.model.anchors import Anchors
from acker_redis.model.arrays import Int64Array
from acker_redis.spark.emission.pipeline_run import Pipeline
from acker_redis.spark.tracker import Tracker
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.kafka_exports import KafkaExports

log = logging.getLogger("acker_redis.spark")

BAD_ANCHORS = "_acker_bad_anchors"
"""Column with the reason why a record's anchors can't be used. An emission without such records doesn't have it."""

_SAID_SECS = 60.0
"""Interval between two log lines about skipped records."""


class KafkaImports:
    """Anchors of the records that are read and not done. One thread uses the object.

    Attributes:
        skipped: number of records that were skipped, because none of their upstream messages was pending.
    """

    def __init__(self, acker: Acker, group: str, names: Sequence[str]) -> None:
        """Check that the group may ack the records.

        Args:
            acker: acker of the app that exported them.
            group: consumer group of this run.
            names: names of topics, or patterns that begin with `^`.

        Raises:
            BadConfigError: a topic is exported for another group, or the app has only one lane.
        """
        if acker.config.lanes == 1:
            raise BadConfigError(
                f"run_kafka: app {acker.config.app!r} has only one lane. This run and the run that exported the records would "
                "consume each other's outcomes. Give the app lanes=2 or more."
            )
        self.skipped = 0
        self._acker, self._group, self._names = acker, group, names
        self._exports = KafkaExports(app_of(acker).client, acker.config.app)
        self._exports.check(names, group)
        self._open: dict[int, Anchors] = {}
        self._bad: dict[int, str] = {}
        self._renew_at = self._next_renewal()
        self._said_at = float("-inf")

    def note(self, records: Iterable[tuple[int, Any]]) -> set[int]:
        """Note the anchors of records that were read. Return the ids of those to skip.

        Raises:
            BadConfigError: records are exported for another group.
            AckerError: the server is unavailable.
        """
        found: dict[int, Anchors] = {}
        bad: dict[int, str] = {}
        names_other_group = False
        for message_id, record in records:
            try:
                anchors = Anchors.of_headers(record.headers(), app=self._acker.config.app, group=self._group)
            except BadAnchorsError as exc:
                names_other_group |= exc.group is not None
                bad[message_id] = str(exc)
            else:
                if anchors is not None:
                    found[message_id] = anchors
        if names_other_group:
            self._exports.check(self._names, self._group)  # so a forged header ends no run
        pending = self._pending(found)
        self._bad |= bad
        self._open |= pending
        skipped = found.keys() - pending.keys()
        self._say(len(skipped))
        return skipped

    def bad_of(self, message_ids: Int64Array) -> list[str | None] | None:
        """Return why the anchors of each message can't be used, or None if all can."""
        reasons = [self._bad.get(message_id) for message_id in message_ids.tolist()] if self._bad else []
        return reasons if any(reason is not None for reason in reasons) else None

    def done(self, message_ids: Int64Array, letters: Mapping[int, DeadLetter]) -> None:
        """Ack the upstream messages of records that are done, and fail those of dead letters. It may be repeated.

        Raises:
            AckerError: the server is unavailable.
        """
        here = [message_id for message_id in message_ids.tolist() if message_id in self._open]
        acked = [self._open[message_id] for message_id in here if message_id not in letters]
        if acked:
            roots = np.concatenate([anchors.roots for anchors in acked])
            edges = np.concatenate([anchors.edges for anchors in acked])
            self._acker.ack_many(roots, edges, record_keys=edges)
        for message_id in here:
            if (letter := letters.get(message_id)) is not None:
                reason = letter.detail or letter.reason
                self._acker.fail_many(self._open[message_id].roots, reason=reason, component=letter.last_component)
        self.forget(message_ids)

    def forget(self, message_ids: Int64Array) -> None:
        """Forget records that are done, or that another member owns now."""
        for message_id in message_ids.tolist():
            self._open.pop(message_id, None)
            self._bad.pop(message_id, None)

    def renew(self) -> None:
        """Renew the upstream messages of open records every half message timeout."""
        if time.monotonic() < self._renew_at:
            return
        self._renew_at = self._next_renewal()
        if self._open:
            roots = np.unique(np.concatenate([anchors.roots for anchors in self._open.values()]))
            try:
                self._acker.reset_timeout_many(roots)
            except AckerError as exc:
                log.warning("could not renew upstream messages, so they may time out error=%s", exc)

    def _pending(self, found: Mapping[int, Anchors]) -> dict[int, Anchors]:
        """Return the anchors whose roots are pending, of records that have any."""
        if not found:
            return {}
        roots = np.concatenate([anchors.roots for anchors in found.values()])
        try:
            is_pending = app_of(self._acker).inspection.are_pending(roots.view(np.uint64))
        except LedgerLostError:  # the spout recovers it; acks of roots that are gone change nothing
            return dict(found)
        pending, at = {}, 0
        for message_id, anchors in found.items():
            here = is_pending[at : at + len(anchors.roots)]
            at += len(here)
            if here.all():
                pending[message_id] = anchors
            elif here.any():
                pending[message_id] = replace(anchors, roots=anchors.roots[here], edges=anchors.edges[here])
        return pending

    def _say(self, skipped: int) -> None:
        self.skipped += skipped
        if skipped and time.monotonic() - self._said_at > _SAID_SECS:
            self._said_at = time.monotonic()
            log.info("records skipped, no upstream message is pending group=%s skipped=%d", self._group, self.skipped)

    def _next_renewal(self) -> float:
        return time.monotonic() + self._acker.config.message_timeout_secs / 2


def failing_bad_anchors(pipeline: Pipeline) -> Pipeline:
    """Return a pipeline that fails records with unusable anchors without retry, before it runs the given one."""

    @wraps(pipeline)
    def run(tracker: Tracker, records: DataFrame) -> object:
        if BAD_ANCHORS in records.columns:
            sound = tracker.fail_where(
                records, f"{BAD_ANCHORS} IS NOT NULL", F.col(BAD_ANCHORS), retry=False, name="imports"
            )
            records = sound.drop(BAD_ANCHORS)
        return pipeline(tracker, records)

    return run
