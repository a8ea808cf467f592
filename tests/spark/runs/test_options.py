"""Options of runs: each combination that can be written is legal, what is none is refused, and nothing changes afterwards."""

from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from acker_redis import BadConfigError, OffsetFile, RetryPolicy
from acker_redis.model.types import MAX_PAYLOAD_BYTES
from acker_redis.spark.runs.options import (
    MessageIds,
    ReplayFrom,
    check_max_dead_letters,
    check_only_dead_letters,
    message_ids,
    replay_from,
    run_settings,
)
from acker_redis.spark.runs.run_result import Progress, RunResult, progress_of, result_of
from acker_redis.spout.spout import Spout
from acker_redis.store.dead_letter import EVERY_LETTER, DeadLetterFilter
from acker_redis.testing import fake_acker


def fetch(ids: list[int]) -> Any:
    raise AssertionError(ids)


def one_spout() -> Spout:
    """Three messages, of which one is lost and two wait."""
    spout = Spout(fake_acker(), "run", retry=RetryPolicy(max_attempts=1, first_delay_secs=0))
    spout.add(np.array([7, 8, 9]))
    emission = spout.next_emission(most=2)
    assert emission is not None
    spout.exhaust(emission.message_ids[:1])
    return spout


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (None, (None, "file", "row")),
        ("order", ("order", "file", "row")),
        (MessageIds.column("order"), ("order", "file", "row")),
        (MessageIds.offsets(), (None, "file", "row")),
        (MessageIds.offsets("topic", "place"), (None, "topic", "place")),
    ],
)
def test_ids_name_a_column_or_two(ids: Any, expected: tuple[str | None, str, str]) -> None:
    found = message_ids("run_tracked", ids)
    assert (found.id_column, found.partition, found.offset) == expected
    assert found.offset_file is None


def test_offsets_may_have_a_file() -> None:
    file = OffsetFile("progress.json")
    assert message_ids("run_tracked", MessageIds.offsets(offset_file=file)).offset_file is file


@pytest.mark.parametrize("wrong", [5, ["order"], True, b"order", MessageIds, OffsetFile("p.json")])
def test_ids_of_another_type_are_refused(wrong: object) -> None:
    with pytest.raises(BadConfigError, match=r"run_tracked: ids=.* is not a source of message ids\. Pass "):
        message_ids("run_tracked", wrong)


@pytest.mark.parametrize("wrong", ["", 5, None])
def test_columns_of_ids_have_names(wrong: Any) -> None:
    for make in (MessageIds.column, MessageIds.offsets, lambda name: MessageIds.offsets("file", name)):
        with pytest.raises(BadConfigError, match=rf"={wrong!r} is not a column name\. Pass a non-empty string"):
            make(wrong)


def test_offset_file_is_an_offset_file() -> None:
    path: Any = "progress.json"
    with pytest.raises(
        BadConfigError, match=r"offset_file='progress.json' is not an OffsetFile\. Pass one, such as OffsetFile"
    ):
        MessageIds.offsets(offset_file=path)


@pytest.mark.parametrize(
    ("replay", "max_bytes", "fetches"),
    [
        (None, 0, False),
        (ReplayFrom.source(), 0, False),
        (ReplayFrom.redis(max_bytes=MAX_PAYLOAD_BYTES), MAX_PAYLOAD_BYTES, False),
        (ReplayFrom.redis(max_bytes=1, else_fetch=fetch), 1, True),
        (ReplayFrom.fetch(fetch), 0, True),
    ],
)
def test_replays_come_from_one_place_or_from_two(replay: Any, max_bytes: int, fetches: bool) -> None:
    found = replay_from("run_tracked", replay)
    assert (found.max_bytes, found.fetch_messages is fetch) == (max_bytes, fetches)


@pytest.mark.parametrize("wrong", ["redis", 5, ReplayFrom, ReplayFrom.source])
def test_replay_of_another_type_is_refused(wrong: object) -> None:
    with pytest.raises(BadConfigError, match=r"run_tracked: replay=.* is not a ReplayFrom\. Pass ReplayFrom.source"):
        replay_from("run_tracked", wrong)


@pytest.mark.parametrize("wrong", [0, -1, MAX_PAYLOAD_BYTES + 1, 1.5, True, "1000", None])
def test_redis_needs_the_longest_message_to_keep(wrong: Any) -> None:
    with pytest.raises(BadConfigError, match=r"max_bytes=.* is not valid\. Set it to the longest message to keep"):
        ReplayFrom.redis(max_bytes=wrong)


def test_fetch_is_a_function() -> None:
    wrong: Any = "orders"
    for make in (ReplayFrom.fetch, lambda given: ReplayFrom.redis(max_bytes=1, else_fetch=given)):
        with pytest.raises(BadConfigError, match=r"='orders' is not callable\. Pass a function of message ids"):
            make(wrong)


@pytest.mark.parametrize("limit", [0, 7, 0.0, 0.25, None])
def test_limit_of_dead_letters_is_a_number_or_a_share(limit: Any) -> None:
    check_max_dead_letters(limit, "whole")


@pytest.mark.parametrize("wrong", [-1, -0.1, 1.0, 1.5, float("nan"), float("inf"), True, "1%"])
def test_other_limits_of_dead_letters_are_refused(wrong: Any) -> None:
    with pytest.raises(BadConfigError, match=r"max_dead_letters=.* is neither a number nor a share of messages\. Use "):
        check_max_dead_letters(wrong, "whole")


MONDAY = DeadLetterFilter(run_id="monday")


@pytest.mark.parametrize("wanted", [None, MONDAY, replace(MONDAY, reason="failed")])
def test_letters_are_selected_by_a_filter(wanted: Any) -> None:
    check_only_dead_letters(wanted, "by_message", MessageIds.offsets())


WITH_FILE = MessageIds.offsets(offset_file=OffsetFile("progress.json"))


@pytest.mark.parametrize(
    ("wanted", "output", "ids", "told"),
    [
        ("monday", "by_message", MessageIds.offsets(), "only_dead_letters='monday' is not a DeadLetterFilter"),
        (True, "by_message", MessageIds.offsets(), "only_dead_letters=True is not a DeadLetterFilter"),
        (EVERY_LETTER, "by_message", MessageIds.offsets(), r"names no run\. Ids alone don't tell.*Set run_id"),
        (DeadLetterFilter(reason="failed"), "by_message", MessageIds.offsets(), "names no run"),
        (MONDAY, "whole", MessageIds.offsets(), "would replace the whole output"),
        (MONDAY, "by_message", WITH_FILE, "has dead letters as done"),
    ],
)
def test_letters_are_refused_where_they_would_replace_others_or_be_skipped(
    wanted: Any, output: str, ids: MessageIds, told: str
) -> None:
    with pytest.raises(BadConfigError, match=told):
        check_only_dead_letters(wanted, output, ids)
    check_only_dead_letters(None, output, ids)


def test_progress_tells_of_messages_in_flight_and_queued() -> None:
    now = progress_of(one_spout(), is_emitting=True)
    assert (now.run_id, now.counts.emitted, now.in_flight, now.queued, now.dead_letters) == ("run", 2, 1, 1, 1)
    assert now.is_emitting


def test_what_was_told_of_a_run_does_not_change_with_it() -> None:
    spout = one_spout()
    now, result = progress_of(spout, is_emitting=False), result_of(spout, 1.5, {"a": 3})
    before = (now.counts.emitted, result.counts.emitted)
    spout.next_emission()
    assert (now.counts.emitted, result.counts.emitted) == before
    assert (result.run_id, result.duration_secs, result.completed_offsets) == ("run", 1.5, {"a": 3})
    assert result.dead_letters[7].reason == "lost"
    assert result_of(spout, 0.0).completed_offsets == {}


def test_options_and_results_are_frozen() -> None:
    spout = one_spout()
    settings = run_settings(
        "run_tracked", print, acker=fake_acker(), executor_url="redis://:secret@host", spout_id=1, retry=None,
        stop_if_broken=True, emit_timeout_secs=None, max_spout_pending=None, dead_letter_bytes=0,
    )  # fmt: skip
    told = progress_of(spout, is_emitting=False), result_of(spout, 0.0)
    assert "secret" not in repr(settings)
    for one in (MessageIds.column("order"), ReplayFrom.source(), settings, *told):
        assert is_dataclass(one)
        for field in fields(one):
            with pytest.raises(FrozenInstanceError):
                setattr(one, field.name, None)


@pytest.mark.parametrize("name", ["dead_letters", "completed_offsets"])
def test_mappings_of_a_result_are_read_only(name: str) -> None:
    found: Any = getattr(result_of(one_spout(), 0.0, {"a": 1}), name)
    with pytest.raises(TypeError):
        found[1] = None


def test_a_result_has_no_way_back_to_its_spout() -> None:
    assert not {"poll", "reconcile", "isolate", "state"} & {*dir(RunResult), *dir(Progress)}
