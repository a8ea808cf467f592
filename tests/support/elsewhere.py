"""Tests that `make matrix` runs on the newest Spark, and `make test` leaves out for the time that they take.

Each shows at a higher level, or with more parts of a real installation, what other tests show.
"""

from collections.abc import Iterable, Iterator

from tests.support import servers

EVERY_CASE = (
    "model_based/", "spark/test_tracker_invariants.py::test_untracked_row_drops", "spark/proof/test_id_lineage.py",
)  # fmt: skip
"""Files and tests below `tests/` that run on Spark with every parameter, because each one is another way to be wrong."""

EVERY_KIND = ("lua/", "ledger/", "client/", "model_based/test_conformance.py")
"""Files whose tests run on every kind of server, because they see its scripts or replies. All others run on Valkey."""

ELSEWHERE: dict[str, tuple[str, ...]] = {
    "Programs of the docs and demos. The word count demo stays, and the oldest Spark runs the README's pipeline.": (
        "docs/test_docs.py::test_python_blocks_of_a_docs_page_run",
        "docs/test_readme.py::test_documented_pipeline_runs_with_the_shown_result[docs/start/pipeline.md",
        "docs/test_topologies.py::test_python_blocks_of_a_page",
        "docs/test_tour.py",
        "spark/applications/test_access_logs.py::test_killed_and_restarted",
        "spark/applications/test_applications.py::test_killed_application",
        "spark/applications/test_applications.py::test_rows_taken",
        "spark/applications/test_direct_acks.py",
        "spark/applications/test_examples.py::test_examples_print",
        "spark/applications/test_kafka_words.py::test_demo",
        "spark/applications/test_order_stream.py::test_order_stream_interrupted",
        "spark/applications/test_sentences.py",
        "spark/applications/test_word_count.py::test_ctrl_c",
        "spark/applications/test_word_count.py::test_failing_lines",
        "spark/applications/test_word_count.py::test_word_count_in_sql",
        "docs/test_docs.py::test_the_page_on_tests_runs",
        "docs/test_readme.py::test_documented_pipeline_runs_with_the_shown_result[README.md",
        "spark/applications/test_applications.py::test_tree_begun",
    ),
    "The development stack as a whole. Its configuration and one of its profiles stay.": (
        "stack/test_alerts.py::test_panels_and_alerts",
        "stack/test_alerts.py::test_promtool_accepts_config_and_rules[test rules",
        "stack/test_make_stack.py",
        "stack/test_stack.py::test_ctrl_c",
        "stack/test_stack.py::test_kafka_of_the_stack",
        "stack/test_stack.py::test_profile_starts_every_server_and_stops_every_process[cluster",
        "stack/test_stack.py::test_profile_starts_every_server_and_stops_every_process[monitoring",
        "stack/test_stack.py::test_profile_starts_every_server_and_stops_every_process[sentinel",
    ),
    "Benchmarks as programs. `make bench` runs them, too.": (
        "benchmarks/test_benchmarks.py::test_benchmark_yields",
        "benchmarks/test_spark_benchmarks.py",
    ),
    "The gate itself, and what an index of packages checks. A green run and a red one stay.": (
        "packaging/test_gate.py::test_a_dead_process",
        "packaging/test_gate.py::test_gate_is_red[compares or",
        "packaging/test_gate.py::test_gate_is_red[dies",
        "packaging/test_gate.py::test_gate_is_red[no_test",
        "packaging/test_gate.py::test_gate_is_red[test_waits",
        "packaging/test_gate.py::test_models_scripts_and_proofs_are_never_run_again[lua",
        "packaging/test_gate.py::test_models_scripts_and_proofs_are_never_run_again[spark",
        "packaging/test_gate.py::test_only_tests_that_waited_are_to_be_run_again[-n2",
        "packaging/test_gate.py::test_either_of_two_stages",
        "packaging/test_gate.py::test_only_tests_that_waited_are_to_be_run_again[-n0",
        "packaging/test_packaging.py::test_wheel_and_sdist_pass_twine_check",
    ),
    "Sinks tried with the real thing. Each is a cell of the matrix.": ("spark/sinks/test_targets.py",),
    "Kafka on Spark. The member of a group, its faults and letters stay, on a real broker without Spark.": (
        "spark/runs/test_kafka.py",
        "spark/runs/test_kafka_exports.py",
        "spark/sinks/test_kafka.py",
        "spark/sinks/test_kafka_record_ids.py",
        "spark/streaming/test_group_offsets.py",
        "storm/turns/test_kafka_spout.py",
    ),
    "Topologies on a cluster of processes. Workers, tasks, drivers and blocks that die stay, in one process.": (
        "storm/turns/test_cluster.py",
        "storm/turns/test_crashes.py::test_rows_that_a_killed_driver",
    ),
    "Topologies whose messages kill workers: another kind of source. Those of spouts stay.": (
        "storm/turns/test_faults.py::test_a_reliable_message_that_kills",
        "storm/turns/test_faults.py::test_an_untracked_tuple_that_kills",
    ),
    "Another value, store, or place of a fault that stays.": (
        "client/test_broken_cluster.py::test_frozen_node_delays_only",
        "docs/test_upgrade.py::test_app_of_another_format",
        "spout/test_poison_search.py::test_all_but_random",
        "spark/emission/test_whole_output.py::test_dead_letters_of_a_written",
        "spark/emission/test_whole_output.py::test_whole_output_with_a_failing_writer_is_retried_entirely[1]",
        "spark/emission/test_whole_output.py::test_whole_output_replaces_existing",
        "ops/test_dashboard.py::test_pending_command",
        "kafka/test_group_commits.py::test_unchanged_offsets",
        "storm/components/test_kafka.py::test_open_records",
        "spark/protocol/test_anchor_codec.py::test_exported_messages_complete_after_run_exported[binary",
        "spark/runs/test_outages.py::test_source_that_is_away_while_ids_are_read_is_waited_for[True",
        "storm/turns/test_random.py::test_held_tuples_of_random_topologies_end_as_the_oracle_says[304",
        "ops/test_rotator_process.py::test_frozen_server",
        "ledger/test_shared_blocks.py::test_blocks_survive_reloads_restarts_and_replication[redis7-3",
        "cli/test_server.py::test_server_with_a_folder",
        "acker/test_bad_input.py::test_batch_of_a_million",
        "docs/test_disaster.py::test_full_redis",
        "docs/test_disaster.py::test_redis_move",
        "docs/test_disaster.py::test_redis_outage",
        "docs/test_disaster.py::test_redis_restarted_empty",
        "docs/test_disaster.py::test_restored_snapshot",
        "docs/test_disaster.py::test_snapshot_is_ignored",
        "docs/test_upgrade.py::test_functions_of_old",
        "docs/test_upgrade.py::test_newer_server_takes_over_by_replication",
        "docs/test_upgrade.py::test_older_server",
        "kafka/test_cut_logs.py",
        "kafka/test_group_faults.py::test_source_sink_and_letters_use_tls",
        "kafka/test_group_member.py::test_protocol_of_kafka_4",
        "cli/test_topology.py::test_run_ends",
        "cli/test_topology.py::test_second_ctrl_c",
        "cli/test_topology.py::test_sigterm_lets_a_job_end",
        "kafka/test_group_commits.py::test_tool_of_kafka",
        "docs/test_sizing.py",
        "ops/test_rotator_process.py::test_all_option",
        "ops/test_rotator_process.py::test_rotator_continues_when_its_log_pipe_is_full_or_closed[its",
        "ops/test_rotator_process.py::test_unwritable_error",
        "ops/test_rotator_process.py::test_two_rotators",
        "spark/applications/test_word_count.py::test_missing_services_of_the_demo_are_explained_without_a_traceback[arguments1",
        "spark/emission/test_whole_output.py::test_data_source_options",
        "spark/emission/test_whole_output.py::test_messages_never_passing",
        "spark/emission/test_whole_output.py::test_nightly",
        "spark/emission/test_whole_output.py::test_poison_search",
        "spark/emission/test_whole_output.py::test_whole_output_supports",
        "spark/operators/test_fan_in.py::test_group_by_message_id_needs_no_partial_option[column]",
        "spark/operators/test_flat_map.py::test_flat_map_with_on_error_raise",
        "spark/runs/test_dataframe.py::test_data_source_sink",
        "spark/runs/test_dataframe.py::test_wrong_executor_url",
        "spark/runs/test_poison.py::test_poison_search_identifies",
        "spark/runs/test_poison.py::test_stream_continues",
        "spark/sources/test_files.py::test_csv_line_breaks",
        "spark/sources/test_replayed_messages.py::test_kept_messages_of_any_type",
        "spark/streaming/parking/test_parking_location.py::test_checkpoint_set_back_by_a_batch",
        "spark/streaming/parking/test_parking_location.py::test_micro_batches_that_change_nothing",
        "spark/streaming/parking/test_parking_location.py::test_stopped_query",
        "spark/streaming/test_streams.py::test_letter_with_an_exact_payload",
        "spark/streaming/test_streams.py::test_micro_batch_waits_for_room",
        "spark/streaming/test_streams.py::test_non_null_column",
        "spark/streaming/test_streams.py::test_parked_messages_wait_for_new_columns",
        "spark/streaming/test_streams.py::test_query_stopped_in_a_micro_batch",
        "spark/streaming/test_streams.py::test_unreadable_parked_rows",
        "spark/emission/test_whole_output.py::test_whole_output_with_a_failing_writer_is_retried_entirely[99]",
        "spark/operators/test_joins.py::test_join_keys_of_any_two_types_match_as_in_spark",
        "spark/operators/test_operators.py::test_dataframe_members_without_effect",
        "spark/proof/test_blame.py::test_failing_sink_logs_a_line",
        "spark/proof/test_many_failures.py::test_a_million",
        "spark/proof/test_plans.py::test_redis_calls_do_not_grow_with_rows_per_message[20000]",
        "spark/runs/test_retries.py::test_partition_abandoned_by_take_is_exact_when_written[False]",
        "spark/runs/test_retries.py::test_workers_killed_around_a_shuffle_keep_outcomes_exact[self_join",
        "spark/runtime/test_cluster.py::test_speculative",
        "spark/sinks/test_sinks.py::test_flat_map_error_is_not_attributed_to_the_sink[write_partitions]",
        "spark/sinks/test_sinks.py::test_raising_sink_ends_the_emission_or_fails_its_rows[raise-1-write_data_source]",
        "spark/sinks/test_threads.py::test_handled_failure_of_a_sink_hides_no_failed_job_of_another[one thread]",
        "spark/sources/test_replayed_messages.py::test_fetch_and_offset",
        "spark/streaming/test_outages_of_stores.py::test_micro_batch_waits_at_max_parked",
        "spark/streaming/test_outages_of_stores.py::test_store_that_stays_away_parks_messages_until_it_is_back_after_a_restart[fail",
        "spark/streaming/test_outages_of_stores.py::test_store_that_stays_away_parks_messages_until_it_is_back_after_a_restart[raise",
        "spark/streaming/parking/test_parking_location.py::test_full_parking_disk_is_waited_for[0000000001",
        "spark/streaming/parking/test_parking_location.py::test_missing_snapshot_is_refused[newest]",
        "spark/streaming/parking/test_parking_location.py::test_parking_written_by_hadoop",
        "spark/runs/test_outages.py::test_message_whose_job_finds_no_answer",
        "spark/runs/test_outages.py::test_message_whose_url_never_answers_is_a_dead_letter_among",
        "spark/runs/test_outages.py::test_store_that_is_away_costs_write_partitions_no_message[from the start-raise",
        "spark/runs/test_outages.py::test_store_that_is_away_costs_write_partitions_no_message[in an emission",
        "spark/runs/test_outages.py::test_store_that_stays_away_ends_the_run_without_dead_letters[raise",
        "spark/runs/test_redis_stream.py::test_hanging_stream_entry",
        "spark/streaming/test_streams.py::test_query_failing_repeatedly",
        "spark/streaming/test_streams.py::test_tracked_batches_closed_during_a_wait",
        "spark/streaming/test_streams.py::test_tracked_batches_ends_quietly_in_either_close_order[acker]",
        "spout/test_run.py::test_outage_of_other_service",
        "storm/turns/test_faults.py::test_a_lost_block_of_kept_rows_breaks_the_turn_and_its_messages_go_out_again[written",
        "storm/turns/test_run.py::test_turns_that_all_break",
        "storm/turns/test_sinks.py::test_a_sink_that_raises_for_a_message",
        "storm/turns/test_ticks.py::test_a_message_that_kills",
        "storm/turns/test_ticks.py::test_a_tick_that_kills_its_worker_each",
        "storm/turns/test_faults.py::test_lost_shuffle_files_and_bolts_that_arent_deterministic_cause_no_false_ack[sinks]",
    ),
    "A fault that another test shows at a lower level, or at another place of the same code.": (
        "cli/test_exit_status.py::test_output_to_a_closed_pipe_exits_with_4_quietly[d",
        "cli/test_exit_status.py::test_output_to_a_closed_pipe_exits_with_4_quietly[-",
        "cli/test_exit_status.py::test_output_to_a_full_disk_exits_with_4_and_deletes_nothing[dele",
        "cli/test_exit_status.py::test_output_to_a_full_disk_exits_with_4_and_deletes_nothing[-",
        "kafka/test_group_commits.py::test_brokers_that_are_away",
        "kafka/test_group_member.py::test_full_member_keeps",
        "kafka/test_group_member.py::test_partition_that_left_a_full_member",
        "kafka/test_group_member.py::test_topic_made_again_while_it_is_read",
        "model_based/test_random_topologies.py::test_no_false_ack_no_second_outcome_nothing_lost[4",
        "model_based/test_random_topologies.py::test_no_false_ack_no_second_outcome_nothing_lost[5",
        "model_based/test_topology_oracle.py::test_a_planted_fault",
        "ops/test_rotator_process.py::test_rotator_continues_when_its_log_is_on_a_full_disk",
        "ops/test_rotator_process.py::test_wrong_usage",
        "spark/emission/test_whole_output.py::test_driver_error_of_a_second_writer",
        "spark/emission/test_whole_output.py::test_rerun_after_a_kill",
        "spark/runs/test_outages.py::test_message_whose_url_never_answers",
        "spark/runs/test_outages.py::test_store_that_is_away_from_the_start",
        "spark/runs/test_poison.py::test_error_in_every_emission",
        "spark/runs/test_retries.py::test_emission_aborted_by_spark",
        "spark/sinks/test_sinks.py::test_flat_map_error",
        "spark/sinks/test_threads.py::test_timeout_cancels",
        "spark/streaming/parking/test_parking_location.py::test_checkpoint_set_back_too_far",
        "spark/streaming/parking/test_parking_location.py::test_full_parking_disk",
        "spout/test_dead_letter_replay.py::test_many_dead_letters",
        "spout/test_poison_search.py::test_many_known_poison_messages",
        "storm/conformance/test_vectors.py::test_facts_on_the_fake_acker",
        "storm/turns/test_faults.py::test_a_bolt_that_never_returns",
        "storm/turns/test_faults.py::test_a_long_turn_renews",
        "storm/turns/test_state_faults.py::test_a_limit_that_tasks",
        "storm/turns/test_state_faults.py::test_a_topology_above_its_limit",
        "spark/runtime/test_cluster.py::test_executor_killed",
        "spark/streaming/test_stream_kills.py::test_resumed_driver",
        "spark/streaming/test_stream_kills.py::test_killed_driver_loses_no_redis_stream_entry",
        "spark/runs/test_poison.py::test_poison_search_dead_letters_the_row_breaking_its_job[os._exit",
        "spark/runs/test_outages.py::test_whole_output_that_is_refused",
        "spark/runs/test_broken_branches.py::test_messages_of_a_branch",
        "spark/runs/test_small_sources.py::test_failed_jobs_count",
        "spark/runs/test_small_sources.py::test_message_that_fails_by_its_row",
        "spark/runs/test_small_sources.py::test_repaired_program",
        "spark/runs/test_redis_stream.py::test_consumers_of_a_group",
        "spark/runs/test_redis_stream.py::test_recreated_stream",
        "spark/proof/test_blame.py::test_driver_error_ends_a_query",
        "spark/proof/test_blame.py::test_error_between",
        "spark/proof/test_blame.py::test_first_batch_killing",
        "spark/proof/test_blame.py::test_unreachable_sink",
        "spark/emission/test_late_messages.py::test_failed_rows_end",
        "spark/emission/test_whole_output.py::test_dead_letters_of_another",
        "spark/emission/test_whole_output.py::test_driver_error_of_a_first_writer_is_retried",
        "spark/emission/test_whole_output.py::test_error_of_a_second_writer",
        "spark/emission/test_whole_output.py::test_group_failing",
        "spark/emission/test_whole_output.py::test_lasting_driver_error",
        "spark/emission/test_whole_output.py::test_missing_table",
        "spark/emission/test_whole_output.py::test_outage_of_a_second_writer",
        "spark/emission/test_whole_output.py::test_sinks_changing",
        "spark/emission/test_whole_output.py::test_unreachable_store",
        "spark/emission/test_whole_output.py::test_whole_output_with_a_wrong_schema",
        "spark/sinks/test_threads.py::test_bad_row_is_a_dead_letter",
        "spark/sinks/test_threads.py::test_data_source_of_another_session",
        "spark/sinks/test_threads.py::test_handled_failure",
        "storm/turns/test_faults.py::test_a_lost_block",
        "storm/turns/test_state_faults.py::test_a_task_that_idles",
    ),
    "Cases of a feature whose main path, and worst faults, stay.": (
        "spark/emission/test_whole_output.py::test_dead_letters_of_a_run_are_unwritten",
        "spark/emission/test_whole_output.py::test_whole_output_without_messages",
        "spark/runs/test_kafka_imports.py::test_upstream_messages",
        "spark/sources/test_files.py::test_typed_values",
        "spark/sources/test_replaced_files.py::test_deleted_file",
        "spark/sources/test_replaced_files.py::test_file_without_hashes",
        "spark/sources/test_replaced_files.py::test_replaced_file",
        "spark/sources/test_replayed_messages.py::test_corrupt_row",
        "spark/streaming/test_sent_handlers.py::test_a_c",
        "spark/applications/test_word_count.py::test_word_count_losing_words",
        "spark/operators/test_fan_in.py::test_filter_explode_join",
        "spark/operators/test_fan_in.py::test_flat_map_on_grouped_rows",
        "spark/operators/test_fan_in.py::test_join_with_an_untracked_table",
        "spark/operators/test_fan_in.py::test_self_join",
        "spark/operators/test_fan_in.py::test_union_by_name_with_itself",
        "spark/operators/test_flat_map.py::test_column_names_with_dots",
        "spark/operators/test_flat_map.py::test_explode_handles",
        "spark/proof/test_plans.py::test_sql_joins",
        "spark/runs/test_dataframe.py::test_active_run_replays",
        "spark/runs/test_dataframe.py::test_spark_listener",
        "spark/runs/test_dataframe.py::test_spark_ui",
        "spark/sinks/test_replaced_sources.py::test_checkpoint_does_not_hide",
        "spark/sinks/test_replaced_sources.py::test_database_table",
        "spark/sinks/test_replaced_sources.py::test_output_by_message_may",
        "spark/sinks/test_replaced_sources.py::test_retry_would_count",
        "spark/sinks/test_sinks.py::test_dataframe_function_may_run",
        "spark/sinks/test_sinks.py::test_partition_overwrite",
        "spark/sinks/test_sinks.py::test_tables_and_partitioned",
        "spark/sinks/test_sinks.py::test_unknown_source",
        "spark/sources/test_replayed_messages.py::test_equal_offsets",
        "spark/sources/test_replayed_messages.py::test_json_csv_and_parquet",
        "spark/sources/test_replayed_messages.py::test_letters_of_corrupt_rows",
        "spark/sources/test_replayed_messages.py::test_restarted_run_skips",
        "spark/sources/test_replayed_messages.py::test_smaller_of_two",
        "spark/streaming/parking/test_parking_location.py::test_checkpoint_with_a_name",
        "spark/streaming/parking/test_parking_location.py::test_draft_of_query_json",
        "spark/streaming/parking/test_parking_location.py::test_emptied_parking",
        "spark/streaming/parking/test_parking_location.py::test_parking_deleted_between",
        "spark/streaming/parking/test_parking_location.py::test_parking_disk_staying_full",
        "spark/streaming/parking/test_parking_location.py::test_parking_in_an_object_store",
        "spark/streaming/parking/test_parking_location.py::test_parking_restored",
        "spark/streaming/parking/test_parking_location.py::test_parking_without_query_json",
        "spark/streaming/parking/test_parking_location.py::test_snapshot_number_that_redis_lost",
        "spark/streaming/parking/test_parking_location.py::test_start_empty_beside",
        "spark/streaming/parking/test_parking_location.py::test_unwritable_snapshot",
        "spark/streaming/test_streams.py::test_changed_id_column",
        "spark/streaming/test_streams.py::test_column_renamed_in_case",
        "spark/streaming/test_streams.py::test_columns_may_be_added",
        "spark/streaming/test_streams.py::test_dropped_column",
        "spark/streaming/test_streams.py::test_hanging_message",
        "spark/streaming/test_streams.py::test_parked_failures",
        "spark/streaming/test_streams.py::test_parking_location_of_another",
        "spark/streaming/test_streams.py::test_parking_snapshot",
        "spark/streaming/test_streams.py::test_renamed_column",
        "spark/streaming/test_streams.py::test_second_message",
        "spark/streaming/test_streams.py::test_tracked_batches_ends_quietly",
    ),
    "Numbers of calls of Java. `make bench` counts them, too.": (
        "spark/streaming/test_java_calls.py",
        "storm/turns/test_java_calls.py",
    ),
}  # fmt: skip
"""Why they may be left out -> beginnings of their names below `tests/`."""

NAMES = tuple(f"tests/{name}" for names in ELSEWHERE.values() for name in names)


STAY: dict[str, tuple[str, ...]] = {
    "spark/protocol/test_roots_column.py": (
        "case_sensitive", "failed_rows_of_no_message", "failed_rows_without_valid_roots_column_ack_nothing[empty",
    ),
    "spark/runs/test_kafka_records.py": ("no_record_is_committed", "partition_that_leaves"),
    "spout/test_leftover_roots.py": ("interrupted_run", "leftover_search", "next_run_settles", "silent_server"),
    "storm/turns/test_batch_spout.py": ("a_batch_whose_kept_rows", "rows_of_each_batch"),
    "storm/turns/test_batches.py": ("windows_by_event_time",),
    "storm/turns/test_dataframe_spout.py": ("a_failed_row", "each_row_is_acked", "rows_of_a_turn_whose_ledger"),
    "storm/turns/test_held.py": ("held_tuples_are_failed",),
    "storm/turns/test_state.py": (
        "a_newer_run", "an_ack_task_that_dies", "counts_over_turns", "levels_that_run_again", "rows_are_written_before",
    ),
    "storm/turns/test_vectors.py": (
        "every_recorded", "facts_on_spark_are_storm_s[f", "facts_on_spark_are_storm_s[join", "what_a_turn_cant_do",
    ),
}  # fmt: skip
"""File of tests -> beginnings of the names of those that `make test` runs. The others are cases of the same feature."""


def is_elsewhere(name: str) -> bool:
    """Return True if `make test` leaves a test to `make matrix`."""
    file, _, test = name.removeprefix("tests/").partition("::")
    if file in STAY:
        return not test.removeprefix("test_").startswith(STAY[file])
    return name.startswith(NAMES)


def is_on_another_server(name: str, parameters: Iterable[object]) -> bool:
    """Return True if a test with these parameters runs on another server than Valkey, and sees no scripts or replies of it."""
    others = set(servers.ALL_NAMES) - {servers.VALKEY.name}
    return not name.removeprefix("tests/").startswith(EVERY_KIND) and any(
        isinstance(one, str) and one in others for one in parameters
    )


def further_cases(names: Iterable[str]) -> Iterator[str]:
    """Yield tests on Spark that run a function of tests again, with a further parameter. `names` are in order."""
    there: set[str] = set()
    for name in names:
        function = name.partition("[")[0]
        if function in there and not function.removeprefix("tests/").startswith(EVERY_CASE):
            yield name
        there.add(function)


def unknown(names: Iterable[str]) -> set[str]:
    """Return the beginnings with which none of these tests begins."""
    there = list(names)
    kept = (f"tests/{file}::test_{one}" for file, tests in STAY.items() for one in tests)
    return {one for one in (*NAMES, *kept) if not any(name.startswith(one) for name in there)}
