"""Sinks, which run actions.

    writers, partitions    sinks with Spark's own writers, or with a function in Python
    exports, checkpoints   exports and checkpoints
    sink                   the rows of one sink, and their proof
    outputs, output_modes  when sinks write, and in which modes
    guarded_writers        Spark's writers, which check their calls before they write
    replaced_sources       check that no sink writes to what is read
    captured_variables     check that a function that runs later still does the same

Internal: the public names are those of `acker_redis.spark`.
"""
