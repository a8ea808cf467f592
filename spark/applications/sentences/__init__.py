"""Two topologies on Spark, whose account of every message must close: `python -m spark.applications.sentences`."""
