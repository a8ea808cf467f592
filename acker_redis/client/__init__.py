"""Talk to Redis: connections, scripts, retries. Knows nothing of ackers.

Internal: the public names are those of `acker_redis`.
"""
