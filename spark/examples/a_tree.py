"""A tree of edges by hand: a root is done when each edge was XORed in twice. No Spark.

Prints:
    taken from the queue: pending
    split in two: pending
    first half written: pending
    second half written: ack
"""

from acker_redis import Acker
from spark.examples import URL

ROOT, QUEUE, FIRST, SECOND = 1, 0xA1, 0xB2, 0xC3  # any 64-bit integers


def say(what: str, acker: Acker) -> None:
    outcomes = acker.poll()
    acker.confirm(outcomes)
    print(f"{what}: {outcomes[0].kind if outcomes else 'pending'}")


with Acker.connect(URL, app="example-tree") as acker:
    acker.init(ROOT, QUEUE, spout_id=0)
    say("taken from the queue", acker)
    acker.ack(ROOT, QUEUE ^ FIRST ^ SECOND, component="split")
    say("split in two", acker)
    acker.ack(ROOT, FIRST, component="write")
    say("first half written", acker)
    acker.ack(ROOT, SECOND, component="write")
    say("second half written", acker)
