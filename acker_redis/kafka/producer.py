"""Settings of a producer whose delivery reports prove that the broker has each record."""

import re
from collections.abc import Mapping
from typing import Any

from acker_redis.errors import BadConfigError
from acker_redis.kafka.client import check_names, confluent, connected, without_secrets

_DELIVERY_MS = 60_000
"""Time for a record's acknowledgement, unless `delivery.timeout.ms` is set."""

_NEW_TOPIC_MS = 10_000
"""Time that brokers get to hear of a new topic. It must be over before the record's own, or an unknown topic is an outage."""

_ACKS = ("acks", "request.required.acks")
_TIMEOUTS = ("delivery.timeout.ms", "message.timeout.ms")

_OURS = {
    "default.topic.config": "Its settings would not be checked. Put them beside the others",
    "delivery.report.only.error": "The sink sets it itself. Omit it",
    "dr_cb": "The sink takes the delivery reports itself. Omit it",
    "dr_msg_cb": "The sink takes the delivery reports itself. Omit it",
    "on_delivery": "The sink takes the delivery reports itself. Omit it",
    "partitioner": "Keys go to the partitions that Java's and Spark's clients choose. For others, pass use_partition=True",
    "partitioner_cb": "Keys go to the partitions that Java's and Spark's clients choose. For others, pass use_partition=True",
    "test.mock.num.brokers": "Records would go to a broker that keeps nothing. Omit it",
    "transactional.id": "A replay is another transaction, so it would hide no repeats. Omit it",
}
"""Settings that can't be passed -> why, and what to do."""


def producer_settings(kafka: Mapping[str, object]) -> dict[str, Any]:
    """Return the settings of a producer that is idempotent, with the acknowledgement of all replicas in sync.

    Args:
        kafka: the user's settings, as librdkafka names them.

    Raises:
        BadConfigError: a setting is unknown, weakens the proof, or is the sink's own.
        OutageError: `oauth_cb` gives no token.
        PipelineError: confluent-kafka is not installed.
    """
    check_names(kafka)
    for name, value in kafka.items():
        _check(name, str(value).lower())
    given = next((str(kafka[name]) for name in _TIMEOUTS if name in kafka), None)
    timeout_ms = int(given) if given is not None and given.isdigit() else _DELIVERY_MS  # the client refuses other texts
    settings = {
        "acks": "all",
        "linger.ms": 5,
        "topic.metadata.propagation.max.ms": min(_NEW_TOPIC_MS, timeout_ms // 3),
        **({} if given is not None else {_TIMEOUTS[0]: timeout_ms}),
        **{name: value for name, value in kafka.items() if name not in _ACKS},
        "enable.idempotence": True,
        "partitioner": "murmur2_random",
    }
    _try(settings)
    return settings


def _check(name: str, value: str) -> None:
    if name in _OURS:
        raise BadConfigError(f"kafka: {name!r} can't be set. {_OURS[name]}.")
    if name in _ACKS and value not in ("all", "-1"):
        raise BadConfigError(
            f"kafka: {name}={value} waits for too few replicas. A record could be lost after its message was acked. "
            "Omit it, so that all replicas in sync acknowledge."
        )
    if name == "enable.idempotence" and value not in ("true", "1"):
        raise BadConfigError(
            f"kafka: {name}={value} lets the client's own retries write a record twice. The sink would not notice. Omit it."
        )
    if name in _TIMEOUTS and _is_zero(value):
        raise BadConfigError(
            f"kafka: {name}=0 means no limit. An outage of the broker would hold the emission for ever. Set a time, such as "
            "60000."
        )


def _is_zero(value: str) -> bool:
    return re.fullmatch(r"\s*[+-]?(0x)?0+\s*", value) is not None  # the client reads more than digits


def _try(settings: dict[str, Any]) -> None:
    """Let the client check the settings, because it knows their names and ranges. It doesn't wait for a broker."""
    kafka = confluent()
    try:
        connected(kafka.Producer, {**settings, "log_level": 0})
    except (kafka.KafkaException, TypeError, ValueError) as exc:
        words = exc.args[0].str() if isinstance(exc, kafka.KafkaException) else str(exc)
        raise BadConfigError(
            f"kafka: the client refuses the settings: {without_secrets(words, settings).rstrip('.')}. Nothing was written. "
            "Use librdkafka's names and values."
        ) from None
