"""Records and snapshots of a log come back as they were written, or are refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

from acker_redis.errors import DamagedDataError
from acker_redis.publishing.id_ranges import ranges_of
from acker_redis.publishing.log_state import LogState
from acker_redis.publishing.messages import MessageNames
from acker_redis.publishing.records import (
    Accepted,
    Dead,
    Decision,
    Epoch,
    Finished,
    Owner,
    Published,
    Record,
    Reopened,
    Skipped,
    Staged,
    json_of_ranges,
    ranges_of_json,
)
from acker_redis.store.dead_letter import DeadLetter

OWNER = Owner("shop", 3, ("partition", "offset"))
SINK = Staged("orders", "files", "/tables/orders", "/logs/stage/1/7/orders/1", ("day=1/part-0.parquet",), 12)
LETTERS = (
    DeadLetter(-7, "run-1", 5, "failed", "parse", "no number", b"\x00\xff", replay="run"),
    DeadLetter(8, "run-1", 1, "lost"),
)


def ranges(*ids: int) -> dict[str, np.ndarray]:
    return {"orders/0": ranges_of(np.array(ids, np.int64))}


DECISIONS: tuple[Decision, ...] = (
    Epoch("run-1", OWNER, "a1"),
    Accepted("run-1", 7, ranges(1, 2, 3, -9), (SINK, replace(SINK, kind="delta", options={"mergeSchema": "true"}))),
    Dead("run-1", ("orders/0", "orders/1"), (-7, 8), LETTERS),
    Reopened("run-1", ranges(8)),
    Skipped(4, "orders"),
    Finished("run-1"),
    Published(),
)


def as_text(decision: Decision) -> str:
    return repr(decision)  # arrays have no equality


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: decision.kind)
def test_record_comes_back(decision: Decision) -> None:
    record = Record("put-1", decision, (2, 5))
    again = Record.from_bytes(record.to_bytes(), "0000000009.json")
    assert (again.put, again.published, as_text(again.decision)) == ("put-1", (2, 5), as_text(decision))


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b'{"format": 2}', b'{"format":1,"kind":"other","put":"","published":[]}']
)
def test_file_that_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedDataError, match=r"0000000009\.json is no record"):
        Record.from_bytes(data, "0000000009.json")


@pytest.mark.parametrize("largest", [10_000, 2**63 - 1])
def test_many_ranges_come_back_packed(largest: int) -> None:
    many = ranges_of(np.random.default_rng(largest).integers(-largest, largest, 5000))
    assert len(many) > 1000
    packed = json.loads(json.dumps(json_of_ranges(many)))
    assert ranges_of_json(packed).tolist() == many.tolist()


def test_random_ids_take_eight_bytes_each_in_a_record() -> None:
    ids = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 100_000)
    assert len(str(json_of_ranges(ranges_of(ids)))) < 10 * len(ids)


def filled() -> LogState:
    state = LogState()
    for number, decision in enumerate(DECISIONS, 1):
        state.apply(number, Record("put", decision))
    for number in (2, 3):
        state.done(number)
    return state


def test_snapshot_says_what_the_records_say() -> None:
    state = filled()
    again = LogState.from_bytes(state.to_bytes(), "0000000006.snap")
    assert (again.number, again.owner, again.run, again.epoch, again.is_finished) == (7, OWNER, "run-1", 1, True)
    assert again.log_id == "a1"
    assert again.accepted.ranges()["orders/0"].tolist() == [[-9, -9], [1, 3]]
    assert again.dead == {"orders/0": {-7: 3}, "orders/1": {8: 3}}
    assert again.is_dead(MessageNames.one("orders/1", 8)).tolist() == [True]


def test_snapshot_that_was_cut_off_is_refused() -> None:
    data = filled().to_bytes()
    for end in range(0, len(data) - 1, 7):
        with pytest.raises(DamagedDataError, match="is no snapshot"):
            LogState.from_bytes(data[:end], "0000000006.snap")


def test_reopened_message_is_no_longer_dead_and_a_skipped_sink_is_not_published() -> None:
    state = LogState()
    state.apply(1, Record("a", Dead("run-1", ("",), (8,), LETTERS[:1])))
    state.apply(2, Record("b", Reopened("run-1", {"": ranges_of(np.array([8]))})))
    state.apply(3, Record("c", Accepted("run-1", 1, ranges(1), (SINK,))))
    state.apply(4, Record("d", Skipped(3, "orders"), (1,)))
    assert not state.is_dead(MessageNames.one("", 8)).any()
    assert (state.to_store, state.to_publish[3].staged) == ({}, ())
