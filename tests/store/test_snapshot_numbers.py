"""Numbers of the newest snapshots of streams."""

from typing import Any

from acker_redis.acker import app_of
from acker_redis.model import keys


def test_snapshot_number_is_kept_per_query(source: Any, connect: Any, raw: Any) -> None:
    app = app_of(connect(app="orders"))
    assert app.snapshot_number("a") is None
    app.write_snapshot_number("a", 7)
    app.write_snapshot_number("b", 0)
    assert (app.snapshot_number("a"), app.snapshot_number("b")) == (7, 0)
    app.write_snapshot_number("a", -1)
    assert app.snapshot_number("a") is None
    assert raw.hgetall(keys.snapshots("orders")) == {b"b": b"0"}
