"""A tree that begins in one Spark application and completes in another, whose executors ack by themselves.

`python -m spark.applications.direct_acks export` and
`python -m spark.applications.direct_acks price`, in any order and beside each other.
"""
