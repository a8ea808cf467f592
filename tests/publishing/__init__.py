"""Tests of `acker_redis.publishing`."""
