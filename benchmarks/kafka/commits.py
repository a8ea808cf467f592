"""Time of a commit, from the call to the broker's answer."""

import time
import uuid
from collections.abc import Iterator

import numpy as np
from confluent_kafka import Producer

from benchmarks.harness import Bench, Row
from benchmarks.kafka.members import WAIT_SECS, Member, send
from spark.support.kafka import Node

_COMMITS = 100
"""Number of commits. A thousand took more than five minutes."""
_TARGET_MS = 5.0


def rows(bench: Bench, node: Node) -> Iterator[Row]:
    """Commit each record by itself."""
    count = bench.size(_COMMITS, least=50)
    topic, producer = node.topic(f"topic-{uuid.uuid4().hex[:8]}"), Producer(node.client)
    for n in range(count):
        send(producer, topic, str(n), "x")
    producer.flush(WAIT_SECS)
    millis = []
    with Member(node, topic, topic) as one:
        while len(one.offsets) < count:
            if not one.step(1):
                continue
            (owned,) = one.member.owned
            began = time.perf_counter()
            one.member.commit()
            while owned.committed != owned.commit():
                one.member.read(0, 0.0)  # the answer comes with it
            millis.append((time.perf_counter() - began) * 1000)
    for share, target in ((50, _TARGET_MS), (99, None)):
        yield bench.row(f"commit, p{share}", [float(np.percentile(millis, share))], "ms", target=target)
