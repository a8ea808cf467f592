"""The messages of one source: emitted, followed, retried, and dead-lettered.

Internal: the public names are those of `acker_redis`.
"""
