"""A tracker as functions that run in Spark's workers hold it."""

import pickle

from acker_redis import AckerConfig
from acker_redis.spark import Tracker
from acker_redis.spout import Spout
from acker_redis.testing import fake_acker


def test_a_tracker_goes_where_functions_go_that_hold_it() -> None:
    acker = fake_acker(AckerConfig(app="orders"))
    spout = Spout(acker, "run", task=3)
    spout.add([1, 2])  # type: ignore[arg-type]
    emission = spout.next_emission()
    assert emission is not None
    tracker = Tracker.of("redis://h", spout, emission)
    found = pickle.loads(pickle.dumps(tracker))  # noqa: S301
    assert found == tracker == Tracker("redis://h", acker.config, "run", 0, 3)
