"""Messages that are not done when their micro-batch ends: their rows in a folder, its snapshots, and changes of the schema.

Internal: the public names are those of `acker_redis.spark`.
"""
