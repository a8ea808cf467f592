"""A consumer's acks with a key per record, compared with the same acks under one key per batch.

The consumer reads 500 records at a time, as from a topic that `export_kafka` wrote: four records per message, in the order of
the messages. It decodes the header of each record, and acks in one batch. Both ways take turns, slice by slice, on messages of
their own. The ring turns between slices, so that every set of the dedup window has keys.
"""

import time
from collections.abc import Iterator

import numpy as np

from acker_redis import Acker, Anchors
from acker_redis.client.connection import RedisClient
from acker_redis.model import ids
from acker_redis.model.anchors import HEADER, packed_anchors, prefix
from acker_redis.model.arrays import Int64Array
from benchmarks import harness
from benchmarks.harness import Bench, Row

_RECORDS = 800_000
_PER_MESSAGE = 4
_AT_ONCE = 500
_SLICES = 16
_TARGET = 1.5
_GROUP = "consumers"

_Headers = list[list[tuple[str, object]]]


@harness.benchmark("record-keys")
def run(bench: Bench) -> Iterator[Row]:
    """Measure the wall time of a consumer and the CPU of the server, with and without keys."""
    count = bench.size(_RECORDS, _SLICES * _AT_ONCE) // (_SLICES * _PER_MESSAGE)
    client = bench.redis()
    walls: dict[bool, list[float]] = {True: [], False: []}
    cpus: dict[bool, list[float]] = {True: [], False: []}
    with bench.acker("keys", empty=True) as acker:
        for number in range(_SLICES):
            has_keys = number % 2 == 1
            headers = _exported(acker, count)
            wall, cpu = _consume(acker, client, headers, has_keys=has_keys)
            walls[has_keys].append(wall / len(headers))
            cpus[has_keys].append(cpu / len(headers))
            if number % 4 == 3:
                acker.admin.rotate(force=True)
        if acker.pending():
            raise AssertionError(f"{acker.pending()} messages are pending, although all records were acked")
    client.close()
    for what, measured, target in (("consumer's acks, wall", walls, _TARGET), ("server CPU of the acks", cpus, None)):
        ratios = [ours / theirs for ours, theirs in zip(measured[True], measured[False], strict=True)]
        micros = {has_keys: float(np.median(values)) for has_keys, values in measured.items()}
        context = f"{micros[True]:.2f} µs per record, without {micros[False]:.2f} µs"
        yield bench.row(f"{what}: a key per record / one per batch", ratios, "x", target=target, context=context)


def _exported(acker: Acker, count: int) -> _Headers:
    """Init messages that wait for their records. Return the headers of the records."""
    roots: Int64Array = acker.new_roots(count)
    places = np.arange(count * _PER_MESSAGE, dtype=np.uint64)
    edges = ids.derive_many(1, roots.view(np.uint64).repeat(_PER_MESSAGE), places)
    acker.init_many(roots, np.bitwise_xor.reduce(edges.reshape(-1, _PER_MESSAGE), axis=1), 0)
    begin, packed = prefix(acker.config.app, _GROUP), packed_anchors(roots.repeat(_PER_MESSAGE), edges.view(np.int64))
    return [[(HEADER, begin + packed[at : at + 16])] for at in range(0, len(packed), 16)]


def _consume(acker: Acker, client: RedisClient, headers: _Headers, *, has_keys: bool) -> tuple[float, float]:
    """Ack all records. Return the wall time and the server's CPU, in microseconds."""
    app = acker.config.app
    cpu, begun = harness.cpu_micros(client), time.perf_counter()
    for at in range(0, len(headers), _AT_ONCE):
        with acker.batch(idempotency_key=None if has_keys else f"{begun}-{at}") as batch:
            for one in headers[at : at + _AT_ONCE]:
                anchors = Anchors.of_headers(one, app=app, group=_GROUP)
                if anchors is not None:
                    keys = anchors.edges if has_keys else None
                    batch.ack_many(anchors.roots, anchors.edges, record_keys=keys, component="consumer")
    wall = time.perf_counter() - begun
    return wall * 1e6, harness.cpu_micros(client) - cpu
