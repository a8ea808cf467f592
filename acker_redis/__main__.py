"""Entry point of `python -m acker_redis`."""

from acker_redis.cli import main

main()
