"""Read dead letters in the workers, one span of time per task."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from acker_redis.acker import Acker
from acker_redis.store.dead_letter import DeadLetter

log = logging.getLogger("acker_redis.spark")

SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("us", "UTC")), ("first_time", pa.timestamp("us", "UTC")), ("message_id", pa.int64()),
        ("run_id", pa.string()), ("spout_id", pa.int64()), ("attempts", pa.int64()),
        ("reason", pa.string()), ("last_component", pa.string()), ("detail", pa.string()), ("payload", pa.string()),
        ("replay", pa.string()), ("entry_id", pa.string()), ("place", pa.string()), ("unwritten", pa.bool_()),
    ]
)  # fmt: skip
_LETTERS_PER_BATCH = 1000


@dataclass(frozen=True)
class ReadDeadLetters:
    """Function for `mapInArrow` from spans of time to the dead letters written in them.

    A span has columns `begin` and `end`, in ms, both inclusive.

    Attributes:
        url: server's URL, as executors reach it.
        app: name of the app.
    """

    url: str = field(repr=False)  # may hold a password
    app: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on one partition."""
        with Acker.open_existing(self.url, self.app) as acker:  # which only reads
            for batch in batches:
                for begin, end in zip(batch["begin"].to_pylist(), batch["end"].to_pylist(), strict=True):
                    yield from _read(acker, begin, end)


def _read(acker: Acker, begin: int, end: int) -> Iterator[pa.RecordBatch]:
    rows: list[dict[str, object]] = []
    for letter in acker.dead_letters.scan(after=f"{begin - 1}-{2**64 - 1}" if begin else "", until=str(end)):
        if not isinstance(letter, DeadLetter):
            log.warning("dead letter unreadable entry_id=%s error=%s", letter.entry_id, letter.why)
            continue
        millis = int(letter.entry_id.partition("-")[0])
        payload = None if letter.payload is None else letter.payload.decode(errors="replace")
        first_time = None if letter.first_secs is None else letter.first_secs * 1_000_000
        rows.append({**letter._asdict(), "time": millis * 1000, "first_time": first_time, "payload": payload})
        if len(rows) == _LETTERS_PER_BATCH:
            yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
            rows = []
    yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
