"""Stream of access logs to Parquet and SQLite, with every line tracked; see docs/guides/log-pipeline.md.

`python -m spark.applications.access_logs` runs the pipeline, `python -m spark.applications.access_logs.logs` generates
logs, and `python -m spark.applications.access_logs.demo` runs everything.
"""
