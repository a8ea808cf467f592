"""Sources: what messages come from, and dead letters to look at.

Files: `files`, read by `readers`. Redis streams: `redis_stream`, whose entries `redis_group` reads and acknowledges. Rows of
other programs: `imports`. An app's `dead_letters`.
"""
