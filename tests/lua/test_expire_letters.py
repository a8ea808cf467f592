"""lua/scripts/expire_letters.lua: dead letters that are too old are removed, a bounded part of the stream per call."""

from collections.abc import Iterable
from typing import Any

import redis

from acker_redis.client import scripts
from acker_redis.client.client import Client
from acker_redis.client.scripts import Call
from acker_redis.model import keys

DONE, MORE, SPOUT_IDS = 0, 1, 2
LETTERS, EXPIRED, TAKERS = keys.dead_letters("lab"), keys.expired_letters("lab"), keys.replay_takers("lab")
HOUR_MS = 3600 * 1000


def call_of(keep_ms: int, after: str = "", limit: int = 200, spout_ids: Iterable[int] = (0,)) -> Call:
    named = {
        "expired_letters": EXPIRED,
        "dead_letters": LETTERS,
        "replay_takers": TAKERS,
        "replays": [keys.replays("lab", spout_id) for spout_id in spout_ids],
    }
    return scripts.load("expire_letters").call(named, keep_ms, after, limit, *spout_ids)


def run(client: Client, **arguments: Any) -> list[Any]:
    ((status, removed, after, *needed),) = client.run([call_of(HOUR_MS, **arguments)])
    return [status, removed, after.decode(), sorted(map(int, needed))]


def put(raw: Any, *entry_ids: str, **fields: Any) -> None:
    for entry_id in entry_ids:
        raw.xadd(LETTERS, {"format": 2, "message_id": 1, "attempts": 3, **fields}, id=entry_id)


def request(raw: Any, spout_id: int, *entry_ids: str) -> None:
    raw.zadd(keys.replays("lab", spout_id), dict.fromkeys(entry_ids, 1))


def left(raw: Any) -> list[str]:
    return [entry_id.decode() for entry_id, _ in raw.xrange(LETTERS)]


def milliseconds(time: tuple[int, int]) -> int:
    return time[0] * 1000 + time[1] // 1000


def test_letters_that_are_older_by_a_millisecond_are_removed(real_url: str) -> None:
    """One letter for each millisecond, with two in the last one that is removed."""
    client, raw = Client(real_url), redis.Redis.from_url(real_url)
    client.run([call_of(HOUR_MS)])  # loads it
    call = call_of(HOUR_MS)
    sha1 = scripts.sha1(call.script.text_for(shebang=int(raw.info("server")["redis_version"].split(".")[0]) >= 7))
    for _ in range(10_000):  # until all of it happens within a millisecond
        began = milliseconds(raw.time())
        pipe: Any = raw.pipeline().delete(LETTERS)
        for entry_id in [f"{began - HOUR_MS + ms}-{number}" for ms in range(-2, 9) for number in (0, 7)]:
            pipe.xadd(LETTERS, {"spout_id": 0}, id=entry_id)
        pipe.time().evalsha(sha1, len(call.keys), *call.keys, *call.args).time()
        *_, before, reply, after = pipe.execute()
        now = milliseconds(before)
        if now == milliseconds(after) and now < began + 8:
            break
    else:
        raise AssertionError("the server took longer than a millisecond each time")
    assert reply[:2] == [DONE, 2 * (now - began + 2)]
    assert left(raw)[0] == f"{now - HOUR_MS}-0"
    client.close()
    raw.close()


def test_removed_letters_are_counted_and_young_ones_stay(client: Client, raw: Any) -> None:
    put(raw, "1-1", "2-1")
    young = raw.xadd(LETTERS, {"message_id": 3}).decode()
    assert run(client) == [DONE, 2, "2-1", []]
    assert left(raw) == [young]
    assert run(client) == [DONE, 0, "", []]
    raw.delete(LETTERS)
    put(raw, "3-1")
    assert run(client) == [DONE, 1, "3-1", []]
    assert raw.hgetall(EXPIRED) == {b"total": b"3"}


def test_a_call_looks_at_some_letters_and_the_next_continues(client: Client, raw: Any) -> None:
    put(raw, *(f"{number}-1" for number in range(1, 31)))
    request(raw, 0, "2-1")
    status, removed, after, _ = run(client, limit=10)
    assert (status, removed, len(left(raw))) == (MORE, int(after.partition("-")[0]) - 1, 30 - removed)
    assert 10 <= removed + 1 <= 13
    assert run(client, after=after) == [DONE, 29 - removed, "30-1", []]
    assert left(raw) == ["2-1"]


def test_large_letters_are_removed_few_at_a_time(client: Client, raw: Any) -> None:
    put(raw, *(f"{number}-1" for number in range(1, 11)), payload=b"x" * 100_000)
    status, removed, _, _ = run(client)
    assert (status, removed) == (MORE, 3)


def test_letters_with_a_requested_replay_stay(client: Client, raw: Any) -> None:
    put(raw, "1-1", "2-1", spout_id=7)
    put(raw, "3-1")
    request(raw, 7, "2-1")
    assert run(client, spout_ids=(0, 7)) == [DONE, 2, "3-1", []]
    assert left(raw) == ["2-1"]
    raw.delete(keys.replays("lab", 7))
    assert run(client, spout_ids=(0, 7)) == [DONE, 1, "2-1", []]


def test_letters_whose_replay_another_spout_took_over_stay(client: Client, raw: Any) -> None:
    put(raw, "1-1", "2-1", spout_id=7)
    raw.sadd(TAKERS, 9)
    request(raw, 9, "2-1")
    assert run(client, spout_ids=(7, 9)) == [DONE, 1, "2-1", []]
    assert left(raw) == ["2-1"]


def test_call_that_lacks_replays_removes_nothing_and_names_them(client: Client, raw: Any) -> None:
    put(raw, "1-1", spout_id=7)
    put(raw, "2-1", spout_id=8)
    raw.sadd(TAKERS, 9)
    assert run(client, after="0-5", spout_ids=(8,)) == [SPOUT_IDS, 0, "0-5", [7, 8, 9]]
    assert left(raw) == ["1-1", "2-1"]
    assert not raw.exists(EXPIRED)


def test_entries_that_are_no_letters_are_removed(client: Client, raw: Any) -> None:
    raw.xadd(LETTERS, {"theirs": b"\xff"}, id="1-1")
    put(raw, "2-1", spout_id="none")
    put(raw, "3-1", spout_id="007")
    assert run(client, spout_ids=(0, 7)) == [DONE, 3, "3-1", []]


def test_longest_retention_removes_nothing(client: Client, raw: Any) -> None:
    put(raw, "1-1")
    assert client.run([call_of(36_500 * 24 * HOUR_MS)]) == [[DONE, 0, b""]]
