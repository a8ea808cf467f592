"""Prove that every row of an emission reached its sinks, and find the cause if one did not.

    equation              the expected sum of a frame's shares
    metrics, listener     the sums that Spark computed
    received_failures     the rows that failed
    proof                 the accounts of an emission
    plans, blame          explanations for a wrong sum, or for a job that broke

Internal: the public names are those of `acker_redis.spark`.
"""
