"""State of topologies on every server: the orders of the model, and the calls of the store."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from acker_redis import Acker, AckerConfig, Limits, StateLimitError, StateLostError, TurnOverError
from acker_redis.acker import app_of
from acker_redis.client import server_info
from acker_redis.client.client import Client
from acker_redis.store import limits, state_pieces, topology_sizes
from acker_redis.store.topology_sizes import TaskSize
from acker_redis.store.topology_state import Attempt, Emptied, Status, TopologyState
from acker_redis.testing import wait_until
from tests.model_based.state.twin import Twin
from tests.model_based.state.world import Budget, World
from tests.store.state_turns import commit, turns, values

WALKS = 15


@pytest.fixture
def client(source: Any) -> Any:
    client = Client(source)
    yield client
    client.close()


@pytest.fixture
def state(client: Client) -> TopologyState:
    return TopologyState(client, "app", "words")


def test_random_orders_of_the_model_have_the_answers_of_the_model(client: Client, raw: Any) -> None:
    over = 0
    for seed in range(WALKS):
        rng = random.Random(seed)
        raw.flushall()
        twin = Twin(client, raw)
        world = World(("ab", "a", "b", "ab"), Budget(2, 2, 1, 1, 2), server=twin)
        while steps := list(world.steps()):
            if world.is_over and rng.random() < 0.2:
                break
            world.take(rng.choice(steps))
            twin.check_server()
        over += world.is_over
    assert over > WALKS / 2


def test_changes_count_from_the_commit_on(state: TopologyState) -> None:
    turn = turns(state)
    assert turn(1).load("count:0") == ""
    attempt = turn(1).write("count:0", "one", {b"a": b"1", b"b": b"2"})
    assert attempt == Attempt("count:0", "1:1:one", 1)
    assert turn(1).read("count:0", [b"a"]) == [b""], "an attempt reads what was committed"
    other = turn(1).write("count:0", "two", {b"a": b"7"})
    assert turn(1).commit([attempt]) is Status.OPEN
    assert turn(1).commit([attempt]) is Status.OPEN, "a task that runs again"
    assert turn(1).commit([other]) is Status.DECIDED
    assert turn(2).load("count:0") == "1:1:one"
    assert values(turn(2)) == {b"a": b"1", b"b": b"2"}
    gone = turn(2).write("count:0", "three", {b"a": b"", b"c": b"3"})
    assert turn(2).commit([gone]) is Status.OPEN
    assert turn(3).load("count:0") == "1:2:three"
    assert values(turn(3)) == {b"b": b"2", b"c": b"3"} and turn(3).count("count:0") == 2
    assert turn(3).read("count:0", [b"a", b"b", b"c", b"a"]) == [b"", b"2", b"3", b""]


def test_a_closed_turn_leaves_nothing(state: TopologyState, raw: Any) -> None:
    turn = turns(state)
    attempt = turn(1).write("count:0", "one", {b"a": b"1"})
    assert turn(1).close() and turn(1).close()
    assert turn(1).commit([attempt]) is Status.DECIDED
    for call in (lambda: turn(1).write("count:0", "late", {b"a": b"1"}), lambda: turn(1).load("count:0")):
        with pytest.raises(TurnOverError, match="Turn 1 of topology 'words' is over"):
            call()
    assert turn(2).load("count:0") == "" and values(turn(2)) == {}
    assert not raw.keys("*attempt*"), "the next load deletes what nobody named"
    assert turn(2).commit([]) is Status.OPEN
    assert not turn(2).close(), "a committed turn stays committed"


def test_a_newer_run_ends_the_older_one_and_keeps_what_it_committed(state: TopologyState) -> None:
    old = turns(state)
    assert old(1).commit([old(1).write("count:0", "one", {b"a": b"1"})]) is Status.OPEN
    attempt = old(2).write("count:1", "one", {b"a": b"1"})
    new = turns(state)
    assert old(2).commit([attempt]) is Status.STALE
    with pytest.raises(TurnOverError, match="newer run"):
        old(2).close()
    with pytest.raises(TurnOverError, match="newer run"):
        list(old(2).fold("count:0", "1:1:one"))
    assert new(1).load("count:0") == "1:1:one" and values(new(1)) == {b"a": b"1"}
    assert new(1).load("count:1") == "" and values(new(1), "count:1") == {}


def test_parts_are_written_if_the_server_learns_the_script_between_two_of_them(
    state: TopologyState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call is sent again behind the others then. It happens to workers that begin at the same time."""
    turn = turns(state)
    monkeypatch.setattr(state_pieces, "PART_BYTES", 1)
    run, late = Client.run, [True]

    def first_is_last(self: Client, calls: Any) -> Any:
        if len(calls) < 4 or not late.pop():
            return run(self, calls)
        late.append(False)
        others = run(self, calls[1:])
        return [*run(self, calls[:1]), *others]

    changes = {b"%d" % number: b"x" for number in range(5)}
    with monkeypatch.context() as patched:
        patched.setattr(Client, "run", first_is_last)
        attempt = turn(1).write("count:0", "one", changes)
    assert late == [] and attempt.parts == 5 and turn(1).commit([attempt]) is Status.OPEN
    late.append(True)
    monkeypatch.setattr(Client, "run", first_is_last)
    assert turn(2).load("count:0") == "1:1:one" and values(turn(2)) == changes


def test_lost_writes_are_noticed(state: TopologyState, raw: Any) -> None:
    turn = turns(state)
    attempt = turn(1).write("count:0", "one", {b"a": b"1"})
    kept = raw.dump("acker:{app}:state:words")
    assert turn(1).commit([attempt]) is Status.OPEN
    raw.restore("acker:{app}:state:words", 0, kept, replace=True)
    with pytest.raises(StateLostError, match="turn 2: LOST"):
        turn(2).load("count:0")
    raw.unlink("acker:{app}:state:words")
    with pytest.raises(StateLostError):
        turn(1).close()


def test_a_named_attempt_that_is_gone_is_noticed(state: TopologyState, raw: Any) -> None:
    turn = turns(state)
    attempt = turn(1).write("count:0", "one", {b"a": b"1"})
    other = turn(1).write("count:1", "one", {b"a": b"1"})
    raw.unlink("acker:{app}:state_attempt:words:count:1:1:1:one")
    assert turn(1).commit([attempt, other]) is Status.EXPIRED
    assert turn(1).commit([attempt]) is Status.OPEN
    raw.unlink("acker:{app}:state_attempt:words:count:0:1:1:one")
    with pytest.raises(StateLostError):
        turn(2).load("count:0")


def test_state_of_another_shape_is_refused(state: TopologyState) -> None:
    assert state.open({"count": "one"}) == (1, None)
    assert state.open({"sum": "one", "count": "two"}) == (0, ("count", "one"))
    assert state.open({"sum": "two", "count": "one"}) == (2, None), "a refusal changes nothing"


# -- between two runs


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Id of the server's process. A restart or a failover changes it."""
    ids = ["first"]
    monkeypatch.setattr(server_info, "process_of", lambda client, key: ids[-1])
    return ids


def test_a_failover_that_loses_any_suffix_of_a_run_is_noticed_by_the_next_one(
    state: TopologyState, raw: Any, server: list[str]
) -> None:
    """A failover keeps a prefix of the writes. The end is the last one, so only the whole of them passes."""
    snapshots: list[dict[bytes, bytes]] = []

    def snapshot() -> None:
        snapshots.append({key: raw.dump(key) for key in raw.keys("*")})

    turn = turns(state)
    snapshot()
    for number in (1, 2, 3):
        commit(turn(number), {b"a": b"%d" % number})
        snapshot()
    state.end(1, 3)
    snapshot()
    for number, kept in enumerate(snapshots):
        server[:] = [f"other {number}"]
        raw.flushall()
        for key, data in kept.items():
            raw.restore(key, 0, data)
        if number < len(snapshots) - 1:
            with pytest.raises(StateLostError, match=rf"epoch 1\) didn't end, .* since its turn {number}\. Run again"):
                state.open({"count": "shape"})
        epoch, _ = state.open({"count": "shape"})
        last = state.turn(epoch, 1)
        last.load("count:0")
        assert values(last).get(b"a") == (b"%d" % min(number, 3) if number else None), "it goes on with what is there"


def test_a_run_that_died_goes_on_if_the_server_is_the_same(state: TopologyState, server: list[str]) -> None:
    commit(turns(state)(1), {b"a": b"1"})
    epoch, _ = state.open({"count": "shape"})
    turn = state.turn(epoch, 1)
    assert turn.load("count:0") == "1:1:one" and values(turn) == {b"a": b"1"}


def test_a_restart_of_a_real_server_behind_a_run_that_died_is_noticed(
    start_server: Callable[..., Any], open_acker: Callable[..., Acker]
) -> None:
    server = start_server("--appendonly", "yes", "--appendfsync", "always")
    state = app_of(open_acker(server.url)).topology_state("words")
    state.open({})
    state.open({})
    for is_ended in (False, True):
        server.kill()
        server.start()
        if is_ended:
            epoch, _ = state.open({})
        else:
            with pytest.raises(StateLostError, match="the server was restarted or replaced since its turn 0"):
                state.open({})
            epoch, _ = state.open({})
        state.end(epoch, 0)


def test_a_real_failover_behind_a_runs_last_turn_is_noticed(
    start_server: Callable[..., Any], open_acker: Callable[..., Acker], plain: Callable[..., Any]
) -> None:
    """The replica is promoted before it has the second turn and the end."""
    primary, replica = start_server("--repl-diskless-sync-delay", "0"), start_server()
    state = app_of(open_acker(primary.url)).topology_state("words")
    turn = turns(state)
    commit(turn(1), {b"a": b"1"})
    promoted = plain(replica.url)
    promoted.replicaof("127.0.0.1", primary.port)
    key = "acker:{test}:state:words"
    wait_until(lambda: promoted.hget(key, "turn") == b"1", "the replica has the first turn", 60)
    promoted.replicaof("NO", "ONE")
    commit(turn(2), {b"a": b"2"})
    state.end(1, 2)
    primary.kill()
    state = app_of(open_acker(replica.url)).topology_state("words")
    with pytest.raises(StateLostError, match="replaced since its turn 1"):
        state.open({"count": "shape"})
    epoch, _ = state.open({"count": "shape"})
    last = state.turn(epoch, 1)
    assert last.load("count:0") == "1:1:one" and values(last) == {b"a": b"1"}


def test_a_server_that_tells_no_id_raises_no_suspicion(state: TopologyState, server: list[str]) -> None:
    state.open({})
    for one in ("", "second", ""):
        server[:] = [one]
        state.open({})


def test_the_end_notices_lost_turns_and_a_newer_run(state: TopologyState, raw: Any) -> None:
    turn = turns(state)
    commit(turn(1), {b"a": b"1"})
    with pytest.raises(StateLostError, match="turn 2: LOST"):
        state.end(1, 2)
    state.open({})
    with pytest.raises(TurnOverError, match="newer run"):
        state.end(1, 1)


def test_keys_that_were_deleted_are_noticed_by_the_next_run_once(state: TopologyState, raw: Any) -> None:
    turn = turns(state)
    commit(turn(1), {b"a": b"1", b"b": b"2"})
    turn(2).load("count:0")
    commit(turn(2), {b"c": b"3"}, "count:1")
    raw.hdel("acker:{app}:state_values:words:count:0", "a")
    with pytest.raises(StateLostError, match=r"1 of 2 fields of task count:0 are gone\. Run again"):
        state.open({})
    raw.unlink("acker:{app}:state_attempt:words:count:1:1:2:one")
    with pytest.raises(StateLostError, match="the last changes of task count:1 are gone"):
        state.open({})
    epoch, _ = state.open({})
    again = state.turn(epoch, 1)
    assert [again.load("count:0"), again.load("count:1")] == ["1:1:one", ""]
    assert values(again) == {b"b": b"2"} and values(again, "count:1") == {}
    raw.unlink("acker:{app}:state_values:words:count:0")
    with pytest.raises(StateLostError, match="1 of 1 fields of task count:0"):
        state.open({})
    assert raw.hgetall("acker:{app}:state_sizes") == {b"total": b"0"}
    assert state.empty() == Emptied(0, 0) and state.tasks() == []


# -- sizes


def sizes(client: Client) -> list[TaskSize]:
    return topology_sizes.read(client, "app")


def limit(client: Client, most: int | None) -> None:
    limits.write(client, AckerConfig("app"), Limits(max_state_bytes=most))


def test_sizes_are_those_of_the_committed_turns(client: Client, state: TopologyState) -> None:
    turn = turns(state)
    attempt = turn(1).write("count:0", "one", {b"key": b"1234", b"b": b"2"})
    assert sizes(client) == [] and topology_sizes.read_total(client, "app") == 0
    assert turn(1).commit([attempt]) is turn(1).commit([attempt]) is Status.OPEN
    assert sizes(client) == [TaskSize("words", "count", 0, 9, 0)], "its keys are counted when they are folded"
    turn(2).load("count:0")
    attempts = [
        turn(2).write("count:0", "one", {b"key": b"", b"b": b"222", b"none": b""}, {b"b": 1}),
        turn(2).write("count:1", "one", {b"c": b"3"}, {b"c": 0}),
    ]
    assert turn(2).commit(attempts) is Status.OPEN
    for task in ("count:0", "count:1"):
        turn(3).load(task)
    other = TopologyState(client, "app", "a:b %")
    commit(turns(other)(1), {b"x": b"y"}, "sum%3A:7")
    expected = [
        TaskSize("a:b %", "sum:", 7, 2, 0),
        TaskSize("words", "count", 0, 4, 1),
        TaskSize("words", "count", 1, 2, 1),
    ]
    assert sizes(client) == expected and topology_sizes.read_total(client, "app") == 8
    assert topology_sizes.read(client, "app", "words") == expected[1:]


def test_a_state_above_its_limit_is_refused_and_may_shrink(client: Client, raw: Any, state: TopologyState) -> None:
    turn = turns(state)
    commit(turn(1), {b"a": b"1" * 9, b"b": b"2" * 9})
    limit(client, 20)
    turn(2).load("count:0")
    before = {key: raw.dump(key) for key in raw.keys("*")}
    with pytest.raises(StateLimitError, match=r"Turn 2 of topology 'words' .*--max-state-bytes"):
        turn(2).write("count:0", "one", {b"c": b"3"})
    assert {key: raw.dump(key) for key in raw.keys("*")} == before, "nothing was changed"
    commit(turn(2), {b"a": b"3" * 9}, "count:0")
    turn(3).load("count:0")
    limit(client, 5)
    commit(turn(3), {b"a": b"", b"c": b"3" * 5}, "count:0")
    assert topology_sizes.read_total(client, "app") == 16
    limit(client, None)
    commit(turn(4), {b"d": b"4" * 100})


def test_a_commit_whose_attempts_together_exceed_the_limit_changes_nothing(
    client: Client, state: TopologyState
) -> None:
    turn = turns(state)
    limit(client, 10)
    attempts = [turn(1).write(task, "one", {b"k": b"12345"}) for task in ("count:0", "count:1")]
    turn(1).check_limit(attempts[:1])
    with pytest.raises(StateLimitError, match=r"Turn 1 of topology 'words' .*--max-state-bytes"):
        turn(1).check_limit(attempts)
    assert turn(1).commit(attempts) is Status.FULL
    assert turn(1).close() and sizes(client) == []
    assert turn(2).load("count:0") == "" and values(turn(2)) == {}


# -- the end of a state


def test_empty_deletes_all_state_of_a_topology_and_no_other(client: Client, raw: Any, state: TopologyState) -> None:
    other = TopologyState(client, "app", "other")
    commit(turns(other)(1), {b"x": b"y"})
    old = turns(state)
    commit(old(1), {b"a": b"1"})
    old(2).load("count:0")
    commit(old(2), {b"b": b"22"})
    left = old(3).write("count:0", "late", {b"c": b"3"}) if old(3).load("count:0") else None
    assert state.empty() == Emptied(2, 5)
    assert sorted(raw.keys("*words*")) == [b"acker:{app}:state:words"] and topology_sizes.read_total(client, "app") == 2
    with pytest.raises(TurnOverError, match="newer run"):
        old(3).write("count:0", "late", {b"c": b"3"})
    assert left is not None and old(3).commit([left]) is Status.STALE
    epoch, refused = state.open({"count": "another shape"})
    assert (epoch, refused) == (3, None) and state.turn(3, 1).load("count:0") == ""
    assert state.empty() == Emptied(0, 0) and TopologyState(client, "app", "none").empty() == Emptied(0, 0)


def test_tasks_that_no_run_needs_are_forgotten_whatever_was_left_of_them(
    client: Client, raw: Any, state: TopologyState
) -> None:
    old = turns(state)
    commit(old(1), {b"a": b"1"})
    for number, task in ((2, "gone:0"), (3, "gone:0"), (4, "gone:1")):  # the last one isn't folded
        old(number).load(task)
        commit(old(number), {b"b": b"%d" % number}, task)
    old(5).load("gone:0")
    old(5).write("gone:0", "late", {b"c": b"3"})
    epoch, _ = state.open({})
    with pytest.raises(TurnOverError, match="newer run"):
        state.forget_tasks(epoch - 1, lambda task: True)
    assert state.tasks() == ["count:0", "gone:0", "gone:1"]
    for _ in range(2):
        state.forget_tasks(epoch, lambda task: task.startswith("gone"))
        assert raw.keys("*gone*") == [] and state.tasks() == ["count:0"]
    assert sizes(client) == [TaskSize("words", "count", 0, 2, 0)] and topology_sizes.read_total(client, "app") == 2
    turn = state.turn(epoch, 1)
    assert turn.load("count:0") == "1:1:one" and values(turn) == {b"a": b"1"}


def test_a_run_that_begins_while_its_state_is_emptied_keeps_it(
    state: TopologyState, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(turns(state)(1), {b"a": b"1"})
    fields = state._fields()
    epoch, _ = state.open({})
    monkeypatch.setattr(state, "_fields", lambda: fields)
    with pytest.raises(TurnOverError, match="newer run"):
        state.empty()
    turn = state.turn(epoch, 1)
    assert turn.load("count:0") == "1:1:one" and values(turn) == {b"a": b"1"}


def test_a_fold_that_stalls_writes_nothing_over_a_later_turn(
    state: TopologyState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stalls between two of its calls, while another worker folds this turn and the next one."""
    turn = turns(state)
    monkeypatch.setattr(state_pieces, "PART_BYTES", 1)
    commit(turn(1), {b"a": b"1", b"b": b"1", b"c": b"1"})
    stalled = turn(2).fold("count:0", "1:1:one")
    assert next(stalled) == 2
    commit(turn(2), {b"a": b"2", b"b": b"2", b"d": b"2"})
    assert turn(3).load("count:0") == "1:2:one"
    assert set(stalled) == {0}, "it goes on, and finds nothing to do"
    assert values(turn(3)) == {b"a": b"2", b"b": b"2", b"c": b"1", b"d": b"2"}


def test_a_task_that_idles_for_ten_turns_keeps_the_commit_that_isnt_folded(state: TopologyState) -> None:
    turn = turns(state)
    commit(turn(1), {b"a": b"1"})
    for number in range(2, 12):
        commit(turn(number), {b"n": b"%d" % number}, "count:1")
    assert turn(12).load("count:0") == "1:1:one" and values(turn(12)) == {b"a": b"1"}
    epoch, _ = state.open({})
    assert state.turn(epoch, 1).load("count:0") == "1:1:one"
