"""Run a topology as a service on a Redis or Valkey. The bad order becomes a dead letter after its last attempt.

Prints:
    written: tea
    written: milk
    acked=2 failed=2 dead_letters=1
"""

from acker_redis import Acker, RetryPolicy
from acker_redis.storm import Bolt, ReliableSpout, RowFailedError, Topology
from spark.examples import URL


class Orders(ReliableSpout):
    outputs = ["item"]
    retry = RetryPolicy(max_attempts=2, first_delay_secs=0)
    unread = ["tea", "unicorn", "milk"]

    def next_tuple(self):
        if self.unread:
            self.emit(self.unread[:1], tup_id=f"order of {self.unread[0]}")
            self.unread = self.unread[1:]


class Write(Bolt):
    def process(self, tup):
        if tup.values.item == "unicorn":
            raise RowFailedError("no price")
        print(f"written: {tup.values.item}")


class Service(Topology):
    orders = Orders.spec()
    write = Write.spec(inputs=[orders])


with Acker.connect(URL, app="example-service") as acker:
    result = Service.run_local(acker)  # until Ctrl-C, if the spout never runs dry
    print(f"acked={result.acked} failed={result.failed} dead_letters={result.dead_letters}")
