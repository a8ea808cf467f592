"""Build a tree of edges by hand: a root is done once each edge was XORed in twice. No Spark.

Prints:
    taken from the queue: pending
    split in two: pending
    first half written: pending
    second half written: ack
"""

from acker_redis import Acker
from spark.examples import URL

ROOT, QUEUE, FIRST, SECOND = 1, 0xA1, 0xB2, 0xC3  # any 64-bit integers


def show(step: str, acker: Acker) -> None:
    outcomes = acker.poll()
    acker.confirm(outcomes)
    print(f"{step}: {outcomes[0].kind if outcomes else 'pending'}")


with Acker.connect(URL, app="example-tree") as acker:
    acker.init(ROOT, QUEUE, spout_id=0)
    show("taken from the queue", acker)
    acker.ack(ROOT, QUEUE ^ FIRST ^ SECOND, component="split")
    show("split in two", acker)
    acker.ack(ROOT, FIRST, component="write")
    show("first half written", acker)
    acker.ack(ROOT, SECOND, component="write")
    show("second half written", acker)
