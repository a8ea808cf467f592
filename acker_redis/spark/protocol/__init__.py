"""Names, shares and encodings that driver and Python workers agree on.

Internal: the public names are those of `acker_redis.spark`.
"""
