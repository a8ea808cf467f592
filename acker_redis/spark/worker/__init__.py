"""Code that runs in Spark's Python workers.

Only exports change the ledger, and only in the tracker's own action.

    process                     the worker's acker
    arrow_function              flat_map functions of record batches
    row_function                flat_map functions of rows
    failures                    failed rows on their way to the driver
    fail_where                  rows that SQL fails
    partitions, data_source     sinks that are functions or Python data sources
    export, kafka_export        rows for other applications
    keep_messages, row_codec    messages kept for replays
    dead_letters                dead letters as rows

Internal: the public names are those of `acker_redis.spark`.
"""
