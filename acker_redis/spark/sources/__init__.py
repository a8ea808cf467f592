"""Sources: what messages come from, and dead letters to look at.

Files: `files`, whose records `readers` finds and `parsing` and `doubts` parse. Redis streams: `redis_stream`, whose entries
`redis_group` reads and acknowledges. Rows of other programs: `imports`. An app's `dead_letters`.
"""
