"""Spouts: emit the messages of a source, track, retry, and dead-letter them.

Internal: the public names are those of `acker_redis`.
"""
