"""Delivery of outcomes from the streams of a shard to the spout.

Internal: the public names are those of `acker_redis`.
"""
