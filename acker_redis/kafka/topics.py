"""Ids and partitions of topics, asked of the brokers."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from acker_redis.errors import AckerError, OutageError
from acker_redis.kafka.client import ClientLog, confluent, connected, connection_settings, without_secrets

NEW_SECS = 5.0
"""Time that brokers get to hear of a new topic."""

ASK_SECS = 10.0
"""Time for one question to the brokers."""

MAX_WAIT_SECS = 30.0
"""Time for which a question is repeated while the brokers don't answer it."""

_PAUSE_SECS = 0.2
_AS_KAFKA = str.maketrans("+/", "-_")
"""Kafka's own tools spell ids so. The client does not."""

_T = TypeVar("_T")


class Topic(NamedTuple):
    """A topic as the brokers describe it.

    Attributes:
        topic_id: its id as Kafka's tools spell it. An earlier topic of this name had another one.
        partitions: number of its partitions.
    """

    topic_id: str
    partitions: int


class Topics:
    """Client for questions about topics.

    Attributes:
        kafka: the user's settings.
        admin: the client's object.
    """

    def __init__(self, kafka: Mapping[str, object]) -> None:
        """Connect. It doesn't wait for a broker.

        Args:
            kafka: the user's settings. Only those of connections are used.

        Raises:
            OutageError: `oauth_cb` gives no token.
        """
        self.kafka = kafka
        self._connect()

    def _connect(self) -> None:
        from confluent_kafka.admin import AdminClient  # the extra may be missing

        settings: dict[str, Any] = {"logger": ClientLog(self.kafka), **connection_settings(self.kafka)}
        self.admin = connected(AdminClient, settings)

    def describe(
        self, names: Iterable[str], *, max_wait_secs: float = 0.0, outage_secs: float = MAX_WAIT_SECS
    ) -> dict[str, Topic]:
        """Describe topics. Those that don't exist are omitted.

        Args:
            names: names of the topics.
            max_wait_secs: time to ask again for topics that don't exist. A broker hears of a new topic late.
            outage_secs: time to ask again while no broker answers.

        Raises:
            OutageError: no broker answers.
            AckerError: the brokers refuse the question.
        """
        found: dict[str, Topic] = {}
        left = set(names)
        deadline = time.monotonic() + max_wait_secs
        while left:
            found |= patiently(partial(self._describe, left), self.kafka, outage_secs)
            left -= found.keys()
            if time.monotonic() > deadline:
                break
            if left:
                time.sleep(_PAUSE_SECS)
        return found

    def _describe(self, names: Iterable[str]) -> dict[str, Topic]:
        return self.answers(self.ask(names), ASK_SECS)

    def ask(self, names: Iterable[str]) -> dict[str, Any]:
        """Ask for topics, without waiting. Returns a future per topic, for `answers`."""
        from confluent_kafka import TopicCollection

        self.admin.poll(0)
        asked: dict[str, Any] = self.admin.describe_topics(TopicCollection(list(names)), request_timeout=ASK_SECS)
        return asked

    def answers(self, asked: Mapping[str, Any], timeout_secs: float | None = None) -> dict[str, Topic]:
        """Return the topics that were asked for. Those that don't exist are omitted.

        Raises:
            KafkaException: a broker refuses the question or doesn't answer.
            TimeoutError: there is no answer yet.
        """
        kafka = confluent()
        found = {}
        for name, future in asked.items():
            try:
                described = future.result(timeout_secs)
            except (kafka.KafkaException, TimeoutError) as exc:
                missing = (kafka.KafkaError.UNKNOWN_TOPIC_OR_PART, kafka.KafkaError._UNKNOWN_TOPIC)  # noqa: SLF001
                error = exc.args[0] if isinstance(exc, kafka.KafkaException) else None
                if error is not None and error.code() in missing:
                    continue
                if error is None or passes(error):  # not if a broker refuses, as another client would be refused, too
                    # This one goes on asking the broker that it knows as controller, even if it has died.
                    with suppress(OutageError):
                        self._connect()
                raise
            topic_id = str(described.topic_id).translate(_AS_KAFKA)
            found[name] = Topic(topic_id, len(described.partitions))
        return found


def patiently(ask: Callable[[], _T], kafka: Mapping[str, object], max_wait_secs: float = MAX_WAIT_SECS) -> _T:
    """Ask the brokers, and repeat it while they can't answer now.

    Raises:
        OutageError: they didn't answer in time.
        AckerError: they refuse the question.
    """
    client = confluent()
    deadline = time.monotonic() + max_wait_secs
    while True:
        try:
            return ask()
        except (client.KafkaException, TimeoutError) as exc:
            error = exc.args[0] if isinstance(exc, client.KafkaException) else None
            if error is not None and not passes(error):
                raise refused(error, kafka) from None
            if time.monotonic() > deadline:
                words = "no answer" if error is None else error.str()
                raise OutageError(
                    f"Kafka doesn't answer: {without_secrets(words, kafka)}. No record is to blame. Check the brokers and "
                    '"bootstrap.servers".'
                ) from None
            time.sleep(_PAUSE_SECS)


def passes(error: Any) -> bool:
    """Return True if an error of the client may be gone at the next try."""
    kafka = confluent().KafkaError
    # What follows a rebalance that goes on, a coordinator that moves, or a broker that is away.
    codes = {
        kafka.REBALANCE_IN_PROGRESS, kafka.ILLEGAL_GENERATION, kafka.UNKNOWN_MEMBER_ID, kafka.COORDINATOR_NOT_AVAILABLE,
        kafka.COORDINATOR_LOAD_IN_PROGRESS, kafka.NOT_COORDINATOR, kafka.LEADER_NOT_AVAILABLE,
        kafka.NOT_LEADER_FOR_PARTITION, kafka.REQUEST_TIMED_OUT, kafka.NETWORK_EXCEPTION, kafka.UNKNOWN_TOPIC_OR_PART,
        kafka._TRANSPORT, kafka._ALL_BROKERS_DOWN, kafka._TIMED_OUT, kafka._WAIT_COORD, kafka._RESOLVE,  # noqa: SLF001
        kafka._TIMED_OUT_QUEUE, kafka._WAIT_CACHE, kafka._UNKNOWN_PARTITION, kafka._UNKNOWN_TOPIC,  # noqa: SLF001
    }  # fmt: skip
    return error.retriable() or error.code() in codes


def refused(error: Any, kafka: Mapping[str, object]) -> AckerError:
    """Return the error of a request that the brokers refuse for good."""
    return AckerError(
        f"Kafka refuses: {without_secrets(error.str(), kafka)} ({error.name()}). Trying again can't help. Check the "
        "permissions and the settings."
    )
