"""Prove that every row of an emission reached its sinks, and find the cause if one did not.

    equation                          the expected sum of a frame's shares
    metrics                           the sums that Spark computes
    executions, listener, responses   how they reach the driver, from a JVM or over Spark Connect
    range_partitioning                rows that Spark would count twice
    proof                             the accounts of an emission
    plans, blame                      explanations for a wrong sum, or for a job that broke

Internal: the public names are those of `acker_redis.spark`.
"""
