"""Settings of a consumer that is a member of a group, and that leaves commits and starts to the library."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from acker_redis.errors import BadConfigError
from acker_redis.kafka.client import check_names, confluent, connected, without_secrets

_COMMITS = "The library commits an offset when its records are done. Omit it"
_LISTENS = "The library takes this callback itself. Omit it"

_OURS = {
    "auto.commit.enable": _COMMITS,
    "auto.commit.interval.ms": _COMMITS,
    "auto.offset.reset": "A lost range would be skipped silently. Pass start= and on_lost= instead",
    "default.topic.config": "Its settings would not be checked. Put them beside the others",
    "enable.auto.commit": _COMMITS,
    "enable.auto.offset.store": _COMMITS,
    "enable.partition.eof": "The library needs the ends of partitions. Omit it",
    "group.id": "The group is an argument of its own. Pass group= instead",
    "offset.store.method": _COMMITS,
    "on_commit": _LISTENS,
    "offset_commit_cb": _LISTENS,
    "partition.assignment.strategy": "Only cooperative rebalances keep records in flight. Omit it",
    "rebalance_cb": _LISTENS,
    "test.mock.num.brokers": "Records would come from a broker that keeps nothing. Omit it",
}
"""Settings that can't be passed -> why, and what to do."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Name that a topic can have."""

_UNREAD = "topic.blacklist"
"""Setting with patterns of topics that the client takes for missing."""

_REFRESH_MS = 2000
"""Time between two looks for new partitions and topics. The client's own default is five minutes."""

_PREFETCH_KBYTES = 16_384
"""Memory for records that the client reads ahead, per partition. The client's own default is four times as much."""


def consumer_settings(kafka: Mapping[str, object], group: str, unread: str | None = None) -> dict[str, Any]:
    """Return the settings of a member of a group.

    Args:
        kafka: the user's settings, as librdkafka names them.
        group: consumer group.
        unread: topic that no pattern matches; None: there is none.

    Raises:
        BadConfigError: a setting is unknown, or is the library's own.
        OutageError: `oauth_cb` gives no token.
        PipelineError: confluent-kafka is not installed.
    """
    check_names(kafka)
    for name in kafka:
        if name in _OURS:
            raise BadConfigError(f"kafka: {name!r} can't be set. {_OURS[name]}.")
    is_new_protocol = str(kafka.get("group.protocol", "classic")).lower() == "consumer"
    settings = {
        "isolation.level": "read_committed",
        "topic.metadata.refresh.interval.ms": _REFRESH_MS,
        "queued.max.messages.kbytes": _PREFETCH_KBYTES,
        **kafka,
        "group.id": group,
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        **({} if is_new_protocol else {"partition.assignment.strategy": "cooperative-sticky"}),
    }
    if unread is not None:
        given = settings.get(_UNREAD)
        own = f"^{re.escape(unread)}$"
        settings[_UNREAD] = own if not given else f"{given},{own}"
    _try(settings)
    return settings


def check_group(call: str, group: object) -> None:
    """Check the name of a consumer group.

    Raises:
        BadConfigError: it is none.
    """
    if not isinstance(group, str) or not group:
        raise BadConfigError(f"{call}: group={group!r} is no name of a consumer group. Pass one, such as 'billing'.")


def subscription(call: str, topics: object, pattern: object) -> list[str]:
    """Return what to subscribe to.

    Raises:
        BadConfigError: not exactly one of both is given, or it is of the wrong type, or the client can't match the pattern.
        PipelineError: confluent-kafka is not installed.
    """
    if (topics is None) == (pattern is None):
        raise BadConfigError(
            f"{call}: topics and pattern are both given, or none of them. One says what to read. Pass topics=['orders'] or "
            "pattern='^orders'."
        )
    if pattern is not None:
        if not isinstance(pattern, str) or not pattern.startswith("^"):
            raise BadConfigError(
                f"{call}: pattern={pattern!r} is no regular expression that begins with '^'. The client takes others for "
                "names. Pass one, such as '^orders'."
            )
        _try_pattern(call, pattern)
        return [pattern]
    names = [] if isinstance(topics, str) or not isinstance(topics, Sequence) else list(topics)
    if not names or not all(isinstance(name, str) and _TOPIC.fullmatch(name) for name in names):
        raise BadConfigError(
            f"{call}: topics={topics!r} is no list of names, which have up to 249 letters, digits, '.', '_' and '-'. Nothing "
            "could be read. Pass one, such as ['orders']."
        )
    return names


def _try_pattern(call: str, pattern: str) -> None:
    """Let the client check a pattern, which it matches itself. Without brokers it connects to nothing, and joins no group."""
    kafka = confluent()
    consumer = kafka.Consumer({"group.id": "none", "log_level": 0})
    try:
        consumer.subscribe([pattern])
    except kafka.KafkaException:
        raise BadConfigError(
            f"{call}: pattern={pattern!r} is no POSIX extended regular expression. The client could match no topic with it. "
            "Close its brackets, and omit syntax of Python's own, such as '(?!'."
        ) from None
    finally:
        consumer.close()


def _try(settings: dict[str, Any]) -> None:
    """Let the client check the settings, because it knows their names and ranges. It doesn't wait for a broker."""
    kafka = confluent()
    try:
        connected(kafka.Consumer, {**settings, "log_level": 0}).close()
    except (kafka.KafkaException, TypeError, ValueError) as exc:
        words = exc.args[0].str() if isinstance(exc, kafka.KafkaException) else str(exc)
        raise BadConfigError(
            f"kafka: the client refuses the settings: {without_secrets(words, settings).rstrip('.')}. Nothing was read. Use "
            "librdkafka's names and values."
        ) from None
