"""lua/scripts/configure.lua: the first client's settings hold."""

from typing import Any

from acker_redis.client import scripts

KEY = "acker:{lab}:config"


def configure(client: Any, **settings: Any) -> dict[bytes, bytes]:
    pairs = [part for pair in settings.items() for part in pair]
    (reply,) = client.run([scripts.load("configure").call({"config": KEY}, *pairs)])
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def test_the_first_client_writes_its_settings(client, raw: Any) -> None:
    assert configure(client, shards=8, clock="first_seen") == {b"shards": b"8", b"clock": b"first_seen"}
    assert raw.hgetall(KEY) == {b"shards": b"8", b"clock": b"first_seen"}
    assert raw.keys("*") == [KEY.encode()]


def test_later_client_gets_stored_settings_and_changes_nothing(client, raw: Any) -> None:
    raw.hset(KEY, mapping={"shards": 8, "clock": "first_seen"})
    told = configure(client, shards=4, clock="last_update", lanes=2)
    assert told == raw.hgetall(KEY) == {b"shards": b"8", b"clock": b"first_seen"}
