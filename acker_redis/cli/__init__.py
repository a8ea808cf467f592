"""The command line `acker-redis`: the rotator, and the tools for people on call."""

from acker_redis.cli.program import app, main

__all__ = ["app", "main"]
