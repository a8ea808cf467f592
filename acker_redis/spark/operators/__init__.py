"""Operators as frames in, frames out. Each keeps the sum of shares, or meters what it removes.

Internal: the public names are those of `acker_redis.spark`.
"""
