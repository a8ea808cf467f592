"""Dead letters in a topic, on a real broker: what they carry, and when they are safe."""

from typing import Any

import pytest

from acker_redis import BadConfigError
from acker_redis.kafka.letter_topic import Letter, LetterTopic, about
from acker_redis.testing import wait_until
from tests.support.kafka import Broker

pytestmark = pytest.mark.server


def collected(topic: LetterTopic, count: int) -> tuple[list[str], list[str]]:
    delivered: list[str] = []
    given_up: list[str] = []

    def is_told() -> bool:
        for told, found in zip((delivered, given_up), topic.collect(), strict=True):
            told += found
        return len(delivered) + len(given_up) == count

    wait_until(is_told, "every letter is delivered or given up", timeout_secs=90)
    return delivered, given_up


PLACE = {"topic": "orders", "topic_id": "A" * 22, "partition": 3, "offset": 17}
ABOUT: dict[str, Any] = about(
    app="billing", group="g", place=PLACE, stage="split", reason="failed", detail="no order", attempts=5, run_id="r"
)


def test_letter_has_the_record_unchanged_and_connects_headers(node: Broker) -> None:
    name = node.topic()
    topic = LetterTopic({"bootstrap.servers": node.address, "isolation.level": "read_committed"}, name)
    headers: list[tuple[str, bytes | None]] = [
        ("a", b"\xff"),
        ("a", None),
        ("__connect.errors.topic", b"an earlier one"),
    ]
    topic.send("1", Letter(b"\x00k", b"\xffv", headers, ABOUT))
    topic.send("2", Letter(None, None, [], ABOUT))
    assert collected(topic, 2) == (["1", "2"], [])
    first, second = node.read(name)
    assert (first.key(), first.value()) == (b"\x00k", b"\xffv")
    assert first.headers()[:3] == headers
    expected = {
        "__connect.errors.topic": b"orders", "__connect.errors.partition": b"3", "__connect.errors.offset": b"17",
        "__connect.errors.connector.name": b"billing", "__connect.errors.stage": b"split",
        "__connect.errors.exception.message": b"no order", "acker-topic-id": b"A" * 22, "acker-group": b"g",
        "acker-reason": b"failed", "acker-attempts": b"5", "acker-run-id": b"r",
    }  # fmt: skip
    assert dict(first.headers()[3:]) == expected
    assert (second.key(), second.value(), dict(second.headers())) == (None, None, expected)


def test_letter_that_is_too_large_goes_without_its_value_or_not_at_all(node: Broker) -> None:
    name = node.topic(max_message_bytes="2000")
    topic = LetterTopic({"bootstrap.servers": node.address}, name)
    topic.send("large value", Letter(b"k", b"x" * 5000, [], ABOUT))
    topic.send("large key", Letter(b"k" * 5000, b"x", [], ABOUT))
    topic.send("fine", Letter(b"k", b"x", [], ABOUT))
    delivered, given_up = collected(topic, 3)
    assert (sorted(delivered), given_up) == (["fine", "large value"], ["large key"])
    values = {message.value(): dict(message.headers()) for message in node.read(name)}
    assert values.keys() == {b"x", None}
    assert values[None]["acker-value"] == b"left out"


def test_missing_topic_is_refused(node: Broker) -> None:
    with pytest.raises(BadConfigError, match="doesn't exist"):
        LetterTopic({"bootstrap.servers": node.address}, "not-there")
