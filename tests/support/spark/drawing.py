"""Children in numbers that a flat_map function draws, and a sink that shows whether all of one drawing was written.

A row says which drawing it belongs to and how many children that had. So the files alone tell which messages are whole.
"""

import secrets
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from acker_redis.spark import FlatMapOutput
from tests.support.spark.faults import context

SCHEMA = pa.schema([("id", pa.int64()), ("draw", pa.int64()), ("child", pa.int32()), ("children", pa.int32())])
DDL = "id bigint, draw bigint, child int, children int"


def drawn(ids: np.ndarray, *, random: bool) -> FlatMapOutput:
    """One to four children per row: drawn anew each time, or always the same."""
    counts = np.array([secrets.randbelow(4) + 1 if random else message % 4 + 1 for message in ids])
    draws = np.array([secrets.randbits(62) if random else message for message in ids])
    parents = np.repeat(np.arange(len(ids)), counts)
    ordinals = np.concatenate([np.arange(count) for count in counts])
    return FlatMapOutput(pa.record_batch([ids[parents], draws[parents], ordinals, counts[parents]], SCHEMA), parents)


def write(rows: pa.Table, folder: Path, name: str) -> None:
    """A whole file or none; one of the same name is replaced."""
    written = folder / f"{name}.{context().taskAttemptId()}"
    pq.write_table(rows, written)
    written.rename(folder / f"{name}.parquet")


def whole(folder: Path) -> set[int]:
    """Messages of which all children of one drawing are in the files."""
    found: dict[tuple[int, int, int], set[int]] = {}
    for path in folder.glob("*.parquet"):
        for row in pq.read_table(path).to_pylist():
            found.setdefault((row["id"], row["draw"], row["children"]), set()).add(row["child"])
    return {message for (message, _, children), present in found.items() if present == set(range(children))}
