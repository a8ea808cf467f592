"""The version of Spark that the tests run on, and what they have to know of older ones than the newest."""

from importlib.metadata import version

SPARK = tuple(map(int, version("pyspark").split(".")[:2]))
"""Of 4.3.0: (4, 3)."""

COUNTS_ONCE = SPARK >= (4, 3)
"""Whether Spark counts rows once below a sort or another partitioning by range; before, such a step is refused there."""

VIEWS_OVER_CONNECT = SPARK >= (4, 1)
"""Whether Spark Connect reports what operators below a temporary view dropped, when the rows are written."""

PANDAS = int(version("pandas").partition(".")[0])

TRIED_ON_ALL = (
    "tests/docs/test_docs.py::test_python_blocks",
    "tests/docs/test_readme.py::test_documented_pipeline",
    "tests/model_based/test_random_pipelines.py",
    "tests/spark/applications/test_examples.py",
    "tests/spark/applications/test_order_stream.py::test_order_stream_interrupted",
    "tests/spark/applications/test_over_connect.py",
    "tests/spark/applications/test_sentences.py::test_sentences_of_both",
    "tests/spark/applications/test_word_count.py::test_word_count_in_sql",
    "tests/spark/operators/",
    "tests/spark/emission/test_corrupt_records.py",
    "tests/spark/proof/test_caches.py",
    "tests/spark/proof/test_id_lineage.py",
    "tests/spark/proof/test_many_failures.py::test_a_million_failed_rows_fit[100000",
    "tests/spark/proof/test_many_failures.py::test_many_reasons",
    "tests/spark/proof/test_many_failures.py::test_reason_of_sql",
    "tests/spark/proof/test_many_failures.py::test_unreported",
    "tests/spark/proof/test_meters.py",
    "tests/spark/proof/test_range_partitioning.py",
    "tests/spark/protocol/",
    "tests/spark/runs/test_outages.py",
    "tests/spark/runs/test_small_sources.py",
    "tests/spark/sinks/",
    "tests/spark/sources/test_dead_letters.py",
    "tests/spark/sources/test_files.py",
    "tests/spark/sources/test_replaced_files.py",
    "tests/spark/streaming/test_restarts.py",
    "tests/spark/streaming/test_streams.py",
    "tests/spark/streaming/test_streams_of_both_sessions.py",
    "tests/spark/test_tracker_invariants.py",
    "tests/storm/turns/test_acks.py::test_a_bin",
    "tests/storm/turns/test_batch_spout.py::test_rows_of_each",
    "tests/storm/turns/test_crashes.py::test_what_a_killed_driver_left_is_repeated[written]",
    "tests/storm/turns/test_dataframe_spout.py::test_a_failed_row",
    "tests/storm/turns/test_dataframe_spout.py::test_each_row",
    "tests/storm/turns/test_dataframe_spout.py::test_rows_mix",
    "tests/storm/turns/test_faults.py::test_a_message_that_kills_its_worker",
    "tests/storm/turns/test_faults.py::test_a_worker_that_is_killed_once",
    "tests/storm/turns/test_faults.py::test_bolts_that_arent_deterministic",
    "tests/storm/turns/test_faults.py::test_lost_shuffle_files",
    "tests/storm/turns/test_plan.py::test_spark_sends_each_key",
    "tests/storm/turns/test_random.py::test_messages_of_random_topologies_end_as_the_oracle_says[1",
    "tests/storm/turns/test_run.py::test_a_failed_tuple",
    "tests/storm/turns/test_run.py::test_a_reliable_spout",
    "tests/storm/turns/test_run.py::test_events_hooks_and_metrics",
    "tests/storm/turns/test_run.py::test_groupings",
    "tests/storm/turns/test_run.py::test_messages_are_acked",
    "tests/storm/turns/test_run.py::test_stop_drains",
    "tests/storm/turns/test_run.py::test_values",
    "tests/storm/turns/test_sinks.py::test_a_function_of_a_partition",
    "tests/storm/turns/test_sinks.py::test_a_sink_that_raises_once",
    "tests/storm/turns/test_sinks.py::test_a_stream_is_written",
    "tests/storm/turns/test_state.py::test_counts_over",
    "tests/storm/turns/test_ticks.py::test_each_task",
    "tests/storm/turns/test_vectors.py::test_facts_on_spark_are_storm_s[f",
    "tests/storm/turns/test_vectors.py::test_facts_on_spark_are_storm_s[join",
)
"""Beginnings of the names of those tests that CI runs on each version, marked `versions`: operators, sinks, hostile pipelines,
streams, restarts, and topologies with their sinks and faults."""

TRIED_ON_NEWEST = (
    "tests/spark/runs/test_kafka.py::test_commits_reach",
    "tests/spark/runs/test_kafka.py::test_records_arrive",
    "tests/spark/runs/test_kafka.py::test_restart_emits",
)
"""Beginnings of the names of those that CI also runs over Spark Connect, and on no older version."""

LONG = {
    "docs/test_docs.py::test_python_blocks_of_a_docs_page_run": (
        "guides/aggregates", "guides/applications", "operate/run-again", "operate/hosted-spark", "topologies/from-storm",
    ),
    "spark/streaming/test_restarts.py::test_killed_stream_resumes_in_a_process_with_other_settings": ("middle",),
}  # fmt: skip
"""Parameters of long tests, whose neighbours show the same. The pages run in test_over_connect.py. `tests.support.repeats` has
those that the whole suite leaves out, too."""

LEFT_OUT = (
    *(f"tests/{test}[{one}" for test, parameters in LONG.items() for one in parameters),
    "tests/spark/sinks/test_kafka.py::test_broker_killed",  # this is up to Kafka's client, which is the same on each
    "tests/spark/sinks/test_kafka.py::test_missing_topic",
)
"""Beginnings of names that are left out of those, for the time that they take. The whole suite has them."""


def is_tried_on_all(name: str) -> bool:
    """Whether CI runs a test on each version."""
    chosen = TRIED_ON_ALL + (TRIED_ON_NEWEST if SPARK >= (4, 3) else ())
    return name.startswith(chosen) and not name.startswith(LEFT_OUT)


LEFT_OPEN = "ignore:unclosed <socket.socket:ResourceWarning"
"""Before 4.2, PySpark leaves the sockets open on which it fetched rows, until they are collected."""

PANDAS_3 = (
    "ignore:PySpark does not yet fully support pandas:FutureWarning",
    "ignore:The copy keyword is deprecated:DeprecationWarning",
)
"""From 4.2 on, PySpark warns of pandas 3, and pandas 3 of how PySpark's `toPandas` calls it."""


def warning_filters() -> tuple[str, ...]:
    """For Python and pytest, beside `error`."""
    return (*([LEFT_OPEN] if SPARK < (4, 2) else []), *(PANDAS_3 if PANDAS >= 3 else ()))
