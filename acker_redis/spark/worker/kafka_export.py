"""Headers of records that are exported to Kafka: fresh edges, introduced to the ledger."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa

from acker_redis.errors import LedgerLostError
from acker_redis.model import anchors
from acker_redis.model.arrays import UInt64Array
from acker_redis.model.config import AckerConfig
from acker_redis.spark.protocol import shares
from acker_redis.spark.protocol.columns import ANCHORS, ROOTS, SHARE
from acker_redis.spark.worker.export import fresh_edges
from acker_redis.spark.worker.process import acker_of_worker, keep_imports, while_lost

_AT_ONCE = 10_000
"""Number of edges that wait for their introduction."""


@dataclass(frozen=True)
class AnchorHeaders:
    """Function from tracked batches of a partition to batches whose rows have the value of a header (`ANCHORS`).

    It is null for rows of no message. The batches have neither roots nor shares.

    Each edge is introduced under a key of its own, before the task ends. So it counts once, however far an earlier try of
    the task got. The input of a try seems complete even if the step before it died.

    Attributes:
        url: server's URL, as executors reach it.
        config: settings of the app.
        prefix: name of run, emission and action. Edges are derived from it.
        component: name of the sink.
        group: consumer group that may ack the edges.
    """

    url: str = field(repr=False)  # may hold a password
    config: AckerConfig
    prefix: str
    component: str
    group: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on one partition.

        Raises:
            InexactPipelineError: rows have lost their roots.
        """
        keep_imports()
        acker_of_worker(self.url, self.config)  # any error must show before a row leaves
        salt, begin = shares.salt_of(self.prefix), anchors.prefix(self.config.app, self.group)
        waiting: list[tuple[UInt64Array, UInt64Array]] = []
        for batch in batches:
            starts, roots, edges = fresh_edges(batch, salt, self.component)
            packed = anchors.packed_anchors(roots.view(np.int64), edges.view(np.int64))
            bounds = (starts * anchors.ANCHOR_BYTES).tolist()
            values = [begin + packed[at:end] if end > at else None for at, end in pairwise(bounds)]
            yield batch.drop_columns([ROOTS, SHARE]).append_column(ANCHORS, pa.array(values, pa.binary()))
            waiting.append((roots, edges))
            if sum(len(part) for part, _ in waiting) >= _AT_ONCE:
                self._introduce(waiting)
                waiting = []
        self._introduce(waiting)

    def _introduce(self, waiting: list[tuple[UInt64Array, UInt64Array]]) -> None:
        none = np.array([], np.uint64)
        roots = np.concatenate([none, *(part for part, _ in waiting)])
        edges = np.concatenate([none, *(part for _, part in waiting)])
        if not len(roots):
            return
        acker = acker_of_worker(self.url, self.config)
        keys = ~edges  # the edge itself is the key of the ack of whoever has processed the record
        try:
            acker.ack_many(roots, edges, record_keys=keys, component=self.component)
        except LedgerLostError:
            # The spout detects the loss by itself and replays. Nothing waits for these roots then, and they expire.
            while_lost(acker.reopen)
            acker.ack_many(roots, edges, record_keys=keys, component=self.component)
