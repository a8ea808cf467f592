"""Random updates, resends and ticks, compared with the oracle after every step, on every server."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from acker_redis import Acker, AckerConfig, IdempotencyKeyReusedError, Outcome
from acker_redis.model import ids
from acker_redis.model.config import Clock
from tests.model_based.oracle import End, Oracle, Row, Update
from tests.support.leaks import assert_no_leaks, run_out

ROOTS: dict[str, tuple[int, ...]] = {
    "alone": (1, 2, -1, -(2**63), 2**63 - 2, 3),
    "together": (77, 3 << 59 | 77, 4 << 59 | 77, 15 << 59 | 77, -(2**63) + 77, -(1 << 59) + 77),
    "mixed": (0, -(2**63), 1, 2, -1, 2**63 - 1),  # two pairs that share a block each
}
EDGES = tuple(ids.derive("edge", i) for i in range(3))
TASKS = (0, 1, 2**32 - 1)
COMPONENTS = (None, "split", "count")

PROFILE = settings(
    max_examples=30,
    stateful_step_count=25,
    phases=(Phase.generate,),
    deadline=None,
    derandomize=True,
    print_blob=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(PROFILE, max_examples=1000, derandomize=False)
"""For `make chaos`: others each time; what fails is printed, to be repeated."""

_LONGER_THAN_ANY_PAUSE_SECS = 1e7
"""A tick then takes a month: a machine that was suspended, or whose clock is set, must not tick beside the oracle."""

_app_numbers = itertools.count()


def edges_to_val(edges: set[int]) -> int:
    """A value as spouts and bolts make it: the XOR of some edges."""
    val = 0
    for edge in edges:
        val ^= EDGES[edge]
    return val


roots = st.integers(0, 5)
"""Numbers of roots; which ones, says the machine."""

vals = st.sets(st.integers(0, len(EDGES) - 1)).map(edges_to_val)
rows = st.lists(st.tuples(roots, vals), min_size=1, max_size=6).map(tuple)
components = st.sampled_from(COMPONENTS)
inits = st.builds(lambda rows, spout_id: Update("init", rows, spout_id=spout_id), rows, st.sampled_from(TASKS))
acks = st.builds(lambda rows, component: Update("ack", rows, component=component), rows, components)
fails = st.builds(
    lambda roots, component: Update("fail", tuple((root, 0) for root in roots), component=component),
    st.lists(roots, min_size=1, max_size=3),
    components,
)
one_update = st.one_of(inits, acks, acks, fails).map(lambda update: (update,))
batches = st.tuples(inits, acks, fails, st.lists(st.booleans(), min_size=3, max_size=3)).map(
    lambda drawn: tuple(update for update, wanted in zip(drawn[:3], drawn[3], strict=True) if wanted) or (drawn[1],)
)


class AckerMachine(RuleBasedStateMachine):
    """One app on one server. Idempotency keys are resent while they must still live: up to num_buckets ticks."""

    source: Any
    raw: Any

    @initialize(
        clock=st.sampled_from(("first_seen", "last_update")),
        num_buckets=st.integers(2, 4),
        shards=st.integers(1, 3),
        lanes=st.integers(1, 2),
        kind=st.sampled_from(sorted(ROOTS)),
        spout_id=st.sampled_from(TASKS),
    )
    def open(self, clock: Clock, num_buckets: int, shards: int, lanes: int, kind: str, spout_id: int) -> None:
        self.roots = ROOTS[kind]
        self.one_spout_id = None if kind == "alone" else spout_id  # a block has one
        config = AckerConfig(
            app=f"machine-{next(_app_numbers)}",
            shards=shards,
            num_buckets=num_buckets,
            clock=clock,
            lanes=lanes,
            message_timeout_secs=_LONGER_THAN_ANY_PAUSE_SECS,
        )
        self.acker = Acker.connect(self.source, config)
        self.oracle = Oracle(num_buckets, clock, lambda root: int(ids.shard_of(_uint64([root]), shards)[0]))
        self.sent: list[tuple[str, tuple[Update, ...], int]] = []
        self.held: list[Outcome] = []
        self.owned = 0

    def real(self, update: Update) -> Update:
        """With the machine's roots for numbers."""
        spout_id = update.spout_id if self.one_spout_id is None else self.one_spout_id
        return update._replace(rows=tuple((self.roots[number], val) for number, val in update.rows), spout_id=spout_id)

    # -- what clients send

    @rule(root=roots, val=vals, spout_id=st.sampled_from(TASKS))
    def init(self, root: int, val: int, spout_id: int) -> None:
        update = self.real(Update("init", ((root, val),), spout_id=spout_id))
        expected = self.oracle.send([update], None)
        assert self.acker.init(self.roots[root], val, update.spout_id) == (expected.applied == 1)
        self.compare()

    @rule(root=roots, val=vals, component=components)
    def ack(self, root: int, val: int, component: str | None) -> None:
        self.oracle.send([self.real(Update("ack", ((root, val),), component=component))], None)
        self.acker.ack(self.roots[root], val, component=component)
        self.compare()

    @rule(root=roots)
    def ack_what_is_missing(self, root: int) -> None:
        tree = self.oracle.trees.get(self.roots[root])
        self.ack(root, tree.val if tree else 0, None)

    @rule()
    def ack_what_is_missing_of_all(self) -> None:
        self.check_sent(
            (Update("ack", tuple((root, tree.val) for root, tree in self.oracle.trees.items()) or ((1, 0),)),), None
        )

    @rule(root=roots, component=components)
    def fail(self, root: int, component: str | None) -> None:
        self.oracle.send([self.real(Update("fail", ((root, 0),), component=component))], None)
        self.acker.fail(self.roots[root], component=component)
        self.compare()

    @rule(updates=st.one_of(one_update, batches), with_idempotency_key=st.booleans())
    def send(self, updates: tuple[Update, ...], with_idempotency_key: bool) -> None:
        updates = tuple(map(self.real, updates))
        idempotency_key = f"key-{len(self.sent)}" if with_idempotency_key else None
        if idempotency_key:
            self.sent.append((idempotency_key, updates, self.oracle.tick))
        self.check_sent(updates, idempotency_key)

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        idempotency_key, updates, _ = data.draw(st.sampled_from(self.live()))
        self.check_sent(updates, idempotency_key)

    @precondition(lambda self: self.live())
    @rule(data=st.data(), updates=one_update)
    def send_other_content(self, data: st.DataObject, updates: tuple[Update, ...]) -> None:
        idempotency_key, _, _ = data.draw(st.sampled_from(self.live()))
        self.check_sent(tuple(map(self.real, updates)), idempotency_key)

    @rule(chosen=st.lists(roots, min_size=1, max_size=4))
    def reset_timeout(self, chosen: list[int]) -> None:
        real = [self.roots[number] for number in chosen]
        assert self.acker.reset_timeout_many(real) == self.oracle.reset_timeout(real)
        self.compare()

    # -- what the others do

    @rule()
    def rotate(self) -> None:
        done = self.acker.admin.rotate(force=True)
        assert (done.timed_out, done.orphaned) == self.oracle.rotate()
        assert (done.ticked, done.draining) == (self.acker.config.shards, 0)
        self.compare()

    @rule()
    def rotate_when_due(self) -> None:
        assert self.acker.admin.rotate().ticked == 0
        self.compare()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.held)))
        self.acker.confirm(self.held[:count])
        del self.held[:count]
        self.compare()

    def teardown(self) -> None:
        if not hasattr(self, "acker"):
            return
        try:
            self.acker.confirm(self.held)
            rest = run_out(self.acker)
            for _ in range(self.acker.config.num_buckets + 1):
                self.oracle.rotate()
            self.check_ends(rest)
            stats = self.acker.stats()
            assert (stats.pending, stats.unowned, stats.closed) == (0, 0, 0)
            assert_no_leaks(self.raw, self.acker.config.app)
        finally:
            self.acker.close()

    # -- comparison

    def live(self) -> list[tuple[str, tuple[Update, ...], int]]:
        """Batches whose idempotency key must still be known: everything of them that was deduplicated is at most so old."""
        return [sent for sent in self.sent if self.oracle.tick - sent[2] <= self.acker.config.num_buckets]

    def check_sent(self, updates: tuple[Update, ...], idempotency_key: str | None) -> None:
        expected = self.oracle.send(updates, idempotency_key)
        if expected.reused:
            with pytest.raises(IdempotencyKeyReusedError):
                _send(self.acker, updates, idempotency_key)
        else:
            assert _send(self.acker, updates, idempotency_key) == (expected.applied, expected.seen > 0)
        self.compare()

    def compare(self) -> None:
        found: list[Outcome] = []
        for lane in range(self.acker.config.lanes):
            outcomes = self.acker.poll(lane=lane)
            assert all(outcome.spout_id % self.acker.config.lanes == lane for outcome in outcomes)
            found.extend(outcomes)
        self.check_ends(found)
        self.held.extend(found)
        for root, held in zip(self.roots, self.acker.inspect_many(self.roots), strict=True):
            tree = self.oracle.trees.get(root)
            assert (held is None) == (tree is None)
            if held and tree:
                left = self.acker.config.num_buckets - (self.oracle.tick - self.oracle.put_at(root))
                assert held[:4] == (root, tree.val, tree.spout_id, tree.state)
                assert (held.last_component, held.ticks_left) == (tree.component, left)
        stats = self.acker.stats()
        counters = {name: value for name, value in stats._asdict().items() if name in COUNTERS}
        assert counters == {name: self.oracle.stats[name] for name in COUNTERS}
        assert stats.pending == self.oracle.pending()
        assert stats.unowned == self.oracle.unowned()
        assert (stats.oldest_age_ms is None) == (stats.pending == 0)
        assert (stats.unconfirmed_outcomes > 0) == bool(self.held)

    def check_ends(self, found: Sequence[Outcome]) -> None:
        ends = [End(o.kind, o.root, o.spout_id, o.reason, o.last_component) for o in found]
        assert sorted(ends, key=repr) == sorted(self.oracle.ends, key=repr)
        self.oracle.ends.clear()
        assert not any(outcome.redelivered for outcome in found)
        self.owned += len(ends)
        assert self.owned == self.oracle.stats["inits"] - self.oracle.pending()  # one outcome per init that was taken
        for root, values in self.oracle.completed:
            for edge in EDGES:
                assert sum(edge in _edges(val) for val in values) % 2 == 0, f"{root} completed with an open edge"
        self.oracle.completed.clear()


COUNTERS = (
    "inits", "acks", "fails", "acked", "failed", "timed_out", "orphaned", "closed", "duplicate_inits", "deduplicated",
    "late_updates", "released",
)  # fmt: skip


def _send(acker: Acker, updates: tuple[Update, ...], idempotency_key: str | None) -> tuple[int, bool]:
    if len(updates) > 1:
        with acker.batch(idempotency_key=idempotency_key) as batch:
            for update in reversed(updates):  # the batch brings them into its own order
                for root, val in update.rows:
                    if update.operation == "init":
                        batch.init(root, val, update.spout_id)
                    elif update.operation == "ack":
                        batch.ack(root, val, component=update.component)
                    else:
                        batch.fail(root, component=update.component)
        assert batch.result is not None
        return batch.result
    (update,) = updates
    chosen, values = _columns(update.rows)
    if update.operation == "init":
        return acker.init_many(chosen, values, update.spout_id, idempotency_key=idempotency_key)
    if update.operation == "ack":
        return acker.ack_many(chosen, values, idempotency_key=idempotency_key, component=update.component)
    return acker.fail_many(chosen, idempotency_key=idempotency_key, component=update.component)


def load_scripts(source: Any) -> None:
    """A batch whose first script the server doesn't know yet is applied in another order than the oracle's."""
    with Acker.connect(source, AckerConfig(app="loads-scripts")) as acker:
        acker.init(1, 1, 0)
        acker.ack(1, 1)
        acker.fail(2)


def _columns(rows: Sequence[Row]) -> tuple[Any, Any]:
    return np.array([root for root, _ in rows], np.int64), np.array([val for _, val in rows], np.int64)


def _uint64(values: Sequence[int]) -> Any:
    return np.array(values, np.int64).view(np.uint64)


def _edges(val: int) -> set[int]:
    """The edges whose XOR a value is; the constants are independent, so there is one such set."""
    for size in range(len(EDGES) + 1):
        for chosen in itertools.combinations(range(len(EDGES)), size):
            if edges_to_val(set(chosen)) == val:
                return {EDGES[i] for i in chosen}
    raise AssertionError(f"{val} is no XOR of edges")


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param(PROFILE, id="some"),
        pytest.param(LONG, id="many", marks=[pytest.mark.chaos, pytest.mark.timeout(3600)]),
    ],
)
def test_any_history_agrees_with_the_oracle(source: Any, profile: settings) -> None:
    raw = redis.Redis.from_url(source) if isinstance(source, str) else source
    load_scripts(source)
    machine = type("Machine", (AckerMachine,), {"source": source, "raw": raw})
    try:
        run_state_machine_as_test(machine, settings=profile)
    finally:
        raw.close()
