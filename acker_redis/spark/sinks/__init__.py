"""Sinks, which run actions: `writers` (Spark's own), `partitions` (a function in Python), `exports`, `checkpoints`.

`outputs`: when they write, and in which modes. `late`: whether a function that runs later still does the same.
"""
