"""The public calls, end to end, on every server."""

from acker_redis import Acker


def test_tree_completes_when_every_edge_is_acked(source, connect) -> None:
    acker: Acker = connect(shards=2)
    assert acker.init(1, 5, 7)
    acker.ack(1, 5 ^ 9, component="split")
    assert acker.poll() == []
    acker.ack(1, 9, component="count")
    (outcome,) = acker.poll()
    assert (outcome.kind, outcome.root, outcome.spout_id, outcome.reason) == ("ack", 1, 7, None)
    assert outcome.last_component == "count"
    assert acker.confirm([outcome]) == 1
    assert acker.poll() == []
    assert acker.stats().pending == 0


def test_inspected_root_shows_its_state_and_spout_id(source, connect) -> None:
    acker: Acker = connect()
    acker.init_many([2, 4], [5, 5], 7)
    acker.ack(1, 5)
    acker.fail_many([3, 4])
    states = [(record.state, record.spout_id) for record in acker.inspect_many([1, 2, 3, 4]) if record]
    assert states == [("waiting", None), ("owned", 7), ("failed", None), ("closed", 7)]
    stats = acker.stats()
    assert (stats.pending, stats.unowned, stats.closed) == (1, 2, 1)


def test_unacked_root_times_out(source, connect) -> None:
    acker: Acker = connect(num_buckets=3)
    acker.init(-1, 5, 0)
    acker.admin.rotate(force=True)
    acker.admin.rotate(force=True)
    assert acker.poll() == []
    assert acker.admin.rotate(force=True).timed_out == 1
    (outcome,) = acker.poll()
    assert (outcome.kind, outcome.root, outcome.reason) == ("fail", -1, "timeout")
