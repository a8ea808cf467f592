"""Sources of messages: `files`, whose records `file_formats`, `parsing` and `ambiguous_json` read; and `dead_letters`.

Internal: the public names are those of `acker_redis.spark`.
"""
