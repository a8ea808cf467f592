"""lua/scripts/stage.lua: numbers of stage names."""

from typing import Any

from acker_redis.client import scripts

KEY = "acker:{lab}:stages"
FULL = 0


def stage(client: Any, name: str) -> int:
    ((number,),) = client.run([scripts.load("stage").call({"stages": KEY}, name)])
    return int(number)


def test_names_are_numbered_in_the_order_of_their_first_use(client, raw: Any) -> None:
    assert [stage(client, name) for name in ("split", "count", "split", "zählen")] == [1, 2, 1, 3]
    assert raw.hgetall(KEY) == {b"split": b"1", b"count": b"2", "zählen".encode(): b"3"}
    assert raw.keys("*") == [KEY.encode()]


def test_the_256th_name_finds_the_app_full_and_known_ones_still_work(client, raw: Any) -> None:
    raw.hset(KEY, mapping={f"stage {i}": i for i in range(1, 255)})
    assert stage(client, "the last") == 255
    assert stage(client, "one too many") == FULL
    assert raw.hlen(KEY) == 255
    assert stage(client, "the last") == 255
    assert stage(client, "stage 1") == 1
