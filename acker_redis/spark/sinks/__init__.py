"""Sinks, which run actions: `writers` (Spark's own), `partitions` (a function in Python), `exports`, `checkpoints`.

`output_modes`: when they write, and in which modes. `sink`: the rows of one sink, and their proof. `captured_variables`:
whether a function that runs later still does the same.

Internal: the public names are those of `acker_redis.spark`.
"""
