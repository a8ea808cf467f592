"""Progress in one partition, against a model that remembers every record."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_redis.kafka.commit_metadata import decode, encode
from acker_redis.kafka.partition_progress import PartitionProgress
from acker_redis.kafka.record_ids import RecordIds

TOPIC_ID = "DBghvkV1Qdu1AeRvKJNmTQ"


@dataclass
class Model:
    """A log with gaps, the records that were processed in any run, and how often each was."""

    records: list[int]
    done: set[int] = field(default_factory=set)
    times: dict[int, int] = field(default_factory=dict)


@given(st.data())
def test_random_runs_with_crashes_process_every_record_and_commit_none_too_early(data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.integers(1, 4), max_size=60))
    log = Model([])
    offset = 3
    for step in steps:
        offset += step
        log.records.append(offset)
    commit = 3, ""
    for _ in range(data.draw(st.integers(1, 4))):
        found = decode(commit[1], commit[0])
        progress = PartitionProgress(
            commit[0], [] if found is None else found.runs, -1 if found is None else found.epoch
        )
        left = [record for record in log.records if record >= commit[0]]
        in_flight: list[int] = []
        before = commit[0]
        for action in data.draw(st.lists(st.sampled_from(["read", "read", "done", "commit"]), max_size=80)):
            if action == "read" and left:
                if progress.read(left[0], 0):
                    in_flight.append(left[0])
                else:
                    assert left[0] in log.done
                left.pop(0)
                if not left:
                    progress.reached(log.records[-1] + 2)
            elif action == "done" and in_flight:
                record = in_flight.pop(data.draw(st.integers(0, len(in_flight) - 1)))
                progress.done(record)
                log.done.add(record)
                log.times[record] = log.times.get(record, 0) + 1
            elif action == "commit":
                until, runs = progress.until(), progress.runs()
                commit = until, encode(TOPIC_ID, until, progress.epoch, runs)
                assert before <= until
                before = until
                for record in log.records:
                    if record < until or any(begin <= record < end for begin, end in runs):
                        assert record in log.done
                assert progress.open == in_flight == sorted(in_flight) or set(progress.open) == set(in_flight)
    progress = PartitionProgress(commit[0], runs_of(commit), 0)
    for record in log.records:
        if record >= commit[0] and progress.read(record, 0):
            log.done.add(record)
    assert log.done == set(log.records)


def runs_of(commit: tuple[int, str]) -> list[tuple[int, int]]:
    found = decode(commit[1], commit[0])
    return [] if found is None else found.runs


def test_nothing_done_before_a_crash_after_its_commit_is_repeated() -> None:
    progress = PartitionProgress(0)
    for offset in range(0, 100_000, 2):  # as after compaction
        assert progress.read(offset, 0)
    for offset in range(2, 100_000, 2):
        progress.done(offset)
    progress.reached(100_003)
    assert (progress.until(), progress.runs()) == (0, [(1, 100_003)])
    text = encode(TOPIC_ID, 0, 0, progress.runs())
    assert len(text) < 50
    again = PartitionProgress(0, runs_of((0, text)), 0)
    assert [offset for offset in range(0, 100_000, 2) if again.read(offset, 0)] == [0]
    again.done(0)
    assert again.until() == 99_999
    assert again.runs() == [(99_999, 100_003)]
    again.reached(100_003)
    assert (again.until(), again.runs()) == (100_003, [])


def test_runs_that_are_not_read_yet_stay_in_the_commit() -> None:
    progress = PartitionProgress(5, [(6, 20), (30, 40)], 0)
    assert (progress.until(), progress.runs()) == (5, [(6, 20), (30, 40)])
    assert progress.read(5, 0)
    assert (progress.until(), progress.runs()) == (5, [(6, 20), (30, 40)])
    progress.done(5)
    assert (progress.until(), progress.runs()) == (6, [(6, 20), (30, 40)])
    assert not progress.read(6, 0)
    assert (progress.until(), progress.runs()) == (7, [(7, 20), (30, 40)])


def test_records_of_a_truncated_log_are_read_again() -> None:
    """An unclean election lost offsets from 8 on, and others were written there under a higher epoch."""
    progress = PartitionProgress(5, [(6, 20)], 3)
    assert progress.read(5, 2)
    assert not progress.read(6, 3)
    assert progress.read(8, 4)
    assert progress.read(9, 4)
    assert (progress.epoch, progress.open) == (4, [5, 8, 9])
    assert progress.runs() == [(6, 8)]


def test_record_that_is_delivered_twice_is_taken_once() -> None:
    progress = PartitionProgress(0)
    assert progress.read(0, None)
    assert not progress.read(0, None)
    progress.done(0)
    assert not progress.read(0, None)
    assert progress.until() == 1


@pytest.mark.parametrize(
    ("until", "expected"),
    [(5, []), (8, [(5, 8)]), (12, [(5, 10)]), (25, [(5, 10), (20, 25)]), (50, [(5, 10), (20, 30), (40, 50)])],
)
def test_lost_ranges_leave_out_what_is_done(until: int, expected: list[tuple[int, int]]) -> None:
    assert PartitionProgress(5, [(10, 20), (30, 40)], 0).lost(until) == expected


def test_lost_range_stays_open_until_it_has_a_letter() -> None:
    progress = PartitionProgress(5, [(10, 20)], 0)
    assert progress.read(5, 0)
    for begin, end in progress.lost(30):
        progress.hold(begin, end)
    progress.reached(30)
    progress.done(5)
    assert (progress.until(), progress.runs()) == (6, [(10, 20)])
    progress.done(6)
    assert (progress.until(), progress.runs()) == (20, [])
    progress.done(20)
    assert progress.until() == 30


def test_ids_of_neighbours_are_neighbours_and_partitions_are_apart() -> None:
    ids = RecordIds()
    first, other, anew = ids.first_of("a", 0), ids.first_of("a", 1), ids.first_of("b", 0)
    assert ids.first_of("a", 0) == first
    assert len({first, other, anew}) == 3
    assert abs(first - other) >= 2**48
    assert max(first, other, anew) + 2**48 < 2**63


def test_range_that_was_read_at_once_names_its_open_records() -> None:
    progress = PartitionProgress(0)
    progress.replace_open([7, 3], 20)
    assert (progress.until(), progress.open, progress.runs()) == (3, [3, 7], [(4, 7), (8, 20)])
    progress.done(3)
    assert (progress.until(), progress.runs()) == (7, [(8, 20)])
    progress.replace_open([], 25)
    assert (progress.until(), progress.runs()) == (25, [])
    progress.replace_open([], 22)  # Spark runs a micro-batch again
    assert progress.until() == 25
