"""The runner on Spark: a turn is one job, and its last stage's executors ack. Only `Topology.run` imports this package."""
