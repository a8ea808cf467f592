"""Completed offsets in Redis."""

from acker_redis.testing import fake_acker


def test_others_read_what_was_written() -> None:
    acker = fake_acker()
    acker.say_done_until({f"p{number}": number for number in range(2500)}, task=1)
    acker.say_done_until({"p7": 70}, ["p8"], task=1)
    found = acker.done_until(1)
    assert (len(found), found["p7"], found["p2499"], "p8" in found) == (2499, 70, 2499, False)
    assert acker.done_until() == {}
