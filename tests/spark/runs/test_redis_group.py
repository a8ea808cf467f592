"""A consumer of a group whose connection is cut, or that stood still: no other consumer has to claim what it was given."""

import threading
from typing import Any
from unittest.mock import Mock

import numpy as np

from acker_redis.client.client import Client
from acker_redis.spark.runs import redis_stream
from acker_redis.spark.runs.redis_group import RedisGroup


def test_entries_of_a_lost_reply_are_read_by_the_same_consumer(start_server: Any, start_proxy: Any, plain: Any) -> None:
    server = start_server()
    proxy, raw = start_proxy(server), plain(server.url)
    client = Client(proxy.url)
    try:
        group = RedisGroup(client, "orders", "g", "one", claim_secs=3600)
        assert group.read(10, 1) == []
        written = [raw.xadd("orders", {"id": number}) for number in range(3)]
        proxy.cut_replies()
        read = group.read(10, 1) or group.read(10, 1)
        assert proxy.cuts == 1
        assert [entry_id for entry_id, _ in read] == written
    finally:
        client.close()


def test_claims_are_renewed_before_the_read_that_takes_over_old_ones() -> None:
    """After a pause the consumer's own claims are as old as those of a dead one."""
    stop, calls = threading.Event(), list[str]()

    def read(count: int, block_ms: int) -> Any:
        calls.append("read")
        stop.set()
        return np.array([], np.int64)

    entries = Mock(read=read, keep_claimed=lambda: calls.append("renew"))
    spout = Mock(pending=0, state=Mock(left=0))
    redis_stream._run(Mock(emission=None), spout, entries, stop, 5, 0.0, 50, None)
    assert calls[:2] == ["renew", "read"]
