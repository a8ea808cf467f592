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
from acker_redis.spout.retry import RetryPolicy
from tests.kafka.test_secured_listeners import AWAY, issued, start
from tests.spark.runs.test_kafka import Case, numbered
from tests.support.kafka import Broker, values
from tests.support.spark.cases import MakeCase

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


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize("spared", ["driver", "nobody"])
def test_sink_without_tokens_counts_against_nobody(
    case: MakeCase, secured: Broker, tmp_path: Path, spared: str
) -> None:
    """The service of tokens is away during the first two emissions, for the workers alone, or for the driver, too."""
    sink = secured.topic()
    emissions: list[int] = []

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        emissions.append(tracker.emission)
        if len(emissions) == 1:
            (tmp_path / AWAY).write_text(str(os.getpid()) if spared == "driver" else "")
        elif len(emissions) == 3:
            (tmp_path / AWAY).unlink()
        rows = messages.selectExpr("cast(id AS string) AS value", "_share", "_roots")
        tracker.write_kafka(rows, topic=sink, kafka=secured.client)

    ended = case(n=50).done(pipeline, retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    assert (ended.letters, ended.acked) == ({}, set(range(50)))
    assert len(emissions) >= 3
    assert values(secured.read(sink)) == sorted(map(str, range(50)))
