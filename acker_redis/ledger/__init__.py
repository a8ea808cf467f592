"""The ledger of an app: its shards, updates, expiry, and what they hold.

Internal: the public names are those of `acker_redis`.
"""
