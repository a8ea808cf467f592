"""Latency from sending an ack to receiving its outcome, at 100 000 acks per second.

One process sends 1 000 completing acks every 10 ms, and reads the clock before each call. This process receives the outcomes
in batches, with a blocking poll, and confirms them, as a spout does. The clock is the machine's monotonic one, which all its
processes share. A batch that could not be sent in time counts from its actual sending. The rate reached shows this.
"""

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

from acker_redis import Acker, AckerConfig
from acker_redis.model import ids
from acker_redis.model.arrays import UInt64Array
from benchmarks import harness
from benchmarks.harness import BATCH, Bench, Row

_SECONDS = 10
_RATE = 100_000
_TARGETS_MS = {50: 3.0, 99: 15.0}
_APP = "latency"
_VAL = np.uint64(77)
_OUTCOME_TIMEOUT_SECS = 30.0
_BATCH_BITS = 20  # block = batch number << 20 | row / 32, so that an outcome tells its batch


@harness.benchmark("latency")
def run(bench: Bench) -> Iterator[Row]:
    """Measure ten seconds at the full rate."""
    batches = bench.size(_SECONDS * _RATE) // BATCH
    with bench.acker(_APP, empty=True) as acker:
        for number in range(batches):
            acker.init_many(_roots(number), np.full(BATCH, _VAL, np.uint64), 0)
        own_end, sender_end = multiprocessing.get_context("spawn").Pipe()
        sender = multiprocessing.get_context("spawn").Process(
            target=_send, args=(bench.url, acker.config, batches, sender_end)
        )
        sender.start()
        try:
            own_end.recv()  # the sender is connected
            own_end.send("go")
            number_of, received_at = _receive(acker, batches * BATCH)
            sent_at: npt.NDArray[np.float64] = np.array(own_end.recv())
        finally:
            sender.join(timeout=_OUTCOME_TIMEOUT_SECS)
            sender.kill()
    millis = (received_at - sent_at[number_of]) * 1000
    rate = (batches - 1) * BATCH / max(sent_at[-1] - sent_at[0], 1e-9)
    context = f"{rate:,.0f} acks/s reached, {len(millis):,} outcomes; max {millis.max():.1f} ms"
    for quantile in (50, 99):
        yield bench.row(f"ack sent to outcome received, p{quantile}", [float(np.percentile(millis, quantile))], "ms",
                        target=_TARGETS_MS[quantile], context=context)  # fmt: skip


def _roots(batch: int) -> UInt64Array:
    rows = np.arange(BATCH, dtype=np.uint64)
    return ids.mint(rows // np.uint64(ids.SLOTS) + np.uint64(batch << _BATCH_BITS), rows % np.uint64(ids.SLOTS))


def _send(url: str, config: AckerConfig, batches: int, pipe: Connection) -> None:
    """Ack one batch after another at its time, in the sender process, then return when each was sent."""
    sent_at: list[float] = []
    vals = np.full(BATCH, _VAL, np.uint64)
    with Acker.connect(url, config) as acker:
        pipe.send("ready")
        pipe.recv()
        start = time.monotonic()
        for number in range(batches):
            due = start + number * BATCH / _RATE
            time.sleep(max(0.0, due - time.monotonic()))
            sent_at.append(time.monotonic())
            acker.ack_many(_roots(number), vals)
    pipe.send(sent_at)


def _receive(acker: Acker, wanted: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the batch number and the time of arrival of every outcome."""
    number_of = np.empty(wanted, np.int64)
    received_at = np.empty(wanted, np.float64)
    got, deadline = 0, time.monotonic() + _SECONDS + _OUTCOME_TIMEOUT_SECS
    while got < wanted:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{got} of {wanted} outcomes arrived")
        packed = acker.poll_batches(max_outcomes=10_000, block_ms=100)
        now = time.monotonic()
        for outcomes in packed:
            end = got + len(outcomes.roots)
            received_at[got:end] = now
            number_of[got:end] = (outcomes.roots & ids.BLOCK_MASK) >> _BATCH_BITS
            got = end
        acker.confirm_batches(packed)
    return number_of, received_at
