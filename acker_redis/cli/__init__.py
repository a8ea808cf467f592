"""The command line, `acker-redis`: a rotator, and what people on call need."""

from acker_redis.cli.commands import app, main

__all__ = ["app", "main"]
