"""Keep messages in Redis, so that they can be replayed without their source."""

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
    """Function for `mapInArrow` that keeps messages and counts them.

    The input has message ids and payloads (structs). The output is one row, `ROWS`: the number of messages kept. Keeping a
    message again changes nothing, so a task may run any number of times. Rows without id or payload are skipped.

    Attributes:
        url: server's URL, as executors reach it.
        config: settings of the app.
        run_id: id of the run that the messages are kept for.
        longest: size of the longest payload to keep, in bytes; longer ones are skipped.
    """

    url: str = field(repr=False)  # may hold a password
    config: AckerConfig
    run_id: str
    longest: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on one partition.

        Raises:
            PipelineError: the ids are not integers.
            ServerOutOfMemoryError: the server is above maxmemory. Some messages may have been kept.
        """
        keep_imports()
        count = 0
        for batch in batches:
            message_ids, payloads = batch.columns
            if not pa.types.is_integer(message_ids.type):
                raise PipelineError(f"The message ids are {message_ids.type}, not bigint. Use a column of integers.")
            rows = row_codec.to_bytes(payloads, self.longest)
            pairs = [
                (message, row)
                for message, row in zip(message_ids.to_pylist(), rows, strict=True)
                if message is not None and row is not None
            ]
            app_of(acker_of_worker(self.url, self.config)).payloads(self.run_id).put(pairs)
            count += len(pairs)
        yield pa.RecordBatch.from_arrays([pa.array([count], pa.int64())], schema=pa.schema([ARROW_ROWS]))
