"""States of a streaming query: each transition that is allowed, and no other."""

import threading
from itertools import product

import pytest

from acker_redis import AckerError
from acker_redis.spark.streaming.query_states import TRANSITIONS, QueryState, QueryStates

PAIRS = list(product(QueryState, QueryState))
OVER = (QueryState.FAILED, QueryState.ENDED)


def path_to(state: QueryState) -> list[QueryState]:
    """The shortest way from NEW."""
    paths = [[QueryState.NEW]]
    for path in paths:
        if path[-1] is state:
            return path[1:]
        paths += [[*path, after] for after in TRANSITIONS[path[-1]] if after not in path]
    raise AssertionError(f"{state} is never reached")


def states_in(state: QueryState) -> QueryStates:
    states = QueryStates()
    for step in path_to(state):
        states.move_to(step)
    return states


def test_every_state_has_its_transitions() -> None:
    assert TRANSITIONS.keys() == set(QueryState)


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=lambda state: state.name)
def test_a_transition_is_made_or_refused_as_the_table_says(before: QueryState, after: QueryState) -> None:
    states = states_in(before)
    assert states.state is before
    if after in TRANSITIONS[before]:
        states.move_to(after)
        assert states.state is after
    else:
        with pytest.raises(AckerError, match=f"from {before.name} to {after.name}"):
            states.move_to(after)
        assert states.state is before


@pytest.mark.parametrize("state", QueryState, ids=lambda state: state.name)
def test_every_state_but_the_last_leads_to_the_end(state: QueryState) -> None:
    reached, todo = {state}, [state]
    while todo:
        fresh = TRANSITIONS[todo.pop()] - reached
        reached |= fresh
        todo += fresh
    assert QueryState.ENDED in reached


@pytest.mark.parametrize("state", QueryState, ids=lambda state: state.name)
def test_what_is_asked_of_a_state(state: QueryState) -> None:
    states = states_in(state)
    assert states.in_batch == (state in (QueryState.IN_BATCH, QueryState.BATCH_FULL))
    assert states.is_over == states.wait_until_over(0) == (state in OVER)


@pytest.mark.parametrize("state", QueryState, ids=lambda state: state.name)
def test_a_stop_may_be_requested_at_any_time_and_changes_no_state(state: QueryState) -> None:
    states = states_in(state)
    assert not states.stop_requested
    thread = threading.Thread(target=states.request_stop)
    thread.start()
    thread.join()
    assert (states.stop_requested, states.state) == (True, state)
