"""The Spark around a pipeline: JVM, environment, jobs, errors of workers.

Internal: the public names are those of `acker_redis.spark`.
"""
