"""The Spark around a pipeline: JVM, environment, jobs, worker errors.

Internal: the public names are those of `acker_redis.spark`.
"""
