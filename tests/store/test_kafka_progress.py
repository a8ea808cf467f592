"""Dead letters are safe once the server has copied them, where it keeps copies."""

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from acker_redis.acker import app_of
from acker_redis.kafka.assignment import Owned
from acker_redis.kafka.partition_progress import PartitionProgress
from acker_redis.kafka.topics import Topic
from acker_redis.store import kafka_progress
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.kafka_progress import GoneTopics, KafkaProgress, numbers_of
from acker_redis.testing import fake_acker, wait_until

pytestmark = pytest.mark.server

LETTER = DeadLetter(7, "run", 1, "failed", place="{}")


def progress_of(acker: Any) -> KafkaProgress:
    return KafkaProgress(app_of(acker).client, acker.config.app, "billing")


def test_letters_on_a_server_without_copies_are_safe_if_they_are_there() -> None:
    acker = fake_acker()
    (entry_id,) = acker.dead_letters.add([LETTER])
    assert progress_of(acker).look_at_letters([entry_id]) == (True, [])
    assert progress_of(acker).look_at_letters([entry_id, "1-1"]) == (True, ["1-1"])


def test_letter_is_safe_in_the_append_only_file(
    start_server: Callable[..., Any], open_acker: Callable[..., Any]
) -> None:
    acker = open_acker(start_server("--appendonly", "yes", "--appendfsync", "everysec").url)
    (entry_id,) = acker.dead_letters.add([LETTER])
    progress = progress_of(acker)
    wait_until(lambda: progress.look_at_letters([entry_id]) == (True, []), "the letter is on disk", timeout_secs=60)


def test_letter_waits_for_a_replica(
    start_server: Callable[..., Any], open_acker: Callable[..., Any], plain: Callable[..., Any]
) -> None:
    primary = start_server()
    replica = start_server("--replicaof", f"127.0.0.1 {primary.port}")
    acker = open_acker(primary.url)
    raw = plain(primary.url)
    wait_until(lambda: raw.info("replication")["connected_slaves"] == 1, "the replica is there", timeout_secs=60)
    progress = progress_of(acker)
    (entry_id,) = acker.dead_letters.add([LETTER])
    wait_until(lambda: progress.look_at_letters([entry_id]) == (True, []), "the replica has it", timeout_secs=60)
    pid = int(plain(replica.url).info("server")["process_id"])
    os.kill(pid, signal.SIGSTOP)
    try:
        (entry_id,) = acker.dead_letters.add([LETTER])
        assert progress.look_at_letters([entry_id]) == (False, [])
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: progress.look_at_letters([entry_id]) == (True, []), "the replica has it", timeout_secs=60)
    replica.stop()
    wait_until(lambda: raw.info("replication")["connected_slaves"] == 0, "the replica is gone", timeout_secs=60)
    (entry_id,) = acker.dead_letters.add([LETTER])
    assert progress.look_at_letters([entry_id]) == (False, [])


def test_id_of_a_topic_is_that_of_its_latest_partition() -> None:
    progress = progress_of(fake_acker())
    assert progress.topic_id("orders") is None
    progress.write({
        "orders/0": {"topic_id": "old", "time_ms": 5},
        "orders/1": {"topic_id": "new", "time_ms": 6},
        "orders-eu/0": {"topic_id": "other", "time_ms": 7},
    })  # fmt: skip
    assert progress.topic_id("orders") == "new"
    assert progress.topic_id("eu") is None


def test_id_of_a_deleted_topic_outlives_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a topic that is created again later would begin at `start`, and `latest` would skip its first records."""
    monkeypatch.setattr(kafka_progress, "_LOOK_SECS", 0.0)
    progress = progress_of(fake_acker())
    silent = {"time_ms": progress.now_ms() - 60_000}
    progress.write({
        "orders/0": {"topic_id": "old", **silent},
        "returns/0": {"topic_id": "kept", **silent},
        "returns/1": {"topic_id": "kept", **silent},
    })  # fmt: skip
    topics = Mock(answers=lambda asked: {"returns": Topic("kept", 1)}, ask=lambda names: dict.fromkeys(names, Mock()))
    gone = GoneTopics(progress, topics)
    gone.look()
    gone.look()
    assert list(progress.read()) == ["returns/0"]
    assert [progress.topic_id(name) for name in ("orders", "returns", "others")] == ["old", "kept", None]
    progress.write({"orders/0": {"topic_id": "new", "time_ms": 9}})
    assert progress.topic_id("orders") == "new"


def test_partition_that_nobody_reads_any_more_goes_after_a_week(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its topic is still there. The other partitions' drivers keep the group's key alive."""
    monkeypatch.setattr(kafka_progress, "_LOOK_SECS", 0.0)
    progress = progress_of(fake_acker())
    now_ms, week_ms = progress.now_ms(), 7 * 24 * 3_600_000
    progress.write({
        "orders/0": {"topic_id": "a"},
        "returns/0": {"topic_id": "b", "time_ms": now_ms - week_ms - 60_000},
        "returns/1": {"topic_id": "b", "time_ms": now_ms - week_ms + 3_600_000},
    })  # fmt: skip
    there = {"orders": Topic("a", 1), "returns": Topic("b", 2)}
    topics = Mock(answers=lambda asked: there, ask=lambda names: dict.fromkeys(names, Mock()))
    gone = GoneTopics(progress, topics)
    gone.look()
    gone.look()
    assert list(progress.read()) == ["orders/0", "returns/1"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("orders/1", "{"),
        ("orders/1", "[]"),
        ("orders/1", "7"),
        ("orders/1", '{"topic_id": "old"}'),
        ("orders/1", '{"time_ms": 5}'),
        ("orders/1", '{"topic_id": "old", "time_ms": "yesterday"}'),
        ("orders", "{}"),
        ("orders/x", '{"topic_id": "old", "time_ms": 5}'),
    ],
)
def test_damaged_progress_of_a_partition_is_unknown_and_logged_once(
    caplog: pytest.LogCaptureFixture, name: str, text: str
) -> None:
    acker = fake_acker()
    progress = progress_of(acker)
    progress.write({"orders/0": {"topic_id": "old", "time_ms": 5}})
    app_of(acker).client.redis.hset(progress._key, name, text)
    assert list(progress.read()) == list(progress.read()) == ["orders/0"]
    assert progress.topic_id("orders") == "old"
    (record,) = caplog.records
    assert (record.levelname, "damaged" in record.message, repr(name) in record.message) == ("ERROR", True, True)
    progress.write({name: {"topic_id": "new"}} if name == "orders/1" else {})
    assert ("orders/1" in progress.read()) == (name == "orders/1")


def test_age_of_progress_is_that_of_the_servers_clock(
    monkeypatch: pytest.MonkeyPatch, url: str, open_acker: Callable[..., Any]
) -> None:
    """A driver whose clock is an hour ahead or behind looks after its partitions, too."""
    progress = progress_of(open_acker(url))
    owned = Owned("orders", 0, "id", PartitionProgress(0), 0)
    ahead = time.time() + 3600
    with monkeypatch.context() as clock:
        clock.setattr(time, "time", lambda: ahead)
        progress.write({str(owned): numbers_of(owned, 0, 0, 0, None, spout_id=0, run_id="run")})
    (text,) = progress.texts().values()
    assert abs(int(json.loads(text)["time_ms"]) - progress.now_ms()) < 1_800_000
