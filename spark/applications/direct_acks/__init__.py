"""A tree that starts in one Spark application and completes in another, whose executors ack directly.

Run `python -m spark.applications.direct_acks export` and `python -m spark.applications.direct_acks price` side by side, in
any order.
"""
