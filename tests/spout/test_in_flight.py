"""Messages in flight and messages that wait for their replay, as arrays."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_redis.model.roots import root_ids, root_salt
from acker_redis.spout.in_flight import Attempts, InFlight, Replays, in_order, merged


def attempts(*message_ids: int, attempt: int = 0) -> Attempts:
    first = Attempts.first(np.array(message_ids, np.int64))
    return replace(first, previous=first.previous + attempt)


def taken(replays: Replays, now: float, room: int | None = None) -> list[int]:
    message_ids: list[int] = replays.take_due(now, room).message_ids.tolist()
    return message_ids


def test_a_replay_is_taken_when_it_is_due() -> None:
    replays = Replays()
    replays.add(attempts(1, 2, 3), np.array([30.0, 10.0, 20.0]))
    replays.add(attempts(4, 5), np.array([15.0, 40.0]))
    assert (taken(replays, 5.0), len(replays)) == ([], 5)
    assert (sorted(taken(replays, 20.0)), len(replays)) == ([2, 3, 4], 2)
    assert (sorted(taken(replays, 40.0)), len(replays)) == ([1, 5], 0)
    assert taken(replays, 50.0) == []


def test_no_more_replays_are_taken_than_there_is_room_for() -> None:
    replays = Replays()
    replays.add(attempts(1, 2, 3), np.array([1.0, 2.0, 3.0]))
    replays.add(attempts(4), np.array([9.0]))
    assert [taken(replays, 10.0, room) for room in (0, 2, 2, None)] == [[], [1, 2], [3, 4], []]


def test_replay_counts_attempts_and_losses() -> None:
    again = attempts(1, 2, 3, attempt=3).retries(np.array([False, True, True]), np.array([False, False, True]))
    assert again.previous.tolist() == [4, 4, 4]
    assert (again.exempted.tolist(), again.losses.tolist()) == ([0, 1, 1], [0, 0, 1])


def test_in_flight_rows_are_looked_up_by_root_until_closed() -> None:
    part = InFlight(np.array([50, -10, 30]), attempts(5, 1, 3))
    rows = part.rows_of(np.array([30, 99, 50]))
    assert rows[1] == -1
    part.close_rows(rows[[0, 2]])
    assert (part.attempts[rows[[0, 2]]].message_ids.tolist(), part.count) == ([3, 5], 1)
    assert part.rows_of(np.array([-10, 30, 50])).tolist() == [1, -1, -1]


def test_many_small_emissions_become_few_parts() -> None:
    roots = np.random.default_rng(1).permutation(np.arange(-5_000, 5_000))
    parts: list[InFlight] = []
    for start in range(0, len(roots), 10):
        some = roots[start : start + 10]
        parts = merged([*parts, InFlight(some, attempts(*some.tolist()))])
        rows = parts[-1].rows_of(some[:5])  # half of each settles
        parts[-1].close_rows(rows)
        assert len(parts) <= 12
    assert sum(part.count for part in parts) == 5_000
    assert sum(len(part.open) for part in parts) < 15_000
    for start in range(0, len(roots), 10):
        some = roots[start : start + 10]
        open_rows = [(part, rows[rows >= 0]) for part in parts for rows in [part.rows_of(some)]]
        assert sorted(m for part, rows in open_rows for m in part.attempts[rows].message_ids.tolist()) == sorted(
            some[5:]
        )
        for part, rows in open_rows:
            part.close_rows(rows)
    assert merged(parts) == []


MESSAGES = [0, 1, 31, 32, 1000, -1, -33, 2**63 - 1, -(2**63)]
OF_SPARK = {
    # number: shiftleft(id & 31L, 59) | (xxhash64(salt, shiftright(id, 5)) & 576460752303423487L), by PySpark 4.3
    0: [
        137779819008877907, 714240571312301395, -438680933294545581, 117244818422657513, 4914577129877434055,
        -452034362005504476, -417623955497273112, -58610053713159403, 272200060467335739,
    ],
    3: [
        12100206175636653, 588560958479060141, -564360546127786835, 110785191217149793, 4810122437320309828,
        -108058812144709101, -95091087238252710, -179097410828026024, 238054855623145518,
    ],
}  # fmt: skip


@pytest.mark.parametrize("number", OF_SPARK)
def test_roots_equal_values_computed_by_spark_sql(number: int) -> None:
    assert root_salt("orders", "run-1", number) == {0: "af01156929a8f990", 3: "603399b8b9bde6e9"}[number]
    assert root_ids("orders", "run-1", np.array(MESSAGES), number).tolist() == OF_SPARK[number]


def test_neighbours_share_a_block_and_no_root_is_used_twice() -> None:
    messages = np.arange(-6_400, 6_400)
    roots = np.concatenate([root_ids("app", "run", messages, number) for number in range(3)])
    assert len(np.unique(roots)) == 3 * len(messages)
    assert len(np.unique(roots & (2**59 - 1))) == 3 * len(messages) / 32
    others = [root_ids(app, run, messages, 0) for app, run in (("other", "run"), ("app", "other"))]
    assert not set(np.concatenate(others).tolist()) & set(roots.tolist())


@given(st.lists(st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1)), st.booleans())
def test_in_order_sorts_message_ids(given_ids: list[int], in_runs: bool) -> None:  # noqa: FBT001
    message_ids = sorted(given_ids) * 100 if in_runs else given_ids
    assert in_order(np.array(message_ids, np.int64)).tolist() == sorted(message_ids)
