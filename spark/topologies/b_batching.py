"""Write rows in batches, one per customer. An exception fails its own batch, and the other rows are acked.

Prints:
    ann: tea, milk
    bob: bread
    ann: eggs
    acked: 1 2 3 5
    failed: 4 (ValueError: zoe is no customer)
"""

from acker_redis.storm import BatchingBolt, FeederSpout, Topology

ORDERS = [("ann", "tea"), ("ann", "milk"), ("bob", "bread"), ("zoe", "unicorn"), ("ann", "eggs")]


class Write(BatchingBolt):
    config = {"topology.tick.tuple.freq.secs": 5}  # every batch is written at a tick
    batch_size = 2  # and at once when it has two rows

    def group_key(self, tup):
        return tup.values.customer

    def process_batch(self, customer, tups):
        if customer == "zoe":
            raise ValueError("zoe is no customer")
        print(f"{customer}: {', '.join(tup.values.item for tup in tups)}")


class Orders(Topology):
    orders = FeederSpout(["customer", "item"]).spec()
    write = Write.spec(inputs=[orders])


with Orders.local() as run:
    for number, order in enumerate(ORDERS, 1):
        run.feed("orders", order, tup_id=number)
    run.advance(5)
    print("acked:", *sorted(run.acked("orders")))
    for number, reason in run.failed("orders"):
        print(f"failed: {number} ({reason})")
