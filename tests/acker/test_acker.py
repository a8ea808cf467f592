"""The public calls, end to end, on every server."""

from acker_redis import Acker


def test_a_tree_completes_when_every_edge_was_acked(source, connect) -> None:
    acker: Acker = connect(shards=2)
    assert acker.init(1, 5, 7)
    acker.ack(1, 5 ^ 9, stage="split")
    assert acker.poll() == []
    acker.ack(1, 9, stage="count")
    (outcome,) = acker.poll()
    assert (outcome.kind, outcome.root, outcome.task, outcome.reason) == ("ack", 1, 7, None)
    assert outcome.last_stage == "count"
    assert acker.confirm([outcome]) == 1
    assert acker.poll() == []
    assert acker.stats().pending == 0


def test_a_record_says_where_its_root_stands(source, connect) -> None:
    acker: Acker = connect()
    acker.init_many([2, 4], [5, 5], 7)
    acker.ack(1, 5)
    acker.fail_many([3, 4])
    states = [(record.state, record.task) for record in acker.inspect_many([1, 2, 3, 4]) if record]
    assert states == [("waiting", None), ("owned", 7), ("failed", None), ("closed", 7)]
    stats = acker.stats()
    assert (stats.pending, stats.unowned, stats.closed) == (1, 2, 1)


def test_a_root_that_nobody_acks_times_out(source, connect) -> None:
    acker: Acker = connect(num_buckets=3)
    acker.init(-1, 5, 0)
    acker.admin.rotate(force=True)
    acker.admin.rotate(force=True)
    assert acker.poll() == []
    assert acker.admin.rotate(force=True).timed_out == 1
    (outcome,) = acker.poll()
    assert (outcome.kind, outcome.root, outcome.reason) == ("fail", -1, "timeout")
