"""Data of an app outside its shards: settings, dead letters, leases, offsets.

Internal: the public names are those of `acker_redis`.
"""
