"""Files and rows of messages of `read_files`, found by their ids without reading the files.

A message id is a hash of the file and of a block of 32 rows, and ends with the row's number in the block. So the file and the
row of a dead letter are found by hashing the blocks of all files, which takes 20 ns per block.
"""

import json
import logging

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from acker_redis.model.arrays import UInt64Array
from acker_redis.model.ids import SLOTS
from acker_redis.model.roots import SLOT_BITS
from acker_redis.model.xxhash64 import hash_longs
from acker_redis.spark.sources.files import FILE, READ_FROM, ROW, ROW_OF, list_files

log = logging.getLogger("acker_redis.spark")

_FIRST_BLOCKS = 64
"""Blocks of each file that are looked at first. Each further step looks at twice as many as were looked at before."""

_MOST_BLOCKS, _PER_FILE = 100_000_000, 1000
"""Blocks that a run hashes at most, in some seconds. Then its letters have no places. A look at a file costs as many more."""


class FilePlaces:
    """Finds the places of messages for their dead letters."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark, self._path = spark, path
        self._files: list[str] = []
        self._seeds: UInt64Array | None = None
        self._left = _MOST_BLOCKS

    @classmethod
    def of(cls, frame: DataFrame, partition: str, offset: str) -> "FilePlaces | None":
        """Return the places of messages whose ids are made of the columns `file` and `row` of `read_files`, else None."""
        if (partition, offset) != (FILE, ROW) or not {FILE, ROW} <= set(frame.columns):
            return None
        read_from = frame.schema[FILE].metadata.get(READ_FROM)
        if read_from is None or frame.schema[ROW].metadata.get(ROW_OF) != read_from:
            return None
        return cls(frame.sparkSession, read_from)

    def __call__(self, message_ids: list[int]) -> list[str | None]:
        """Return the place of each message as JSON with `file` and `row`. None: it wasn't found."""
        try:
            found = self._find(np.array(message_ids, np.int64).view(np.uint64))
        except Exception as exc:  # a letter without its place is better than none
            log.debug("files of dead letters unknown error=%s", exc)
            found = {}
        places = [found.get(message & ((1 << 64) - 1)) for message in message_ids]
        return [None if place is None else json.dumps({FILE: place[0], ROW: place[1]}) for place in places]

    def _find(self, message_ids: UInt64Array) -> dict[int, tuple[str, int]]:
        """Return message id -> file and row, for those that were found."""
        if self._seeds is None:
            self._seeds = self._read_seeds()
        found: dict[int, tuple[str, int]] = {}
        hashed = ~np.uint64(SLOTS - 1)
        by_block: dict[int, list[int]] = {}
        for message, block in zip(message_ids.tolist(), (message_ids & hashed).tolist(), strict=True):
            by_block.setdefault(block, []).append(message)
        wanted = np.array(sorted(by_block), np.uint64)
        begin, count = 0, _FIRST_BLOCKS
        while len(wanted) and (cost := len(self._files) * (count + _PER_FILE)) <= self._left:
            self._left -= cost
            blocks = np.arange(begin, begin + count, dtype=np.uint64)
            for file, seed in zip(self._files, self._seeds, strict=True):
                hashes = np.asarray(hash_longs(blocks, seed=seed)) & hashed
                for place in np.flatnonzero(np.isin(hashes, wanted)).tolist():
                    first = (begin + place) << SLOT_BITS
                    found |= {message: (file, first + message % SLOTS) for message in by_block[int(hashes[place])]}
            wanted = np.array([block for block in wanted.tolist() if by_block[block][0] not in found], np.uint64)
            begin, count = begin + count, begin + count
        return found

    def _read_seeds(self) -> UInt64Array:
        """List the files, and let Spark hash their names."""
        self._files = list_files(self._path)
        names = self._spark.createDataFrame(pa.table({FILE: self._files}))
        hashed = names.select(F.xxhash64(FILE).alias("seed")).toArrow().column(0)
        return np.asarray(hashed.to_numpy(), np.int64).view(np.uint64)
