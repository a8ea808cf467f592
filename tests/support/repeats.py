"""Tests that show again what a neighbour shows: another value of the same parameter. `make chaos` runs them."""

REPEATS = {
    "tests/cli/test_exit_status.py::test_output_to_a_closed_pipe_exits_with_4_quietly": (
        "inspect 1 of the app", "rotator --check of the app", "stats of the app", "dead-letters of the app",
    ),
    "tests/cli/test_exit_status.py::test_output_to_a_full_disk_exits_with_4_and_deletes_nothing": (
        "inspect 1 of the app", "rotator --check of the app", "stats of the app", "dead-letters of the app",
    ),
    "tests/docs/test_disaster.py::test_restored_snapshot_brings_back_dead_letters": ("redis62",),
    "tests/docs/test_disaster.py::test_snapshot_is_ignored_beside_an_append_only_file": ("redis62", "valkey"),
    "tests/ledger/test_shared_blocks.py::test_blocks_survive_reloads_restarts_and_replication": (
        "valkey-1", "redis7-1", "redis62-1",
    ),
    "tests/model_based/test_random_pipelines.py"
    "::test_random_pipeline_that_tells_its_ids_ends_as_if_they_were_read_first": ("8", "23", "28", "30"),
    "tests/spark/applications/test_word_count.py::test_ctrl_c_stops_every_process_of_the_demo": (
        "spark.applications.direct_acks.demo-arguments1",
    ),
    "tests/spark/emission/test_late_messages.py::test_plan_that_may_stop_early_reads_ids": (
        "limit of all-true", "offset-true", "side without matches-true", "cache-true",
    ),
    "tests/spark/operators/test_fan_in.py::test_group_by_message_id_needs_no_partial_option": ("ID",),
    "tests/spark/operators/test_joins.py::test_join_key_text_that_cannot_be_cast_raises_as_in_spark": (
        "decimal(10,2)-ansi", "boolean-ansi", "timestamp-ansi", "double-ansi",
    ),
    "tests/spark/operators/test_joins.py::test_join_keys_of_any_two_types_match_as_in_spark": (
        "ansi-left", "ansi-right", "ansi-full", "not ansi-left", "not ansi-right",
    ),
    "tests/spark/operators/test_operators.py::test_untracked_operator_is_named_with_its_place": (
        "offset", "sample", "distinct", "dropDuplicates", "exceptAll",
    ),
    "tests/spark/proof/test_caches.py::test_lost_part_of_a_cache_is_emitted_again": ("filter", "explode"),
    "tests/spark/proof/test_range_partitioning.py::test_range_partitioning_above_a_meter_is_exact_or_refused": (
        "True-sort", "True-below others", "True-in SQL over a view", "True-in SQL with a name", "True-below a name",
        "True-in a view", "True-in a view by name", "True-on a side",
    ),
    "tests/spark/proof/test_range_partitioning.py"
    "::test_range_partitioning_is_exact_behind_a_checkpoint_and_before_the_first_operator": (
        "sort", "below others", "in SQL", "in SQL with a name", "below a name", "in a view by name", "on a side",
    ),
    "tests/spark/protocol/test_roots_column.py::test_failed_rows_without_valid_roots_column_ack_nothing": (
        "missing-fails_in_a_flat_map", "missing-fails_in_a_join", "missing-fails_in_partitions", "missing-fails_as_a_sink",
        "missing-leaves", "null-fails_where", "null-fails_in_a_group", "null-fails_in_a_join", "null-fails_in_partitions",
        "null-leaves", "empty-fails_where", "empty-fails_in_a_flat_map", "empty-fails_in_a_group",
        "empty-fails_in_partitions", "empty-fails_as_a_sink", "foreign-fails_in_a_flat_map", "foreign-fails_in_a_group",
        "foreign-fails_in_a_join", "foreign-fails_as_a_sink",
    ),
    "tests/spark/sinks/test_sinks.py::test_writer_that_does_not_append_is_refused": (
        "overwrite-<lambda>1-fail", "ignore-<lambda>-fail", "error-<lambda>-fail", "overwrite-<lambda>2-fail",
        "overwrite-<lambda>3-fail", "errorifexists-<lambda>1-fail", "overwrite-<lambda>4-fail",
        "errorifexists-<lambda>2-fail", "errorifexists-<lambda>3-fail", "errorifexists-<lambda>4-fail",
        "errorifexists-<lambda>5-fail", "errorifexists-<lambda>6-fail",
    ),
    "tests/spark/sources/test_files.py::test_every_value_is_exact_or_its_line_corrupt": ("Asia/Tokyo",),
    "tests/spark/streaming/parking/test_parking_location.py"
    "::test_parking_deleted_during_a_batch_is_recreated_complete": ("2",),
    "tests/spark/streaming/test_stream_outages.py::test_redis_killed_under_a_stream_loses_no_message": ("appendonly",),
    "tests/spark/test_tracker_invariants.py::test_outer_join_completes": ("left", "right"),
    "tests/spark/test_tracker_invariants.py::test_stored_rows_with_failed_writes_are_exact_or_refused": (
        "exploded-local_checkpoint", "exploded-reliable_checkpoint", "exploded-through_a_table",
        "joined-reliable_checkpoint", "joined-through_parquet", "joined-through_a_table", "united-local_checkpoint",
        "united-through_parquet",
    ),
    "tests/spout/test_leftover_roots.py::test_interrupted_run_leaves_no_roots": (
        "redis7-2-", "redis7-15-sigterm", "redis62-2-", "redis62-15-sigterm",
    ),
    "tests/spout/test_leftover_roots.py::test_next_run_settles_leftover_roots_of_a_killed_run": ("redis7", "redis62"),
    "tests/spout/test_run.py::test_outage_of_other_service_is_awaited_and_costs_no_attempt": ("error1", "error2"),
    "tests/storm/turns/test_crashes.py::test_what_a_killed_driver_left_is_repeated": ("levels", "acks"),
    "tests/storm/turns/test_random.py::test_held_tuples_of_random_topologies_end_as_the_oracle_says": ("306", "307"),
    "tests/storm/turns/test_random.py::test_messages_of_random_topologies_end_as_the_oracle_says": (
        "0", "2", "3", "4", "5", "6", "7", "8",
    ),
    "tests/storm/turns/test_random.py::test_random_topologies_with_a_killed_worker_end_as_the_oracle_says": (
        "102", "103", "104", "105",
    ),
    "tests/storm/turns/test_random.py::test_rows_of_random_topologies_with_a_killed_worker_end_as_the_oracle_says": (
        "202", "203", "204", "205",
    ),
}  # fmt: skip
"""Test -> values that its other values stand for. They are drawn anew, another server, or another place of the same fault."""

NAMES = frozenset(f"{test}[{value}]" for test, values in REPEATS.items() for value in values)


def is_repeat(name: str) -> bool:
    """Return True if `make test` leaves a test to `make chaos`."""
    return name in NAMES
