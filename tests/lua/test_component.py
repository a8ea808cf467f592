"""lua/scripts/component.lua: numbers of component names."""

from typing import Any

from acker_redis.client import scripts

KEY = "acker:{lab}:components"
FULL = 0


def component(client: Any, name: str) -> int:
    ((number,),) = client.run([scripts.load("component").call({"components": KEY}, name)])
    return int(number)


def test_component_names_are_numbered_in_order_of_first_use(client, raw: Any) -> None:
    assert [component(client, name) for name in ("split", "count", "split", "zählen")] == [1, 2, 1, 3]
    assert raw.hgetall(KEY) == {b"split": b"1", b"count": b"2", "zählen".encode(): b"3"}
    assert raw.keys("*") == [KEY.encode()]


def test_256th_component_name_is_refused_and_known_names_work(client, raw: Any) -> None:
    raw.hset(KEY, mapping={f"component {i}": i for i in range(1, 255)})
    assert component(client, "the last") == 255
    assert component(client, "one too many") == FULL
    assert raw.hlen(KEY) == 255
    assert component(client, "the last") == 255
    assert component(client, "component 1") == 1
