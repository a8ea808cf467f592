"""Prove that every row of an emission reached its sinks, and say whose fault it is where one did not.

equation: what the shares of a frame sum to. metrics, listener: what Spark summed. received_failures: which rows failed.
proof: the books of an emission. plans, blame: what explains a sum that is wrong, or a job that broke.

Internal: the public names are those of `acker_redis.spark`.
"""
