"""Tokens of a callback (`oauth_cb`) for source and sink: the driver and the workers ask for tokens of their own."""

import logging
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from acker_redis import Acker, AckerConfig
from acker_redis.spark import Tracker
from tests.kafka.test_secured_listeners import issued, start
from tests.spark.runs.test_kafka import Case, numbered
from tests.support.kafka import Broker, values

pytestmark = pytest.mark.spark


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Broker]:
    with start("tokens", tmp_path) as node:
        yield node


def test_callback_gives_tokens_to_the_driver_and_to_workers_and_no_log_shows_them(
    spark: Any, secured: Broker, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic, sink, letters = secured.topic(partitions=2), secured.topic(), secured.topic()
    secured.produce(topic, numbered(40, 2, lambda n: n == 7))
    before = len(issued(tmp_path))
    kafka = {**secured.client, "log_level": 7, "debug": "security"}
    shown: list[str] = []

    def pipeline(tracker: Tracker, records: DataFrame) -> None:
        sound = tracker.fail_where(records, "startswith(value, encode('poison', 'UTF-8'))", "poison")
        tracker.write_kafka(sound.select("value", "_share", "_roots"), topic=sink, kafka=kafka)
        shown.append(repr(tracker))

    config = AckerConfig(app=f"kafka-{uuid.uuid4().hex}", shards=2, message_timeout_secs=600)
    with caplog.at_level(logging.DEBUG), Acker.connect(url, config) as acker:
        case = Case(spark, secured, acker, tmp_path)
        result = case.run(
            lambda now: now.counts.acked + now.counts.dead_lettered == 40,
            topics=[topic], pipeline=pipeline, kafka=kafka, dead_letters=letters,
        )  # fmt: skip
        shown += [caplog.text, repr(result), *map(repr, acker.dead_letters.read())]
    assert (result.counts.acked, secured.lag(case.group, topic)) == (39, 0)
    assert values(secured.read(sink)) == sorted(str(n) for n in range(40) if n != 7)
    assert values(secured.read(letters)) == ["poison-7"]
    tokens = issued(tmp_path)
    assert len(tokens) > before
    assert set(tokens.values()) > {os.getpid()}, "workers ask for tokens, too"
    assert all(token not in text for text in shown for token in tokens)
