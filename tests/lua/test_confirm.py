"""lua/scripts/confirm.lua: outcomes acted on leave the stream and the group."""

from typing import Any

import pytest

STREAM = "acker:{lab:0}:acked:0"


@pytest.fixture
def stream(lab, raw: Any) -> Any:
    """A lab whose first ack stream has three entries handed out to a spout, and a fourth that is not."""
    shard = lab()
    raw.xgroup_create(STREAM, "spout", "0", mkstream=True)
    for _ in range(3):
        raw.xadd(STREAM, {"spout_id": 7, "blocks": b""})
    raw.xreadgroup("spout", "consumer", {STREAM: ">"})
    raw.xadd(STREAM, {"spout_id": 7, "blocks": b""})
    return shard


def join(*entry_ids: bytes) -> bytes:
    return b" ".join(entry_ids)


def pending(raw: Any) -> list[bytes]:
    return [row["message_id"] for row in raw.xpending_range(STREAM, "spout", "-", "+", 10)]


def test_confirmed_entries_are_acknowledged_and_trimmed(stream, raw: Any) -> None:
    first, second, third, unread = (entry for entry, _ in raw.xrange(STREAM))
    assert stream.run("confirm", join(first, third)) == [2]
    assert [entry for entry, _ in raw.xrange(STREAM)] == [second, unread]
    assert pending(raw) == [second]


def test_a_second_confirmation_changes_nothing(stream, raw: Any) -> None:
    first, *rest = (entry for entry, _ in raw.xrange(STREAM))
    assert stream.run("confirm", first) == [1]
    assert stream.run("confirm", first) == [0]
    assert [entry for entry, _ in raw.xrange(STREAM)] == rest


def test_an_entry_that_was_trimmed_already_is_acknowledged(stream, raw: Any) -> None:
    first, second, third, _ = (entry for entry, _ in raw.xrange(STREAM))
    raw.xdel(STREAM, first)
    assert stream.run("confirm", first) == [0]
    assert pending(raw) == [second, third]


def test_an_older_entry_that_is_still_pending_stays(stream, raw: Any) -> None:
    first, second, third, unread = (entry for entry, _ in raw.xrange(STREAM))
    assert stream.run("confirm", join(second, third)) == [2]
    assert [entry for entry, _ in raw.xrange(STREAM)] == [first, unread]
    assert pending(raw) == [first]
    assert stream.run("confirm", first) == [1]
    assert [entry for entry, _ in raw.xrange(STREAM)] == [unread]


def test_undelivered_entries_of_recreated_group_stay(stream, raw: Any) -> None:
    first, second, third, unread = (entry for entry, _ in raw.xrange(STREAM))
    raw.xgroup_destroy(STREAM, "spout")
    raw.xgroup_create(STREAM, "spout", "0")
    raw.xreadgroup("spout", "consumer", {STREAM: ">"}, count=1)
    assert stream.run("confirm", join(first, third)) == [2]
    assert [entry for entry, _ in raw.xrange(STREAM)] == [second, unread]
    assert pending(raw) == []


def test_entries_of_deleted_consumer_are_trimmed_by_confirm(stream, raw: Any) -> None:
    """What a consumer held goes out of the group's list with the consumer."""
    *_, unread = (entry for entry, _ in raw.xrange(STREAM))
    raw.xgroup_delconsumer(STREAM, "spout", "consumer")
    raw.xadd(STREAM, {"spout_id": 7, "blocks": b""})
    raw.xreadgroup("spout", "consumer", {STREAM: ">"}, count=1)
    assert stream.run("confirm", unread) == [4]
    assert raw.xlen(STREAM) == 1


def test_confirm_on_missing_stream_is_no_error(stream, raw: Any) -> None:
    raw.delete(STREAM)
    assert stream.run("confirm", "1-1") == [0]
    assert raw.exists(STREAM) == 0


def test_confirm_call_takes_a_thousand_entries(stream, raw: Any) -> None:
    with raw.pipeline() as pipe:
        for _ in range(996):
            pipe.xadd(STREAM, {"spout_id": 7, "blocks": b""})
        pipe.execute()
    raw.xreadgroup("spout", "consumer", {STREAM: ">"})
    assert stream.run("confirm", join(*(entry for entry, _ in raw.xrange(STREAM)))) == [1000]
    assert raw.xlen(STREAM) == 0 and pending(raw) == []
