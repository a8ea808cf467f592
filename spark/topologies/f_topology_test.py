"""Test a topology in simulated time and in many orders: `python -m pytest spark/topologies/f_topology_test.py`."""

import pytest

from acker_redis.storm import Bolt, FeederSpout, RowFailedError, Topology


class Pair(Bolt):
    outputs = ["items"]
    auto_ack = False  # an item stays pending until it has a partner

    def initialize(self, conf, context):
        self.held = []

    def process(self, tup):
        if not tup.values.item:
            raise RowFailedError("no item")
        self.held.append(tup)
        if len(self.held) == 2:
            self.emit([[held.values.item for held in self.held]], anchors=self.held)
            while self.held:
                self.ack(self.held.pop())


class Pairs(Topology):
    config = {"topology.message.timeout.secs": 30}
    items = FeederSpout(["item"]).spec()
    pair = Pair.spec(inputs=[items])


@pytest.mark.parametrize("seed", range(20))
def test_items_are_acked_in_pairs(seed):
    with Pairs.local(seed=seed) as run:
        for item in ("tea", "", "milk", "bread"):
            run.feed("items", [item], tup_id=item)
        run.settle()
        assert run.emitted("pair") == [(["tea", "milk"],)]
        assert (sorted(run.acked("items")), run.failed("items")) == (["milk", "tea"], [("", "no item")])
        run.advance(60)
        assert run.failed("items")[1:] == [("bread", "timeout")]
