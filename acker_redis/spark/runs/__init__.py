"""The calls that run a pipeline over a source until every message is done.

Internal: the public names are those of `acker_redis.spark`.
"""
