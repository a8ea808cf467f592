"""No text of a client shows a secret, and every other setting stays readable."""

from typing import Any

import pytest

from acker_redis.kafka.client import without_secrets

KAFKA: dict[str, Any] = {
    "bootstrap.servers": "host:9092",
    "sasl.mechanisms": "PLAIN",
    "sasl.username": "billing-user",
    "sasl.password": "12345678",
    "sasl.oauthbearer.config": "principal=a password=hunter2",
    "ssl.key.password": 4711,
    "ssl.ca.location": "/etc/ca.pem",
    "auto.offset.reset": "error",
    "group.protocol": "consumer",
    "oauth_cb": lambda config: ("token", 0.0),
}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("login of billing-user with 12345678", "login of *** with ***"),
        ("Unrecognized config beginning at: password=hunter2", "Unrecognized config beginning at: password=***"),
        ("key 4711", "key ***"),
        ("fetch.error.backoff.ms of consumer at host:9092", "fetch.error.backoff.ms of consumer at host:9092"),
        ("no PLAIN, no /etc/ca.pem", "no PLAIN, no /etc/ca.pem"),
    ],
)
def test_only_secrets_are_hidden(text: str, shown: str) -> None:
    assert without_secrets(text, KAFKA) == shown
