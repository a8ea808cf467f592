"""Test helpers: an acker on fakeredis, and private servers on loopback."""

from acker_redis.testing.fake import expire, fake_acker, settle, wait_until

__all__ = ["expire", "fake_acker", "settle", "wait_until"]
