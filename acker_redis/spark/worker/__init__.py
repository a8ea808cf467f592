"""What runs in the Python workers. Nothing here changes the ledger but `export`, which runs in the tracker's own action only.

client: the worker's acker. bolt: functions of record batches; rows: of rows. failed: rows that failed, on their way to the
driver. fail_where: rows that SQL fails. partitions, data_source: sinks that are functions or Python data sources.
export: rows for other applications. keep, kept_rows: messages kept for replays. dead_letters: read by a Python data source.
"""
