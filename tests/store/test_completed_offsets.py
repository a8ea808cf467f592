"""Completed offsets in Redis."""

from acker_redis.acker import app_of
from acker_redis.testing import fake_acker


def test_others_read_what_was_written() -> None:
    acker = fake_acker()
    app_of(acker).write_completed_offsets({f"p{number}": number for number in range(2500)}, spout_id=1)
    app_of(acker).write_completed_offsets({"p7": 70}, ["p8"], spout_id=1)
    found = acker.completed_offsets(1)
    assert (len(found), found["p7"], found["p2499"], "p8" in found) == (2499, 70, 2499, False)
    assert acker.completed_offsets() == {}
