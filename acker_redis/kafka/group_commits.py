"""Commits to a consumer group by a program that is no member of it."""

import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from acker_redis.errors import OutageError
from acker_redis.kafka.assignment import Owned, position
from acker_redis.kafka.client import confluent, connected, without_secrets

log = logging.getLogger("acker_redis.kafka")

_AGAIN_SECS = 60.0
"""Interval after which an unchanged offset is committed again. Brokers forget old ones, and as the group has no member, any
program may delete them."""

_WAIT_SECS = 5.0
"""Longest wait for the answer to a commit. Once one has not come in time, none is waited for until it has come."""

_SESSION_MS = 6000
_OF_MEMBERS = frozenset(
    {
        "group.protocol",
        "group.remote.assignor",
        "group.instance.id",
        "heartbeat.interval.ms",
        "partition.assignment.strategy",
    }
)
"""Settings of members alone."""

_STEP_SECS, _SAID_SECS = 0.005, 60.0


class GroupCommits:
    """Commit the offsets of partitions that no member of the group reads. One thread at a time uses the object.

    Brokers accept such commits only while the group has no member. A commit that fails stops nothing.

    Attributes:
        problem: why the last commit failed; None: it didn't.
        refused: number of commits of partitions that failed.
    """

    def __init__(self, settings: dict[str, Any], group: str) -> None:
        """Prepare. `settings` are of `consumer.consumer_settings`."""
        self.problem: str | None = None
        self.refused = 0
        # It never joins. The session's time only limits how long the client keeps a commit while the brokers are away.
        own = {"session.timeout.ms": _SESSION_MS, "log_level": 0}
        self._settings = {name: value for name, value in settings.items() if name not in _OF_MEMBERS} | own
        self._group = group
        self._consumer: Any = None
        self._sent: dict[tuple[str, int], Owned] = {}
        self._is_too_long = False
        self._said: dict[object, float] = {}

    def commit(self, partitions: Iterable[Owned]) -> None:
        """Commit what is done in partitions, if it changed or a minute has passed. Wait briefly for the answer."""
        partitions = list(partitions)
        if self._consumer is None:
            own = {"on_commit": self._take_answer, "error_cb": self._complain}
            try:
                self._consumer = connected(confluent().Consumer, {**own, **self._settings})
            except OutageError as exc:
                self._fail("token", str(exc))
                return
        self._wait(0.0)
        while not self._sent and (changed := _changed(partitions)):
            self._is_too_long = False
            self._send(changed)
            self._wait(_WAIT_SECS)
            if self._sent:
                self._fail("no_answer", "the brokers don't answer")
            if not self._is_too_long:
                return

    def close(self) -> None:
        """Close the connection."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with suppress(confluent().KafkaException, RuntimeError):
                consumer.close()

    def _send(self, partitions: list[Owned]) -> None:
        commits = [(owned, owned.commit()) for owned in partitions]
        self._sent = {(owned.topic, owned.number): owned for owned in partitions}
        offsets = [position(owned, *commit) for owned, commit in commits]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except confluent().KafkaException as exc:
            self._take_answer(exc.args[0], offsets)

    def _wait(self, timeout_secs: float) -> None:
        """Serve the client's callbacks until the answer has come, or the time is over."""
        deadline = time.monotonic() + timeout_secs
        self._consumer.poll(0)
        while self._sent and time.monotonic() < deadline:
            self._consumer.poll(_STEP_SECS)

    def _take_answer(self, error: Any, partitions: list[Any]) -> None:
        """Take the broker's answer to a commit."""
        kafka = confluent().KafkaError
        sent, self._sent = self._sent, {}
        failed = None
        for at in partitions:
            owned = sent.get((at.topic, at.partition))
            own_error = at.error if at.error is not None else error
            if owned is None:
                continue
            if own_error is None:
                owned.committed, owned.committed_at = (at.offset, at.metadata or ""), time.monotonic()
                continue
            self.refused += 1
            owned.committed = None
            failed = own_error
            if own_error.code() == kafka.OFFSET_METADATA_TOO_LARGE:
                owned.most_bytes, self._is_too_long = len((at.metadata or "").encode()) // 2, True
        if failed is None:
            self.problem = None
        elif failed.code() in (
            kafka.UNKNOWN_MEMBER_ID,
            kafka.ILLEGAL_GENERATION,
            kafka.STALE_MEMBER_EPOCH,
            kafka.REBALANCE_IN_PROGRESS,
        ):
            self._fail(
                "member",
                f"another program is a member of the group {self._group!r}, so the broker refuses the offsets. Stop it, or "
                "give it a group of its own",
            )
        else:
            self._fail(failed.code(), f"{without_secrets(failed.str(), self._settings)} ({failed.name()})")

    def _fail(self, kind: object, problem: str) -> None:
        """Note a problem, and log it once a minute."""
        self.problem = problem
        now = time.monotonic()
        if now - self._said.get(kind, float("-inf")) > _SAID_SECS:
            self._said[kind] = now
            log.error("offsets not committed, the stream goes on group=%r problem=%s", self._group, problem)

    def _complain(self, error: Any) -> None:
        """Note an error that belongs to no commit."""
        log.debug("brokers not answering error=%s", without_secrets(error.str(), self._settings))


def _changed(partitions: Iterable[Owned]) -> list[Owned]:
    now = time.monotonic()
    return [
        owned for owned in partitions if owned.commit() != owned.committed or now - owned.committed_at > _AGAIN_SECS
    ]
