"""One emission: its messages, its roots, and the run of the pipeline over them.

Internal: the public names are those of `acker_redis.spark`.
"""
