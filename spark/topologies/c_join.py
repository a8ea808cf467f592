"""Join two spouts. The bolt holds a tuple until its partner arrives, and anchors the pair to both.

Prints:
    pairs: (1, 'tea', 3)
    acked: orders [1], payments ['p1']
    failed: [(2, 'timeout')]
"""

from acker_redis.storm import FeederSpout, Grouping, StatefulBolt, Topology


class Join(StatefulBolt):
    outputs = ["order", "item", "paid"]
    auto_ack = False  # a tuple stays pending while the state holds it

    def process(self, tup):
        if tup.values.order not in self.state:
            self.state[tup.values.order] = tup
            return
        pair = order, payment = sorted([tup, self.state.pop(tup.values.order)], key=lambda held: held.component)
        self.emit([order.values.order, order.values.item, payment.values.paid], anchors=pair)
        for held in pair:
            self.ack(held)


class Paid(Topology):
    orders = FeederSpout(["order", "item"]).spec()
    payments = FeederSpout(["order", "paid"]).spec()
    join = Join.spec(inputs={orders: Grouping.fields("order"), payments: Grouping.fields("order")}, par=4)


with Paid.local() as run:
    run.feed("orders", [1, "tea"], tup_id=1)
    run.feed("orders", [2, "unicorn"], tup_id=2)  # nobody pays for it
    run.feed("payments", [1, 3], tup_id="p1")
    run.settle()
    print("pairs:", *map(tuple, run.emitted("join")))
    print(f"acked: orders {run.acked('orders')}, payments {run.acked('payments')}")
    run.advance(60)  # the message timeout is 30 s
    print("failed:", run.failed("orders"))
