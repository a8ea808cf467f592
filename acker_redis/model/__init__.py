"""Names, ids and values that every layer shares. No I/O.

Internal: the public names are those of `acker_redis`.
"""
