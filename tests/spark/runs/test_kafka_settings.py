"""Settings of `run_kafka`, and of a stream's group, which are checked before anything is joined or read."""

import re
import threading
from typing import Any

import pytest

from acker_redis import BadConfigError
from acker_redis.spark import MessageIds, run_kafka
from acker_redis.spark.runs.options import group_settings
from acker_redis.testing import fake_acker


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topics": None}, "topics and pattern"),
        ({"pattern": "^a"}, "topics and pattern"),
        ({"topics": None, "pattern": "a"}, "pattern='a'"),
        ({"topics": None, "pattern": "^ord("}, "pattern='^ord(' is no POSIX extended regular expression"),
        ({"topics": None, "pattern": "^(?!test)"}, "pattern='^(?!test)'"),
        ({"topics": None, "pattern": "^ord(", "kafka": {"group.protocol": "consumer"}}, "pattern='^ord('"),
        ({"topics": "orders"}, "topics='orders'"),
        ({"topics": []}, "topics="),
        ({"topics": ["a b"]}, "topics=['a b']"),
        ({"kafka": {"bootstrap.servers": ["host:9092"]}}, "bootstrap.servers"),
        ({"kafka": {"bootstrap.servers": "http://host:9092/path"}}, "no list of hosts and ports"),
        ({"max_spout_pending": 0}, "Use an integer of 1 or more."),
        ({"group": ""}, "group=''"),
        ({"start": "latest "}, "start='latest '"),
        ({"on_lost": "skip"}, "on_lost='skip'"),
        ({"on_recreated": "letter"}, "on_recreated='letter'"),
        ({"max_spout_pending": None}, "max_spout_pending"),
        ({"max_pending_bytes": 0}, "max_pending_bytes"),
        ({"commit_secs": -1}, "commit_secs"),
        ({"imports": 1}, "imports=1"),
        ({"imports": True}, "has only one lane"),
        *(
            ({"kafka": {name: "x"}}, name)
            for name in (
                "group.id",
                "enable.auto.commit",
                "auto.offset.reset",
                "partition.assignment.strategy",
                "nonsense",
            )
        ),
    ],
)
def test_setting_is_refused_before_the_group_is_joined(options: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"topics": ["orders"], "group": "billing", **options}
    kafka = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "pa55word", **given.pop("kafka", {})}
    with pytest.raises(BadConfigError, match=re.escape(text)) as raised:
        run_kafka(None, print, acker=fake_acker(), kafka=kafka, stop=threading.Event(), **given)  # type: ignore[arg-type]
    assert "pa55word" not in str(raised.value)


class Session:
    """Has the call by which a session is known."""

    def createDataFrame(self) -> None:  # noqa: N802  # Spark's name
        """Do nothing."""


@pytest.mark.parametrize(
    ("spark", "stop", "text"),
    [
        (None, threading.Event(), "run_kafka: spark=None is not a SparkSession"),
        (Session(), True, "run_kafka: stop=True is not an event, so it can't end the run. Pass a threading.Event."),
    ],
)
def test_what_is_no_session_or_no_event_is_refused(spark: Any, stop: Any, text: str) -> None:
    kafka = {"bootstrap.servers": "127.0.0.1:1"}
    with pytest.raises(BadConfigError, match=re.escape(text)):
        run_kafka(spark, print, acker=fake_acker(), kafka=kafka, topics=["t"], group="g", stop=stop)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "key.deserializer",
            'No such configuration property: "key.deserializer". Nothing was read. Use librdkafka\'s names',
        ),
        ("sasl.jaas.config", "for more information. Nothing was read. Use librdkafka's names and values."),
    ],
)
def test_setting_of_the_client_for_java_is_refused(name: str, text: str) -> None:
    kafka = {"bootstrap.servers": "127.0.0.1:1", name: "org.example.Module"}
    with pytest.raises(BadConfigError, match=re.escape(text)):
        run_kafka(None, print, acker=fake_acker(), kafka=kafka, topics=["t"], group="g", stop=threading.Event())  # type: ignore[arg-type]


def test_missing_broker_is_named() -> None:
    with pytest.raises(BadConfigError, match=re.escape("bootstrap.servers")):
        run_kafka(None, print, acker=fake_acker(), kafka={}, topics=["t"], group="g", stop=threading.Event())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("group", "kafka", "ids", "text"),
    [
        ("billing", None, MessageIds.offsets(), "kafka_group has no effect without kafka"),
        (None, {}, MessageIds.offsets(), "kafka has no effect without kafka_group"),
        ("", {}, MessageIds.offsets(), "group=''"),
        ("billing", {}, MessageIds.column("order"), "ids='order' can't be used with kafka_group"),
        ("billing", {"enable.auto.commit": True}, MessageIds.offsets(), "'enable.auto.commit' can't be set"),
    ],
)
def test_group_of_a_stream_is_refused(group: Any, kafka: Any, ids: MessageIds, text: str) -> None:
    given = None if kafka is None else {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "pa55word", **kafka}
    with pytest.raises(BadConfigError, match=re.escape(text)):
        group_settings("TrackedBatches", group, given, ids)


def test_group_of_a_stream_shows_no_password() -> None:
    kafka = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "pa55word"}
    settings = group_settings("TrackedBatches", "billing", kafka, MessageIds.offsets())
    assert settings is not None
    assert settings.client["sasl.password"] == "pa55word"
    assert "pa55word" not in repr(settings)
    assert group_settings("TrackedBatches", None, None, MessageIds.column("order")) is None
