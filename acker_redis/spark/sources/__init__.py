"""Sources of messages: files, with the readers and parsers of their records, and dead letters.

Internal: the public names are those of `acker_redis.spark`.
"""
