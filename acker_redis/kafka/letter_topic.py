"""Dead letters as records of a topic, with the headers that Kafka Connect gives to its own."""

import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from acker_redis.errors import BadConfigError
from acker_redis.kafka.client import ClientLog, confluent, connected, connection_settings, without_secrets
from acker_redis.kafka.producer import producer_settings
from acker_redis.kafka.topics import NEW_SECS, Topics

log = logging.getLogger("acker_redis.kafka")

_CONNECT = "__connect.errors."

_SAID_SECS = 60.0
"""Interval between two log lines about letters that are sent again."""

_REFUSED = {"INVALID_MSG_SIZE", "INVALID_RECORD", "INVALID_TIMESTAMP", "MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"}
"""Errors for the letter's own sake, which it would get again."""


class Letter(NamedTuple):
    """A letter to send.

    Attributes:
        key: key of the record.
        value: value of the record.
        headers: headers of the record.
        about: what the letter says: name of a header -> text. None: it has no such header.
    """

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    about: Mapping[str, object]


class LetterTopic:
    """Producer of letters. The thread that uses it must call `collect` often."""

    def __init__(self, kafka: Mapping[str, object], topic: str) -> None:
        """Check the topic.

        Args:
            kafka: the user's settings. Only those of connections are used.
            topic: name of the topic.

        Raises:
            BadConfigError: the topic doesn't exist.
            OutageError: no broker answers, or `oauth_cb` gives no token.
        """
        if topic not in Topics(kafka).describe([topic], max_wait_secs=NEW_SECS):
            raise BadConfigError(
                f"run_kafka: dead_letters={topic!r} is a topic that doesn't exist. Letters would hold back offsets for ever. "
                "Create it."
            )
        self._kafka, self._topic = kafka, topic
        settings = producer_settings(connection_settings(kafka))
        # A broker refuses a batch as a whole, so each letter is one.
        self._producer = connected(
            confluent().Producer, {**settings, "batch.num.messages": 1, "logger": ClientLog(kafka)}
        )
        self._delivered: list[str] = []
        self._given_up: list[str] = []
        self._said_at = float("-inf")

    def send(self, token: str, letter: Letter) -> None:
        """Send a letter, with key, value and headers unchanged and further headers behind them. It doesn't wait."""
        about = [(name, str(value).encode()) for name, value in letter.about.items() if value is not None]
        told = partial(self._told, token, letter)
        try:
            self._producer.produce(
                self._topic, letter.value, letter.key, headers=[*letter.headers, *about], on_delivery=told
            )
        except BufferError:
            self._given_up.append(token)  # too large for the queue, or the queue is full: Redis has it
        except confluent().KafkaException as exc:
            self._told(token, letter, exc.args[0], None)

    def collect(self) -> tuple[list[str], list[str]]:
        """Return the tokens of letters that the broker acknowledged, and of those that the topic can't have."""
        self._producer.poll(0)
        delivered, self._delivered = self._delivered, []
        given_up, self._given_up = self._given_up, []
        return delivered, given_up

    def close(self, timeout_secs: float) -> None:
        """Wait for reports, at most so long."""
        self._producer.flush(timeout_secs)

    def _told(self, token: str, letter: Letter, error: Any, _message: object) -> None:
        if error is None:
            self._delivered.append(token)
            return
        words = without_secrets(error.str(), self._kafka)
        if error.name() not in _REFUSED:
            now = time.monotonic()
            if now - self._said_at > _SAID_SECS:
                self._said_at = now
                log.warning("dead letter not acknowledged, sending it again topic=%s error=%s", self._topic, words)
            self.send(token, letter)
        elif letter.value is not None:
            log.warning("dead letter refused, sending it without its value topic=%s error=%s", self._topic, words)
            self.send(token, Letter(letter.key, None, letter.headers, {**letter.about, "acker-value": "left out"}))
        else:
            log.error("dead letter refused, it is in Redis alone topic=%s error=%s", self._topic, words)
            self._given_up.append(token)


def about(
    *, app: str, group: str, place: Mapping[str, object], stage: str | None, reason: str, detail: str | None, attempts: int,
    run_id: str,
) -> dict[str, object]:  # fmt: skip
    """Return the headers of a letter: those of Kafka Connect, and ours."""
    return {
        f"{_CONNECT}topic": place["topic"],
        f"{_CONNECT}partition": place["partition"],
        f"{_CONNECT}offset": place["offset"],
        f"{_CONNECT}connector.name": app,
        f"{_CONNECT}stage": stage,
        f"{_CONNECT}exception.message": detail,
        "acker-topic-id": place["topic_id"],
        "acker-until": place.get("until"),
        "acker-group": group,
        "acker-reason": reason,
        "acker-attempts": attempts,
        "acker-run-id": run_id,
    }
