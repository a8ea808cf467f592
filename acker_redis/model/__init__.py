"""Names, ids and values shared by every layer, without I/O.

Internal: the public names are those of `acker_redis`.
"""
