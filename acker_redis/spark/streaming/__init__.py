"""Micro-batches of Structured Streaming, and the messages that outlive them.

Internal: the public names are those of `acker_redis.spark`.
"""
