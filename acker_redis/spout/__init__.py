"""Spouts: emit the messages of a source, track, retry, and dead-letter them.

Internal package. The public names are those of `acker_redis`.
"""
