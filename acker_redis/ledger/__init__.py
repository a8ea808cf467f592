"""Ledger of an app: its shards, updates, expiry and inspection.

Internal: the public names are those of `acker_redis`.
"""
