"""Access logs to parquet and SQLite, a stream with every line tracked; see docs/guides/log-pipeline.md.

`python -m spark.applications.access_logs` is the pipeline,
`python -m spark.applications.access_logs.logs` makes logs, and `...demo` runs it all.
"""
