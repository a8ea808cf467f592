"""Single records, read through connections that take long."""

from types import SimpleNamespace
from typing import Any

import pytest

from acker_redis.kafka import record_reader
from acker_redis.kafka.client import confluent
from acker_redis.kafka.record_reader import Place, RecordReader
from acker_redis.kafka.topics import Topic, Topics


def test_call_in_which_nothing_arrives_is_followed_by_a_longer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call connects anew, and this network needs five seconds for that."""
    clock = SimpleNamespace(now=1000.0)
    place = Place("orders", "A" * 22, 0, 7)

    class Consumer:
        def __init__(self, settings: object) -> None:
            self.made_at = clock.now

        def assign(self, partitions: object) -> None:
            pass

        def poll(self, timeout_secs: float) -> Any:
            clock.now += timeout_secs
            is_connected = clock.now - self.made_at > 5
            return SimpleNamespace(offset=lambda: 7, error=lambda: None) if is_connected else None

        def close(self) -> None:
            pass

    kafka = confluent()
    known = {"TopicPartition": kafka.TopicPartition, "KafkaError": kafka.KafkaError}
    monkeypatch.setattr(record_reader, "confluent", lambda: SimpleNamespace(Consumer=Consumer, **known))
    monkeypatch.setattr(record_reader, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(Topics, "describe", lambda topics, names: {"orders": Topic("A" * 22, 1)})
    reader = RecordReader({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    read = [reader.read([place]) for _ in range(3)]
    assert read[:2] == [None, None]
    assert read[2] is not None
    assert read[2].keys() == {place}
