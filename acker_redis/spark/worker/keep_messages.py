"""Keeps messages in Redis, for replays of what can't be read again."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from acker_redis.acker import app_of
from acker_redis.errors import PipelineError
from acker_redis.model.config import AckerConfig
from acker_redis.spark.protocol.columns import ARROW_ROWS
from acker_redis.spark.worker import row_codec
from acker_redis.spark.worker.process import acker_of_worker, keep_imports


@dataclass(frozen=True)
class KeepStep:
    """The function for `mapInArrow`: message ids and payloads, as structs, to one row (`ROWS`) that counts those kept.

    Keeping one again changes nothing, so it doesn't matter how often a task runs. Rows without id or payload are left out.

    Attributes:
        url: of the server, as executors reach it.
        config: of the app.
        run_id: of the run that they are kept for.
        longest: bytes; longer payloads are left out, too.
    """

    url: str = field(repr=False)  # may hold a password
    config: AckerConfig
    run_id: str
    longest: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on one partition.

        Raises:
            PipelineError: the ids are no integers.
            ServerOutOfMemoryError: the server is above maxmemory; some may have been kept.
        """
        keep_imports()
        count = 0
        for batch in batches:
            message_ids, payloads = batch.columns
            if not pa.types.is_integer(message_ids.type):
                raise PipelineError(f"message ids are {message_ids.type}: expected bigint")
            rows = row_codec.to_bytes(payloads, self.longest)
            pairs = [
                (message, row)
                for message, row in zip(message_ids.to_pylist(), rows, strict=True)
                if message is not None and row is not None
            ]
            app_of(acker_of_worker(self.url, self.config)).payloads(self.run_id).put(pairs)
            count += len(pairs)
        yield pa.RecordBatch.from_arrays([pa.array([count], pa.int64())], schema=pa.schema([ARROW_ROWS]))
