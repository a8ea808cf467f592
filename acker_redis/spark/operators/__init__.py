"""Operators as functions from frames to frames.

Each preserves the sum of shares, or meters the rows it removes.

Internal: the public names are those of `acker_redis.spark`.
"""
