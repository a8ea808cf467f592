"""Connections to Redis, scripts and retries, independent of ackers.

Internal: the public names are those of `acker_redis`.
"""
