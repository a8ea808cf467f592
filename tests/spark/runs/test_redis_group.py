"""A consumer of a group whose connection is cut: what it was given is read again, and no other consumer has to claim it."""

from typing import Any

from acker_redis.client.client import Client
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
