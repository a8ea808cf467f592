"""Rows of a micro-batch without a message id, such as lines that Spark can't parse. They become dead letters."""

import logging
import time
from collections import Counter

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from acker_redis.acker import Acker
from acker_redis.errors import OperatorBrokenError
from acker_redis.model.xxhash64 import hash_longs
from acker_redis.outages import Outages
from acker_redis.spark import sql
from acker_redis.spark.emission.messages import PAYLOAD, as_json
from acker_redis.spark.emission.operator_health import MANY_FAILED
from acker_redis.spark.protocol.message_json import TO_JSON
from acker_redis.spark.sources.file_formats import CORRUPT
from acker_redis.spark.worker.failures import REASON_CHARS
from acker_redis.spout.spout import Spout
from acker_redis.store.dead_letter import CORRUPT_ROW, DeadLetter

log = logging.getLogger("acker_redis.spark")

MAX_ROW_BYTES = 10_000
"""Longest row that its letter keeps if `dead_letter_bytes` is 0, because nothing else leads to the row."""

_HASH, _TEXT = "_acker_hash", "_acker_text"


class RowsWithoutIds:
    """Turn rows without an id into dead letters, unless one start of a query has seen no other rows."""

    def __init__(self, acker: Acker, *, dead_letter_bytes: int, stop_if_broken: bool) -> None:
        """Start without evidence.

        Args:
            acker: acker of this process.
            dead_letter_bytes: longest row that a letter keeps as JSON, in bytes; 0: MAX_ROW_BYTES.
            stop_if_broken: see `TrackedBatches`.
        """
        self._acker, self._longest = acker, dead_letter_bytes or MAX_ROW_BYTES
        self._must_stop = stop_if_broken
        self._count = 0

    def check(self, column: str, with_id: int, without_id: int) -> None:
        """Check that the source can be read with its schema.

        Args:
            column: name of the message id column.
            with_id: number of the micro-batch's rows with an id.
            without_id: number of its rows without.

        Raises:
            OperatorBrokenError: this start has seen MANY_FAILED rows, and none has an id.
        """
        if with_id:
            self._must_stop = False
        self._count += without_id
        if self._must_stop and self._count >= MANY_FAILED:
            raise OperatorBrokenError(
                f"{self._count} rows have no id in column {column!r}, and no row has one since the start of the query. The "
                "schema of the source is probably wrong, so this micro-batch was not dead-lettered. Correct the schema, or "
                "set stop_if_broken=False if the rows are really bad."
            )

    def write_letters(self, frame: DataFrame, column: str, spout: Spout) -> list[DeadLetter]:
        """Write a dead letter for each row without an id, and return the letters. Runs a Spark job.

        The message id of a letter is a hash of the row, and of its place among equal rows of the micro-batch. So a
        micro-batch that runs again gives the same ids.

        Raises:
            ServerUnavailableError: the server was unavailable for too long.
        """
        without = frame.where(F.col(sql.quoted(column)).isNull())
        row, text = F.to_json(F.struct("*"), TO_JSON), _text(frame)
        table = without.select(
            F.xxhash64(row).alias(_HASH), as_json(self._longest).alias(PAYLOAD), text.alias(_TEXT)
        ).toArrow()
        now, seen, letters = int(time.time()), Counter[int](), list[DeadLetter]()
        lost = "" if CORRUPT in frame.columns else (
            f" If the source parses text, the text is lost. Add {CORRUPT} STRING to its schema, which keeps it."
        )  # fmt: skip
        for hashed, payload, beginning in zip(*(part.to_pylist() for part in table.columns), strict=True):
            message_id = int(np.uint64(hash_longs(hashed, seen[hashed])).view(np.int64))
            seen[hashed] += 1
            detail = f"The row has no id in column {column!r}.{lost}" + (f" Text: {beginning}" if beginning else "")
            letters.append(
                DeadLetter(message_id, spout.run_id, 0, CORRUPT_ROW, None, detail, payload, "", spout.spout_id, now)
            )
        entry_ids = Outages(log).wait_for(lambda: self._acker.dead_letters.add(letters))
        log.error("rows without an id are dead letters app=%s rows=%d", self._acker.config.app, len(letters))
        return [letter._replace(entry_id=entry_id) for letter, entry_id in zip(letters, entry_ids, strict=True)]


def _text(frame: DataFrame) -> Column:
    """Build a column with the beginning of the text that Spark could not parse; null if the source doesn't keep it."""
    is_kept = CORRUPT in frame.columns and isinstance(frame.schema[CORRUPT].dataType, StringType)
    return F.left(F.col(CORRUPT), F.lit(REASON_CHARS)) if is_kept else F.lit(None).cast(StringType())
