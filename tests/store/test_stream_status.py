"""Status of a stream in Redis."""

from typing import Any

from acker_redis.acker import app_of
from acker_redis.model import keys


def test_a_status_is_read_by_its_handler_only_and_expires(source: Any, connect: Any, raw: Any) -> None:
    acker = connect(app="orders")
    app = app_of(acker)
    assert app.stream_status(3, "a") is None
    app.write_stream_status(3, "a", "one")
    app.write_stream_status(3, "a", "two")
    assert (app.stream_status(3, "a"), app.stream_status(3, "b"), app.stream_status(0, "a")) == ("two", None, None)
    assert 0 < raw.ttl(keys.stream_status("orders", 3)) <= 7 * 24 * 3600
    app.write_stream_status(3, "b", "of a later start")
    assert (app.stream_status(3, "a"), app.stream_status(3, "b")) == (None, "of a later start")
